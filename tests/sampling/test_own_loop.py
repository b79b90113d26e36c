"""The code in docs/own-loop.md runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "own-loop.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
RANKS = [block for block in BLOCKS if "torchrun" in block]
NAMES = ["by-index", "loader", "listing", "evaluation", "any-method", "demonstration"]
HERE = [block for block in BLOCKS if "torchrun" not in block]


@pytest.mark.parametrize("block", HERE, ids=NAMES)
def test_the_example_runs_and_the_sampler_learns(block: str) -> None:
    names: dict[str, object] = {}
    exec(compile(block, str(PAGE), "exec"), names)
    if "sampler" not in names:
        assert 0 <= names["result"].robust.worst <= 1  # type: ignore[attr-defined]
        return
    p = names["sampler"].p  # type: ignore[attr-defined]
    assert float(p.max()) > 0.1
    assert float(p.sum()) == pytest.approx(1)


@pytest.mark.slow
def test_the_example_for_many_gpus_runs_under_torchrun(tmp_path: Path) -> None:
    (block,) = RANKS
    save = "torch.save([sampler.p, model.module[1].weight.detach()], f'{sampler.ranks.rank}.pt')\n"
    (tmp_path / "train.py").write_text(block + save)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "train.py",
    ]
    subprocess.run(command, check=True, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"})
    (p, weight), (other_p, other_weight) = (
        torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)
    )
    assert torch.equal(p, other_p)
    assert torch.equal(weight, other_weight)
    assert float(p.max()) > 0.1
