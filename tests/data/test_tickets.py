"""A batch and its ticket stay together: whatever order workers return batches in, and whoever mixes tickets
up is told.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

import cfol_fast as cf
from cfol_fast import ops
from cfol_fast.errors import InputError
from cfol_fast.integrations.learning import LearningSampler
from cfol_fast.sampling import IndexSampler, Ticket
from tests.data.test_ticket_loader import BATCH, LABELS, MAKERS, Dicts, Numbered, state, wrong

every = pytest.mark.parametrize("name", list(MAKERS))


class Slow(Numbered):
    """The batches of one of two workers take longer."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        worker = torch.utils.data.get_worker_info()
        if worker is not None and worker.id == 0:
            time.sleep(0.005)
        return super().__getitem__(index)


class Batched(Numbered):
    """Reads a whole batch at once, as Hugging Face's data sets do."""

    def __getitems__(self, indices: list[int]) -> list:
        return [super(Batched, self).__getitem__(index) for index in indices]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("dataset", [Slow(), Batched(), Dicts()], ids=lambda one: type(one).__name__)
def test_each_batch_comes_with_its_own_ticket(dataset: Dataset, workers: int, in_order: bool) -> None:
    sampler = MAKERS["example"]()
    due = torch.zeros(50, dtype=torch.float64)
    batches = 0
    for *batch, ticket in cf.loader(dataset, sampler, 4, workers=workers, lag=6, in_order=in_order):
        x, y = (batch[0]["pixel_values"], batch[0]["label"]) if isinstance(dataset, Dicts) else batch
        assert torch.equal(x[:, 0, 0, 0].long(), ticket.idx)
        assert torch.equal(ticket.y, y)
        due.index_add_(0, ticket.idx, 0.01 * wrong(y) / ticket.p)
        sampler.update(y, wrong(y), p=ticket)
        batches += 1
    assert batches == 13
    gained = sampler.tree.w.double() * ops.sum_tree.WEIGHT_UNIT
    assert torch.allclose(gained - gained[0], due - due[0], atol=1e-6)


def drawn(sampler: IndexSampler, count: int = 3) -> list[tuple[Tensor, Ticket]]:
    """Batches of a loader, of which the sampler was told nothing."""
    found = itertools.islice(cf.loader(Numbered(), sampler, BATCH, lag=5), count)
    return [(y, ticket) for _, y, ticket in found]


def used_twice(sampler: IndexSampler) -> None:
    (y, ticket), *_ = drawn(sampler)
    sampler.update(y, wrong(y), p=ticket)
    sampler.update(y, wrong(y), p=ticket)


def of_the_batch_before(sampler: IndexSampler) -> None:
    (y, first), (other, _), _ = drawn(sampler)
    assert y.tolist() != other.tolist()
    sampler.update(other, wrong(other), p=first)


def always_the_first(sampler: IndexSampler) -> None:
    first = None
    for _, y, ticket in cf.loader(Numbered(), sampler, BATCH):
        first = ticket if first is None else first
        sampler.update(y, wrong(y), p=first)


def of_another_sampler(sampler: IndexSampler) -> None:
    (y, ticket), *_ = drawn(MAKERS["class"]())
    sampler.update(y, wrong(y), p=ticket)


def of_a_part(sampler: IndexSampler) -> None:
    (y, ticket), *_ = drawn(sampler)
    sampler.update(y[:5], wrong(y)[:5], p=ticket)


def of_too_few_losses(sampler: IndexSampler) -> None:
    (y, ticket), *_ = drawn(sampler)
    sampler.update(y, wrong(y)[:5], p=ticket)


def of_a_smaller_batch(sampler: IndexSampler) -> None:
    (y, _), (_, ticket), *_ = drawn(sampler)
    sampler.update(y, wrong(y), p=ticket._replace(idx=ticket.idx[:2]))


MIXED_UP: dict[Callable[[IndexSampler], None], str] = {
    used_twice: "was used for an update before",
    of_the_batch_before: r"is of another batch: \d of 8 labels are not those of its examples",
    always_the_first: "of another batch|was used",
    of_another_sampler: "is of another sampler",
    of_a_part: r"of a batch of 8 examples, the update has labels \(5,\)",
    of_too_few_losses: r"labels \(8,\) and losses \(5,\)",
    of_a_smaller_batch: "of a batch of 2 examples",
}


@every
@pytest.mark.parametrize("how", list(MIXED_UP), ids=lambda how: how.__name__)
def test_a_ticket_of_another_batch_is_an_error(name: str, how: Callable[[IndexSampler], None]) -> None:
    with pytest.raises(InputError, match=MIXED_UP[how]):
        how(MAKERS[name]())


