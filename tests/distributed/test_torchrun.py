"""Training as users start it: by torchrun on one machine and on two, with a worker that is killed, and with a
mistake in the options.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cfol_fast.commands import main as cli
from cfol_fast.runs import checkpoints
from cfol_fast.runs.metrics_log import read_rows
from tests.distributed.test_training import free_port
from tests.distributed.torchrun_worker import words
from tests.training import tiny

pytestmark = pytest.mark.slow

WORKER = ["-m", "tests.distributed.torchrun_worker"]


def torchrun(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run of two shards on one process."""
    out, threads = tmp_path_factory.mktemp("alone") / "run", torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cfol_fast.data.load", tiny.few_images())
        assert cli.main([*words(str(out)), "--shards=2"]) == 0
    torch.set_num_threads(threads)
    return out


def assert_same_weights(run: Path, other: Path) -> None:
    one, two = (checkpoints.read(each / "checkpoints/last.pt") for each in (run, other))
    assert all(torch.equal(two["model"][name], tensor) for name, tensor in one["model"].items())
    assert torch.equal(one["sampler"]["w"], two["sampler"]["w"])


def test_torchrun_continues_after_a_worker_was_killed(alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    started = torchrun("--standalone", "--nproc-per-node=2", "--max-restarts=1", *WORKER, str(run), "4")
    said, errors = started.communicate()
    assert started.returncode == 0, errors
    assert said.count("run: ") == 1
    # The one that was left says why it went, and there is no traceback of ours.
    assert errors.count("cfol-fast: failed: another process of the run is gone") == 1
    assert "Traceback" not in errors
    # Both of the second start, and the rank that was left, unless torchrun ends it before it can say so.
    assert errors.count("threads of the group: []") == errors.count("threads of the group:") >= 2
    assert_same_weights(alone, run)
    assert [row["step"] for row in read_rows(run) if row["kind"] == "train"] == [2, 4]


def test_two_agents_are_two_machines_of_one_run(alone: Path, tmp_path: Path) -> None:
    run, port = tmp_path / "run", free_port()
    node = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}"]
    agents = [torchrun(*node, "--rdzv-id=two", *WORKER, str(run)) for _ in range(2)]
    said = [agent.communicate() for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert "".join(out for out, _ in said).count("run: ") == 1
    assert all("threads of the group: []" in errors for _, errors in said)
    assert_same_weights(alone, run)


def test_a_mistake_is_one_sentence_of_all_processes(tmp_path: Path) -> None:
    started = torchrun(
        "--standalone", "--nproc-per-node=2", "-m", "cfol_fast", *words(str(tmp_path / "run")), "--shards=3"
    )
    _, errors = started.communicate()
    assert started.returncode != 0
    said = [line for line in errors.splitlines() if line.startswith("cfol-fast")]
    assert said == [
        "cfol-fast: error: --shards: shards must divide batch_size=16, got 3: a batch is divided into equal"
        " parts"
    ]
    assert not (tmp_path / "run").exists()
