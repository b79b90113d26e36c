"""Training from FFCV files on two processes of torchrun is one run, and so is one that goes on with another
number of processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.distributed import from_files
from tests.distributed.from_files import LAG, RUNS, STOPPED_AT, seen, settings
from tests.distributed.test_torchrun import torchrun
from tests.distributed.test_training import as_the_processes_do, differing, last
from tests.training import tiny

__all__ = ["as_the_processes_do"]

pytestmark = [pytest.mark.slow, pytest.mark.ffcv]

Alone = tuple[Path, list[tuple[Tensor, Tensor]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two processes leave their runs; those that one process has begun are there before."""
    folder = tmp_path_factory.mktemp("from-files")
    from_files.write_files(folder)
    for name in RUNS:
        from_files.stop(folder / f"{name}-one-to-two", name, folder)
    started = torchrun(
        "--standalone", "--nproc-per-node=2", "-m", "tests.distributed.from_files", str(folder)
    )
    _, errors = started.communicate()
    assert started.returncode == 0, errors
    return folder


@pytest.fixture(scope="module", params=RUNS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def alone(name: str, folder: Path) -> Alone:
    """The same run on one process, without a stop."""
    with seen() as found:
        tiny.run(folder / f"{name}-alone", **settings(name, folder))
    return folder / f"{name}-alone", found


def assert_same_end(run: Path, other: Path) -> None:
    one, two = (last(each) for each in (run, other))
    assert one["position"]["step"] == 8
    for part in ("model", "optimizer", "sampler", "source", "attack"):
        assert differing(one[part], two[part]) == [], part


def test_two_processes_see_and_learn_what_one_does(name: str, alone: Alone, folder: Path) -> None:
    run, steps = alone
    ranks = [torch.load(folder / f"{name}-{rank}.pt", weights_only=True) for rank in range(2)]
    assert len(steps) == 8
    for whole, *parts in zip(steps, *ranks, strict=True):
        for of_all, *of_ranks in zip(whole, *parts, strict=True):
            assert torch.equal(torch.cat(of_ranks), of_all)
    assert_same_end(run, folder / name)


def test_two_processes_end_what_one_began(name: str, alone: Alone, folder: Path) -> None:
    assert_same_end(alone[0], folder / f"{name}-one-to-two")


def test_one_process_ends_what_two_began(name: str, alone: Alone, folder: Path) -> None:
    run = folder / f"{name}-two-to-one"
    left: dict[str, Any] = last(run)
    assert left["position"]["step"] == STOPPED_AT
    # What had been drawn and not yet trained on, of both.
    waiting = [] if name == "memory" else [16] * LAG
    assert [len(draw["idx"]) for draw in left["queue"]["drawn"]] == waiting
    tiny.run(run, resume=True, **settings(name, folder))
    assert_same_end(alone[0], run)