@every
def test_a_refused_ticket_teaches_nothing_and_can_still_be_used(name: str) -> None:
    sampler, twin = MAKERS[name](), MAKERS[name]()
    (y, ticket), (other, _), _ = drawn(sampler)
    drawn(twin)
    with pytest.raises(InputError):
        sampler.update(other, wrong(other), p=ticket)
    for mine, theirs in zip(state(sampler), state(twin), strict=True):
        assert torch.equal(mine, theirs)
    sampler.update(y, wrong(y), p=ticket)


@every
def test_tickets_may_come_back_late_and_in_another_order(name: str) -> None:
    sampler = MAKERS[name]()
    for y, ticket in reversed(drawn(sampler, 4)):
        sampler.update(y, wrong(y), p=ticket)


@every
def test_a_ticket_made_by_hand_is_taken_as_before(name: str) -> None:
    sampler = MAKERS[name]()
    idx = sampler.draw(8)
    ticket = Ticket(idx, sampler.ticket())
    for _ in range(2):
        sampler.update(LABELS[idx], wrong(LABELS[idx]), p=ticket)


def test_other_labels_than_those_the_sampler_was_made_with_are_an_error() -> None:
    class Renumbered(Numbered):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            x, y = super().__getitem__(index)
            return x, 2 - y

    sampler = MAKERS["class"]()
    _, y, ticket = next(iter(cf.loader(Renumbered(), sampler, BATCH)))
    with pytest.raises(InputError, match="of another batch"):
        sampler.update(y, wrong(y), p=ticket)


def test_classes_of_the_users_own_are_those_of_the_sampler() -> None:
    """The data set's labels are finer than the groups that are drawn."""
    groups = LABELS // 2
    sampler = cf.ClassSampler(groups, eta=0.05)
    for _, y, ticket in cf.loader(Numbered(), sampler, BATCH):
        sampler.update(y // 2, wrong(y), p=ticket)
    assert sampler.p[1] > sampler.p[0]


@pytest.mark.parametrize(
    ("collate", "message"),
    [
        (lambda rows: default_collate(rows[1:]), "a batch of 7 from 8 examples: 1 are missing"),
        (lambda rows: default_collate(rows[::-1]), "changed the order of the examples"),
        (lambda rows: default_collate([rows[0]] * 8), "put other examples in the places of"),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_collate_fn_that_parts_examples_from_their_indices_is_an_error(
    collate: Callable, message: str, workers: int
) -> None:
    with pytest.raises(InputError, match=message):
        list(cf.loader(Numbered(), MAKERS["example"](), BATCH, workers=workers, collate_fn=collate))


def test_a_data_set_that_ends_early_is_an_error() -> None:
    class Ending(Numbered):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            raise StopIteration

    with pytest.raises(InputError, match=r"data\[i\] must not raise StopIteration"):
        list(cf.loader(Ending(), MAKERS["class"](), BATCH))


@pytest.mark.parametrize("option", ["shuffle", "batch_sampler", "num_workers", "prefetch_factor"])
def test_options_that_change_what_is_drawn_are_refused(option: str) -> None:
    with pytest.raises(InputError, match=option):
        cf.loader(Numbered(), MAKERS["class"](), BATCH, **{option: 2})


def test_a_flag_on_the_device_is_read_at_the_end_of_the_pass() -> None:
    sampler = MAKERS["class"]()
    batches = iter(cf.loader(Numbered(), sampler, BATCH))
    sampler.fault |= ops.TICKET_FAULT
    with pytest.raises(InputError, match="ticket of another batch"):
        list(batches)


@every
def test_other_peoples_loops_find_a_ticket_mixed_up_too(name: str) -> None:
    sampler = MAKERS[name]()
    learning = LearningSampler(sampler)
    (y, ticket), (other, _), _ = drawn(sampler)
    learning.hear(y, wrong(y), ticket)
    with pytest.raises(InputError, match="used for an update before"):
        learning.hear(y, wrong(y), ticket)
    (_, ticket), *_ = drawn(sampler)
    with pytest.raises(InputError, match="is of another"):
        learning.hear(1 - other.clamp(max=1), wrong(other), ticket)


def test_the_oldest_tickets_are_forgotten() -> None:
    from cfol_fast.sampling import index_sampler

    sampler = MAKERS["uniform"]()
    for _ in range(index_sampler.WAITING + 5):
        sampler.hand_out(LABELS)
    assert len(sampler._waiting) == index_sampler.WAITING


def test_a_ticket_survives_the_way_to_another_device_as_a_dict() -> None:
    sampler = MAKERS["example"]()
    (y, ticket), *_ = drawn(sampler)
    again = Ticket(**dict(ticket._asdict()))
    sampler.update(y, wrong(y), p=again)
