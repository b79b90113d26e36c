"""An evaluation on two and on three processes is that of one, bit for bit; so are the draws of a loop of
one's own under DDP.

The processes are real and speak gloo.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as processes

from cfol_fast.errors import Stopped
from tests.attacks.small_models import trained
from tests.distributed import on_three_processes
from tests.distributed.on_three_processes import BATCH, SIZES, N

pytestmark = pytest.mark.slow

Found = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the processes leave what they found."""
    folder = tmp_path_factory.mktemp("evaluation")
    model, x, y = trained()
    torch.save({"model": model.state_dict(), "x": x[:N], "y": y[:N]}, folder / "trained.pt")
    return folder


@pytest.fixture(scope="module")
def alone(folder: Path) -> Found:
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        on_three_processes.shorten_autoattack(patch.setattr)
        torch.manual_seed(0)
        found = on_three_processes.everything(on_three_processes.trained_in(str(folder)), folder / "1")
    return json.loads(json.dumps(found))


@pytest.fixture(scope="module")
def started(alone: Found, folder: Path) -> None:
    processes.start_processes(
        on_three_processes.work, (max(SIZES), str(folder)), nprocs=max(SIZES), start_method="spawn"
    )


@pytest.fixture(params=SIZES)
def found(request: pytest.FixtureRequest, started: None, folder: Path) -> list[Found]:
    """What each rank of two, and of three, found."""
    return [
        json.loads((folder / f"{request.param}-{rank}.json").read_text()) for rank in range(request.param)
    ]


WHOLE = (
    *("pgd", "again", "active set", "clean", "few", "foreign", "loader", "data set", "sanity", "autoattack"),
    "hold-out losses",
)


@pytest.mark.parametrize("what", WHOLE)
def test_every_rank_has_the_whole_result_of_one_process(what: str, found: list[Found], alone: Found) -> None:
    for rank in found:
        assert rank[what] == alone[what]


def test_the_attack_leaves_some_right_and_some_wrong(alone: Found) -> None:
    for what in ("pgd", "foreign", "loader", "autoattack"):
        assert 0 < alone[what]["robust"]["average"] < alone[what]["clean"]["average"], what


def test_an_attack_of_others_that_does_not_say_that_it_may_be_shared_is_named_once(
    found: list[Found], alone: Found
) -> None:
    assert alone["warned"] == []
    first, *others = (rank["warned"] for rank in found)
    (said,) = first
    assert said.startswith("OwnNoise runs on one of")
    assert not any(others)


def test_the_random_state_ends_where_one_process_leaves_it(found: list[Found], alone: Found) -> None:
    for rank in found:
        assert rank["random state"] == alone["random state"]


def test_progress_counts_the_images_of_all_ranks(found: list[Found]) -> None:
    first = min(N, len(found) * BATCH)
    for rank in found:
        assert rank["told"] == [[2 * first, 2 * N], [2 * N, 2 * N]]


def test_autoattack_stops_after_a_round_and_continues(found: list[Found], alone: Found) -> None:
    assert alone["stopped at"] == 1
    for rank in found:
        assert rank["stopped"] == "Stopped: after the first round"
        assert rank["stopped at"] == len(found)


def test_autoattack_continues_what_one_process_began(found: list[Found], alone: Found) -> None:
    for rank in found:
        assert rank["continued from one process"] == alone["autoattack"]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("pixels", "InputError: batch 1: "),
        ("weights", "InputError: rank 1 has other weights than rank 0"),
        ("examples", "InputError: rank 1 has other examples than rank 0"),
        ("stop", "Stopped: stopped on rank 1"),
    ],
)
def test_what_one_rank_has_to_say_ends_all(what: str, said: str, found: list[Found]) -> None:
    for rank in found:
        assert rank["errors"][what].startswith(said)


def test_a_bug_keeps_its_traceback_on_its_rank_and_is_named_on_the_others(found: list[Found]) -> None:
    for number, rank in enumerate(found):
        own = "KeyError: 'a bug'"
        assert rank["errors"]["bug"] == (own if number == 1 else f"TrainingFailed: rank 1 failed: {own}")


def test_the_ranks_are_still_together_after_errors(found: list[Found], alone: Found) -> None:
    for rank in found:
        assert rank["errors"]["after it"] == str(alone["clean"]["clean"]["average"])


@pytest.mark.parametrize("sampler", ["class", "example"])
def test_a_loop_of_ones_own_under_ddp_draws_and_learns_what_one_process_does(
    sampler: str, found: list[Found]
) -> None:
    alone = on_three_processes.own_loop()[sampler]
    assert 0 < alone["wrong"] == sum(rank["own loop"][sampler]["wrong"] for rank in found) < 5 * 24
    for step, whole in enumerate(alone["drawn"]):
        assert [idx for rank in found for idx in rank["own loop"][sampler]["drawn"][step]] == whole
    for rank in found:
        assert rank["own loop"][sampler]["state"] == alone["state"]


def test_a_request_to_stop_can_travel() -> None:
    arrived = pickle.loads(pickle.dumps(Stopped(15, "saved")))
    assert (arrived.signal_number, str(arrived)) == (15, "saved")
