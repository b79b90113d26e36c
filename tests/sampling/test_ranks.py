"""One sampler on 1, 2 and 4 processes is the same sampler: indices and state, bit for bit.

The processes are real and speak gloo.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import Tensor

from cfol_fast import ops
from cfol_fast.errors import InputError
from cfol_fast.sampling import ClassSampler, Ranks
from tests.sampling import on_ranks
from tests.sampling.on_ranks import GLOBAL_BATCH, LABELS, SAMPLERS, losses

pytestmark = pytest.mark.slow

Found = list[dict[str, Any]]
every = pytest.mark.parametrize("name", SAMPLERS)


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each of 2 or 4 processes found."""
    folder, size = tmp_path_factory.mktemp("ranks"), request.param
    processes.start_processes(on_ranks.work, (size, str(folder)), nprocs=size, start_method="spawn")
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(size)]


@every
def test_any_number_of_ranks_draws_and_learns_what_one_does(name: str, found: Found) -> None:
    alone = on_ranks.trajectory(SAMPLERS[name](), GLOBAL_BATCH)
    assert torch.equal(torch.cat([rank[name]["drawn"] for rank in found], dim=1), alone["drawn"])
    for rank in found:
        assert rank[name]["states"] == alone["states"]


def test_a_process_group_says_the_same_as_two_numbers(found: Found) -> None:
    for rank in found:
        assert rank["group"]["states"] == rank["class"]["states"]
        assert torch.equal(rank["group"]["drawn"], rank["class"]["drawn"])


def test_the_listing_of_the_paper_works_on_ranks(found: Found) -> None:
    states = {rank["listing"] for rank in found}
    assert len(states) == 1
    assert states != {ClassSampler(LABELS).fingerprint()}


@pytest.mark.parametrize("name", ["class", "example"])
def test_a_loader_gives_each_rank_its_part(name: str, found: Found) -> None:
    alone = on_ranks.with_loader(SAMPLERS[name](), 60)
    passes = zip(*(rank[f"loader-{name}"]["seen"] for rank in found), strict=True)
    for parts, whole in zip(passes, alone["seen"], strict=True):
        assert torch.equal(torch.cat(parts), whole)
    assert {rank[f"loader-{name}"]["state"] for rank in found} == {alone["state"]}


def test_a_sampler_that_was_told_nothing_does_not_draw_in_a_process_group(found: Found) -> None:
    for rank in found:
        assert rank["untold"].startswith(
            f"there is a process group of {len(found)} ranks, and each would draw the same"
        )
        assert "world_size=torch.distributed.get_world_size()" in rank["untold"]


def test_world_size_1_draws_alone(found: Found) -> None:
    whole = SAMPLERS["class"]().draw(GLOBAL_BATCH)
    assert all(torch.equal(rank["alone"], whole) for rank in found)


def test_ranks_may_report_different_numbers_of_examples(found: Found) -> None:
    alone, idx = SAMPLERS["class"](), torch.arange(GLOBAL_BATCH)
    alone.update(LABELS[idx], losses(idx), p=torch.full((5,), 0.2, dtype=torch.float64))  # type: ignore[attr-defined]
    assert {rank["uneven"] for rank in found} == {alone.fingerprint()}


def test_equal_states_pass_and_others_are_named_on_every_rank(found: Found) -> None:
    first, last = ", ".join(map(str, range(len(found) - 1))), len(found) - 1
    others = ", ".join(str(rank) for rank in range(len(found)) if rank != 1)
    for rank in found:
        assert rank["same"] == "nothing was said"
        assert rank["drifted"].startswith(
            f"the state of ExampleSampler differs from rank to rank ({first} against {last})"
        )
        assert f"({others} against 1)" in rank["other-number"]


# ---------------------------------------------------------------- in one process


@every
@pytest.mark.parametrize("size", [2, 3, 8])
def test_the_slots_of_all_ranks_are_the_global_draw(name: str, size: int) -> None:
    ranks = [SAMPLERS[name](rank=rank, world_size=size) for rank in range(size)]
    alone = SAMPLERS[name]()
    for n in (5, 16, 1):
        assert torch.equal(torch.cat([sampler.draw(n) for sampler in ranks]), alone.draw(n * size))
        tickets = [sampler.ticket() for sampler in ranks]
        if name == "example":
            assert torch.equal(torch.cat([t for t in tickets if t is not None]), ticket_of(alone))


def ticket_of(sampler: Any) -> Tensor:
    return sampler.ticket()


@every
def test_a_pass_of_all_ranks_is_as_long_as_the_data_set(name: str) -> None:
    ranks = [SAMPLERS[name](rank=rank, world_size=4) for rank in range(4)]
    assert [len(sampler) for sampler in ranks] == [60] * 4
    assert [len(list(sampler)) for sampler in ranks] == [60] * 4
    assert [len(batch) for batch in SAMPLERS[name](rank=1, world_size=4).batches(32)] == [32, 28]


def test_a_uniform_pass_of_all_ranks_has_every_example_once() -> None:
    drawn = [index for rank in range(4) for index in SAMPLERS["uniform"](rank=rank, world_size=4)]
    assert sorted(drawn) == list(range(240))


