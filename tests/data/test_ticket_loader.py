"""`loader`: every batch with the ticket that drew it, the same for any number of workers."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import cfol_fast as cf
from cfol_fast import sampling
from cfol_fast.errors import InputError

LABELS = torch.arange(50) % 3
# The whole pass is 50 draws: six batches of 8 and one of 2.
BATCH = 8


class Numbered(Dataset):
    """Each image holds its own index."""

    def __len__(self) -> int:
        return len(LABELS)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((1, 2, 2), float(index)), int(LABELS[index])


class Dicts(Numbered):
    def __getitem__(self, index: int) -> dict[str, object]:  # type: ignore[override]
        return {"pixel_values": torch.full((1, 2, 2), float(index)), "label": int(LABELS[index])}


MAKERS: dict[str, Callable[[], sampling.IndexSampler]] = {
    "class": lambda: sampling.ClassSampler(LABELS, eta=0.05, gamma=0.3, seed=4),
    "reweighted": lambda: sampling.ClassSampler(LABELS, eta=0.05, gamma=0.3, reweight=True, seed=4),
    "example": lambda: sampling.ExampleSampler(50, eta=0.01, gamma=0.3, seed=4),
    "uniform": lambda: sampling.UniformSampler(50, seed=4),
    "fixed": lambda: sampling.FixedClassSampler(LABELS, [0.2, 0.3, 0.5], seed=4),
}


def wrong(y: Tensor) -> Tensor:
    return y == 2


def by_hand(sampler: sampling.IndexSampler, lag: int, passes: int) -> list[list[int]]:
    """What the loader promises, written down plainly: batch j is drawn when the batches before j - lag have
    been reported.
    """
    seen = []
    for _ in range(passes):
        sizes = [8] * 6 + [2]
        drawn = []
        for step in range(len(sizes)):
            while len(drawn) < min(step + lag + 1, len(sizes)):
                idx = sampler.draw(sizes[len(drawn)])
                drawn.append((idx, sampler.ticket()))
            idx, p = drawn[step]
            seen.append(idx.tolist())
            sampler.observe(idx, LABELS[idx], wrong(LABELS[idx]), p)
    return seen


def by_loader(sampler: sampling.IndexSampler, lag: int, workers: int, passes: int) -> list[list[int]]:
    loader, seen = cf.loader(Numbered(), sampler, BATCH, workers=workers, lag=lag), []
    for _ in range(passes):
        for x, y, ticket in loader:
            idx = x[:, 0, 0, 0].long()
            assert torch.equal(ticket.idx, idx)
            assert torch.equal(LABELS[idx], y)
            seen.append(idx.tolist())
            sampler.update(y, wrong(y), p=ticket)
    return seen


def state(sampler: sampling.IndexSampler) -> list[Tensor]:
    return [
        t
        for value in sampler.state_dict().values()
        for t in (value if isinstance(value, list) else [value])
        if isinstance(t, Tensor)
    ]


@pytest.mark.parametrize(
    ("workers", "lag"),
    [
        (0, 0),
        (0, 3),
        pytest.param(2, 3, marks=pytest.mark.slow),
        (0, 100),
        pytest.param(2, 100, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", list(MAKERS))
def test_indices_and_updates_are_those_of_the_lag_for_any_number_of_workers(
    name: str, workers: int, lag: int
) -> None:
    expected, found = MAKERS[name](), MAKERS[name]()
    assert by_loader(found, lag, workers, passes=2) == by_hand(expected, lag, passes=2)
    for mine, theirs in zip(state(found), state(expected), strict=True):
        assert torch.equal(mine, theirs)


def test_the_lag_matters_here() -> None:
    """Without this the test above could not tell lags apart."""
    assert by_hand(MAKERS["class"](), 0, 2) != by_hand(MAKERS["class"](), 3, 2)


def test_an_update_with_the_ticket_is_unbiased_where_one_without_is_not() -> None:
    """Class 2 is always wrong: the sum of eta / p over its draws is the w it should gain, whatever p was at
    the update.
    """
    sampler = sampling.ClassSampler(LABELS, eta=0.05, gamma=0.3, seed=4)
    due = torch.zeros(3, dtype=torch.float64)
    for _, y, ticket in cf.loader(Numbered(), sampler, BATCH, lag=3):
        assert ticket.p.shape == (3,)
        due.index_add_(0, y, 0.05 * wrong(y) / ticket.p[y])
        sampler.update(y, wrong(y), p=ticket)
        assert not torch.equal(sampler.p, ticket.p)
    gained = sampler.w - sampler.w[0]
    assert torch.allclose(gained, due - due[0], atol=1e-6)


@pytest.mark.parametrize("workers", [0, 2])
def test_examples_that_are_dicts_stay_dicts(workers: int) -> None:
    sampler = MAKERS["class"]()
    for batch, ticket in cf.loader(Dicts(), sampler, BATCH, workers=workers):
        assert torch.equal(batch["pixel_values"][:, 0, 0, 0].long(), ticket.idx)
        sampler.update(batch["label"], wrong(batch["label"]), p=ticket)
    assert int(sampler.p.argmax()) == 2


def test_one_pass_is_as_many_draws_as_there_are_examples() -> None:
    loader = cf.loader(Numbered(), MAKERS["uniform"](), BATCH)
    drawn = torch.cat([ticket.idx for *_, ticket in loader])
    assert len(loader) == 7
    assert sorted(drawn.tolist()) == list(range(50))


def test_a_sampler_that_nobody_tells_is_no_secret() -> None:
    """The run would be one without CFOL. Some loops make a new loader for every epoch."""
    for (name, silent), one_loader in itertools.product(
        (("class", False), ("example", False), ("uniform", True)), (True, False)
    ):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            sampler = MAKERS[name]()
            first = cf.loader(Numbered(), sampler, BATCH)
            second = first if one_loader else cf.loader(Numbered(), sampler, BATCH)
            assert len([*first, *second]) == 14
        assert ["nobody told the sampler what was wrong" in str(one.message) for one in said] == [True] * (
            not silent
        )
    with warnings.catch_warnings(action="error"):
        by_loader(MAKERS["class"](), lag=3, workers=0, passes=2)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_last_batch_that_is_too_small_may_be_left_out(workers: int) -> None:
    """BatchNorm cannot train on a batch of one."""
    loader = cf.loader(Numbered(), MAKERS["class"](), 8, workers, drop_last=True)
    assert [len(y) for _, y, _ in loader] == [8] * 6
    assert len(loader) == 6


def test_a_pass_that_is_left_in_the_middle_does_not_disturb_the_next() -> None:
    sampler = MAKERS["class"]()
    loader = cf.loader(Numbered(), sampler, BATCH, lag=2)
    next(iter(loader))
    for x, _, ticket in loader:
        assert torch.equal(x[:, 0, 0, 0].long(), ticket.idx)


def test_further_options_go_to_torchs_loader() -> None:
    loader = cf.loader(Numbered(), MAKERS["class"](), BATCH, collate_fn=lambda rows: [len(rows)])
    assert [n for n, _ in loader] == [8] * 6 + [2]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", list(MAKERS))
def test_the_sampler_works_as_a_batch_sampler(name: str, workers: int) -> None:
    sampler, twin = MAKERS[name](), MAKERS[name]()
    loader = DataLoader(Numbered(), batch_sampler=sampler.batches(BATCH), num_workers=workers)
    assert len(loader) == 7
    drawn = [x[:, 0, 0, 0].long().tolist() for x, _ in loader]
    assert drawn == [twin.draw(n).tolist() for n in [8] * 6 + [2]]


def test_as_a_batch_sampler_without_workers_every_batch_follows_the_latest_update() -> None:
    sampler, twin = MAKERS["class"](), MAKERS["class"]()
    for x, y in DataLoader(Numbered(), batch_sampler=sampler.batches(BATCH)):
        idx = twin.draw(len(y))
        assert torch.equal(x[:, 0, 0, 0].long(), idx)
        sampler.update(y, wrong(y))
        twin.update(LABELS[idx], wrong(LABELS[idx]))


class Stream(IterableDataset):
    def __iter__(self):  # type: ignore[no-untyped-def]
        yield from ()


@pytest.mark.parametrize(
    ("change", "error", "complaint"),
    [
        ({"dataset": Stream()}, TypeError, "Stream must be a map-style data set"),
        ({"dataset": TensorDataset(LABELS[:7])}, InputError, "for 50 examples, the data set has 7"),
        ({"sampler": range(50)}, TypeError, "one of cfol_fast.sampling, got range"),
        ({"batch_size": 0}, InputError, "batch_size must be a whole number of at least 1, got 0"),
        ({"workers": 3, "lag": 2}, InputError, "at most lag=2, got 3: pass lag=3 or fewer workers"),
        ({"pin_memry": True}, TypeError, "pin_memry"),
        ({"lag": -1}, InputError, "lag must be a whole number of at least 0, got -1"),
        ({"num_workers": 2}, InputError, "num_workers: the number of processes is workers= here"),
        (
            {"shuffle": True},
            InputError,
            "shuffle: the sampler decides which examples come, and in which order",
        ),
        ({"batch_sampler": []}, InputError, "batch_sampler: the sampler decides"),
        ({"prefetch_factor": 2}, InputError, "prefetch_factor: how many batches are drawn ahead is lag="),
    ],
)
def test_what_cannot_work_is_refused(change: dict, error: type[Exception], complaint: str) -> None:
    arguments = {"dataset": Numbered(), "sampler": MAKERS["class"](), "batch_size": 8, **change}
    with pytest.raises(error, match=complaint):
        cf.loader(**arguments)
