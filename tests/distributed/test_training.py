"""Training on several processes is one run: the weights, the bandit, the records and the messages of one
process.

The processes are real and speak gloo; each has one thread.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as processes

from cfol_fast.runs import checkpoints
from cfol_fast.runs.metrics_log import read_rows
from cfol_fast.runs.run_folder import read_result
from cfol_fast.training import train
from tests.distributed import training
from tests.distributed.training import ONE_STEP, SHORT, VARIANTS, run_settings
from tests.training import tiny

pytestmark = pytest.mark.slow

Found = dict[str, Any]


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return str(probe.getsockname()[1])


@pytest.fixture(scope="module", autouse=True)
def as_the_processes_do() -> Any:
    """One thread and few images, here too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cfol_fast.data.load", tiny.few_images())
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the processes leave their runs and what they found."""
    folder = tmp_path_factory.mktemp("training")
    for name in ("4", "2", "patience"):
        (folder / f"port-{name}").write_text(free_port())
    with pytest.MonkeyPatch.context() as patch:
        # A run of one process, which two will continue.
        tiny.run_until(patch, 3, folder / "four-to-two", **{**SHORT, "shards": 4})
    processes.start_processes(training.work, (str(folder),), nprocs=4, start_method="spawn")
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[Found]:
    """What each of two ranks found."""
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(2)]


def last(run: Path) -> dict[str, Any]:
    return checkpoints.read(run / "checkpoints/last.pt")


def differing(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two nested values differ, to the last bit."""
    if isinstance(one, torch.Tensor):
        return [] if torch.equal(one, other) else [path]
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        return [place for key in one for place in differing(one[key], other[key], f"{path}.{key}")]
    if isinstance(one, (list, tuple)):
        pairs = zip(one, other, strict=True)
        return [place for n, (a, b) in enumerate(pairs) for place in differing(a, b, f"{path}.{n}")]
    return [] if one == other else [path]


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_shards_on_two_processes_are_those_of_one_bit_for_bit(
    variant: str, folder: Path, tmp_path: Path
) -> None:
    method, settings = run_settings(variant)
    tiny.run(tmp_path / "alone", method, **settings)
    alone, together = last(tmp_path / "alone"), last(folder / variant)
    for state in (alone, together):
        for clock in ("seconds", "epoch_seconds"):
            del state["position"][clock]
        # Rows hold times, which have different lengths. Each shard seeds torch's own generator, and the last
        # one leaves its state. A process knows the layers of its earlier runs too.
        del state["metrics_size"], state["torch_rng"], state["choices"]
    assert differing(alone, together) == []
    assert not [name for name in together["model"] if name.startswith("module.")]
    results = [tiny.without_times(read_result(run)) for run in (tmp_path / "alone", folder / variant)]
    assert differing(*results) == []
    for row, other in zip(read_rows(tmp_path / "alone"), read_rows(folder / variant), strict=True):
        for time in tiny.TIMES:
            row.pop(time, None), other.pop(time, None)
        loss, other_loss = row.pop("loss", 0.0), other.pop("loss", 0.0)
        assert loss == pytest.approx(other_loss, rel=1e-9)
        assert row == other


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("variant", ONE_STEP)
def test_a_step_of_four_shards_is_that_of_one_process(variant: str, size: int, folder: Path) -> None:
    alone = training.one_step(variant)
    ranks = [
        torch.load(folder / f"step-{variant}-{rank}-of-{size}.pt", weights_only=True) for rank in range(size)
    ]
    for name in ("indices", "pixels", "starts"):
        assert torch.equal(torch.cat([rank[name] for rank in ranks]), alone[name]), name
    for name, tensor in alone.items():
        if name.startswith("model "):
            assert all(torch.equal(rank[name], ranks[0][name]) for rank in ranks), name
            difference = (ranks[0][name] - tensor).double().norm()
            assert float(difference) <= 1e-6 * float(tensor.double().norm()), name


def test_samplers_that_differ_stop_the_run_and_the_ranks_are_named(found: list[Found]) -> None:
    for rank in found:
        assert rank["drifted"].startswith("the state of ClassSampler differs from rank to rank (0 against 1)")


@pytest.mark.parametrize(("run", "step"), [("stopped", 2), ("validated", 3)])
def test_a_signal_to_one_rank_saves_once_and_ends_all(
    run: str, step: int, folder: Path, found: list[Found], tmp_path: Path
) -> None:
    path = folder / run / "checkpoints/last.pt"
    for rank in found:
        assert rank[run] == f"stopped at step {step}, saved {path}; --resume continues"
    # Another number of processes continues it, and ends where a run without a stop does.
    train(tiny.tiny_config(folder / run, "dafa"), resume=True, quiet=True)
    tiny.run(tmp_path / "whole", "dafa", shards=2)
    assert differing(last(tmp_path / "whole")["model"], last(folder / run)["model"]) == []


def test_two_processes_continue_a_run_of_one(folder: Path, found: list[Found], tmp_path: Path) -> None:
    assert found[0]["result"] == found[1]["result"]
    assert last(folder / "four-to-two")["position"]["step"] == 4
    tiny.run(tmp_path / "whole", **{**SHORT, "shards": 4})
    for name, tensor in last(tmp_path / "whole")["model"].items():
        # Four shards are added up in another order.
        torch.testing.assert_close(last(folder / "four-to-two")["model"][name], tensor, rtol=0.1, atol=0.05)
    assert [row["step"] for row in read_rows(folder / "four-to-two") if row["kind"] == "train"] == [2, 4]


def test_a_finished_run_is_returned_to_every_rank(folder: Path, found: list[Found]) -> None:
    assert found[0]["again"] == found[1]["again"]
    assert found[0]["again"]["method"] == "erm"


@pytest.mark.parametrize("run", ["one-clock", "overwritten"])
def test_ranks_save_together_whoever_asks_for_it(run: str, folder: Path) -> None:
    """By one rank's clock, and in the place of an old run after the first step: the run is the same."""
    one, other = last(folder / run), last(folder / "cfol")
    assert differing(one["model"], other["model"]) == []
    assert differing(one["sampler"], other["sampler"]) == []


def test_the_ranks_compute_in_the_ways_that_the_first_one_chose(found: list[Found]) -> None:
    first, second = (rank["choices"] for rank in found)
    # One rank alone may have had a batch of the hold-out of another size; it is computed in the fixed way.
    both = first.keys() & second.keys()
    assert [layer for layer in both if first[layer] != second[layer]] == []
    # All that the step computes, in ways that nobody takes unless they won.
    raced = {layer for layer in both if second[layer] in ("contiguous fused", "contiguous")}
    assert {layer.partition(",")[0] for layer in raced} >= {"forward", "backward"}


def test_a_rank_that_hangs_is_given_up_after_the_patience(found: list[Found]) -> None:
    assert found[0]["lost"].startswith("rank 1 did not answer within 2 s, so the run ends")
    assert found[1]["lost"] == "woken"