def test_a_state_moves_to_another_number_of_ranks() -> None:
    alone = SAMPLERS["example"]()
    on_ranks.trajectory(alone, GLOBAL_BATCH)
    halves = [SAMPLERS["example"](seed=9, rank=rank, world_size=2) for rank in range(2)]
    for half in halves:
        half.load_state_dict(alone.state_dict())
        assert half.fingerprint() == alone.fingerprint()
    assert torch.equal(torch.cat([half.draw(8) for half in halves]), alone.draw(16))


def test_sums_of_classes_move_w_as_the_examples_do() -> None:
    """Bit for bit, also where w is shifted, where a class only has the base's share, and where a class has no
    loss.
    """
    generator = torch.Generator().manual_seed(5)
    for case in range(60):
        k = (2, 5, 10, 97)[case % 4]
        w = torch.randn(k, generator=generator, dtype=torch.float64) * (30 if case % 3 == 0 else 1)
        w[0] = -torch.inf if case % 5 == 0 else w[0]
        p = torch.rand(k, generator=generator, dtype=torch.float64) * 0.9 + 1e-3
        y = torch.randint(k // 2 + 1, (128,), generator=generator)
        loss = torch.rand(128, generator=generator)
        eta = (2e-6, 0.01, 3.0)[case % 3]
        tally = ops.new_tally(k)
        ops.class_tally_(tally, y, loss)
        from_sums, from_examples = w.clone(), w.clone()
        ops.exp3_add_sums_(from_sums, p, tally[:, 1], eta)
        ops.exp3_update_(from_examples, p, y, loss, eta)
        assert torch.equal(from_sums, from_examples)


def test_sums_need_a_p_that_can_have_drawn_them() -> None:
    w, sums = torch.zeros(3).double(), torch.tensor([1, 0, 0])
    with pytest.raises(ValueError, match="p must be at least 2"):
        ops.exp3_add_sums_(w, torch.tensor([0.0, 0.5, 0.5]).double(), sums, 0.1)
    with pytest.raises(ValueError, match=r"p must have shape \(3,\), got \(1,\)"):
        ops.exp3_add_sums_(w, torch.ones(1).double(), sums, 0.1)
    ops.exp3_add_sums_(w, torch.tensor([0.5, 0.5, 0.0]).double(), sums, 0.1)
    assert bool(w[0] > 0)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({"rank": 2, "world_size": 2}, "rank must be below world_size=2, got 2"),
        ({"rank": -1, "world_size": 2}, "rank must be a whole number of at least 0, got -1"),
        ({"rank": 0, "world_size": 0}, "world_size must be a whole number of at least 1, got 0"),
        ({"rank": 0, "world_size": 2.0}, "world_size must be a whole number of at least 1, got 2.0"),
        ({"rank": 1}, "rank and world_size belong together, got rank=1 and world_size=None"),
        ({"world_size": 2}, "rank and world_size belong together, got rank=None and world_size=2"),
    ],
)
def test_a_place_that_cannot_be_is_refused(place: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        ClassSampler(LABELS, **place)
    assert str(error.value) == said


def test_an_update_without_a_process_group_says_what_is_missing() -> None:
    sampler = ClassSampler(LABELS, rank=0, world_size=2)
    y = LABELS[sampler.draw(8)]
    with pytest.raises(InputError, match="told of 2 ranks, and the default process group has 1: call"):
        sampler.update(y, torch.ones(8))


def test_a_group_that_carries_only_gpu_tensors_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda group: "nccl")
    with pytest.raises(
        InputError, match="nccl, which carries only what is on a GPU: make the sampler with device='cuda'"
    ):
        Ranks(0, 2).sum(torch.zeros(3, dtype=torch.int64))


def test_the_repr_says_which_rank() -> None:
    assert "rank=1, world_size=2" in repr(ClassSampler(LABELS, rank=1, world_size=2))
    assert "rank" not in repr(ClassSampler(LABELS))


@pytest.mark.parametrize("call", ["sum", "largest", "gather"])
def test_a_call_returns_when_the_process_groups_thread_holds_its_tensors_no_more(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that let go of the last reference while the interpreter ends would abort the process."""
    held: list[Tensor] = []
    letting_go = threading.Event()

    def carried(*tensors: Any, **_: Any) -> None:
        values = tensors[-1] if call == "gather" else tensors[0]
        # As C++ does: a view holds the tensor it is of, not its Python object.
        held.append(values.view(-1))
        threading.Timer(0.05, lambda: (letting_go.set(), held.clear())).start()

    monkeypatch.setattr(dist, "all_gather" if call == "gather" else "all_reduce", carried)
    monkeypatch.setattr(Ranks, "_reachable", lambda *_: None)
    getattr(Ranks(0, 2), call)(torch.zeros(3))
    assert letting_go.is_set()


def test_a_tensor_that_its_owner_holds_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: None)
    monkeypatch.setattr(Ranks, "_reachable", lambda *_: None)
    monkeypatch.setattr("cfol_fast.ranks.time.sleep", lambda _: pytest.fail("waited"))
    values = torch.zeros(3)
    view = values.view(-1)
    assert Ranks(0, 2).sum(values) is values
    assert view is not values
