"""The code in docs/own-loop.md runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "own-loop.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=["by-index", "loader", "listing", "evaluation", "any-method"])
def test_the_example_runs_and_the_sampler_learns(block: str) -> None:
    names: dict[str, object] = {}
    exec(compile(block, str(PAGE), "exec"), names)
    if "sampler" not in names:
        assert 0 <= names["result"].robust.worst <= 1  # type: ignore[attr-defined]
        return
    p = names["sampler"].p  # type: ignore[attr-defined]
    assert float(p.max()) > 0.1
    assert float(p.sum()) == pytest.approx(1)
