"""A loader and its rows: what was asked for is what came, each example once, and the same in every pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)

from cfol_fast.data.classes import InModelOrder
from cfol_fast.errors import InputError
from cfol_fast.evaluation import AutoAttack, evaluate, evaluate_radii
from cfol_fast.evaluation.readers import LoaderSource, loader_in
from cfol_fast.evaluation.sharing import check_same_work
from cfol_fast.ranks import Ranks
from tests.attacks.small_models import EPS, Trained

PGD = {"eps": EPS, "steps": 1, "random_start": False}


def drop(n: int) -> Callable[[list], Any]:
    return lambda examples: default_collate(examples[: len(examples) - n])


COLLATES = {
    "drops": (drop(3), r"a batch of 61 from 64 examples: 3 are missing; of all 200 examples 12 are missing"),
    "repeats": (
        lambda rows: default_collate([*rows, rows[0]]),
        r"65 from 64 examples: 1 were added; of all 200 examples 4",
    ),
    "reorders": (
        lambda rows: default_collate(rows[::-1]),
        "batch 0: collate_fn changed the order of the examples",
    ),
    "sorts": (lambda rows: default_collate(sorted(rows, key=lambda row: int(row[1]))), "changed the order"),
    "fills up": (
        lambda rows: default_collate([*rows[:-2], rows[0], rows[1]]),
        r"in the places of 2 of 64: 2 are missing; of all 200 examples 8 are missing",
    ),
    "sorts one class": (
        lambda rows: default_collate(sorted(rows, key=lambda row: (int(row[1]), float(row[0].sum())))),
        "changed the order",
    ),
}


@pytest.mark.parametrize("name", list(COLLATES))
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_collate_fn_that_changes_which_examples_come_is_an_error(
    trained: Trained, name: str, workers: int
) -> None:
    collate, message = COLLATES[name]
    data = TensorDataset(trained.x, trained.y)
    loader = DataLoader(data, 64, collate_fn=collate, num_workers=workers)
    for attack in (None, PGD):
        with pytest.raises(InputError, match=message):
            evaluate(trained.model, loader, attack=attack)


def test_a_collate_fn_of_dicts_is_counted_too(trained: Trained) -> None:
    rows = [{"image": x, "label": int(y)} for x, y in zip(trained.x[:20], trained.y[:20], strict=True)]
    with pytest.raises(InputError, match="8 from 10 examples: 2 are missing; of all 20 examples 4"):
        evaluate(trained.model, DataLoader(rows, 10, collate_fn=drop(2)))  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [lambda x: x.flip(0), lambda x: x[:1].expand_as(x)])
def test_images_of_one_class_keep_their_places_too(trained: Trained, change: Callable) -> None:
    """Their labels tell nothing."""
    data = TensorDataset(trained.x, torch.zeros(200, dtype=torch.int64))

    def collate(rows: list) -> tuple[Tensor, Tensor]:
        x, y = default_collate(rows)
        return change(x), y

    with pytest.raises(InputError, match=r"changed the order|put other examples in the places of 63 of 64"):
        evaluate(trained.model, DataLoader(data, 64, collate_fn=collate))


def test_a_collate_fn_may_make_images_of_its_own(trained: Trained) -> None:
    rows = [((255 * x).byte().permute(1, 2, 0).numpy(), int(y)) for x, y in zip(*trained[1:], strict=True)]

    def collate(rows: list) -> tuple[Tensor, Tensor]:
        x, y = default_collate(rows)
        return x.permute(0, 3, 1, 2) / 255, y

    whole = torch.floor(trained.x * 255) / 255
    report = evaluate(trained.model, DataLoader(rows, 64, collate_fn=collate))  # type: ignore[arg-type]
    assert torch.equal(report.clean.correct, evaluate(trained.model, whole, trained.y).clean.correct)


def test_two_entries_that_are_called_labels_are_refused_where_they_differ(trained: Trained) -> None:
    def rows(other: int) -> list:
        pairs = zip(trained.x[:20], trained.y[:20].tolist(), strict=True)
        return [{"image": x, "label": y, "labels": y + other, "target": "text"} for x, y in pairs]

    assert len(evaluate(trained.model, DataLoader(rows(0), 10)).clean.correct) == 20  # type: ignore[arg-type]
    with pytest.raises(InputError, match="entries 'labels' and 'label' with other values"):
        evaluate(trained.model, DataLoader(rows(1), 10))  # type: ignore[arg-type]


def test_a_collate_fn_may_make_labels_of_its_own(trained: Trained) -> None:
    """From 1 on in the data set: that changes no order."""
    data = TensorDataset(trained.x, trained.y + 1)

    def from_zero(rows: list) -> tuple[Tensor, Tensor]:
        x, y = default_collate(rows)
        return x, y - 1

    report = evaluate(trained.model, DataLoader(data, 64, collate_fn=from_zero))
    assert torch.equal(report.clean.correct, evaluate(*trained, batch_size=64).clean.correct)


@pytest.mark.parametrize(
    ("sampler", "repeated"),
    [
        (lambda data: DistributedSampler(data, 3, 0, shuffle=False), 0),
        (lambda data: [*range(20), 3, -1, -20], 3),
        (lambda data: [*torch.arange(20), torch.tensor(4)], 1),
        (lambda data: RandomSampler(data, replacement=True, num_samples=400), None),
        (lambda data: WeightedRandomSampler([1.0] * 20, 400), None),
    ],
)
def test_an_example_that_comes_twice_is_an_error_that_counts(
    trained: Trained, sampler: Callable[[Any], Any], repeated: int | None
) -> None:
    data = TensorDataset(trained.x[:20], trained.y[:20])
    loader = DataLoader(data, 8, sampler=sampler(data))
    if repeated == 0:
        assert len(evaluate(trained.model, loader).clean.correct) == 7
        return
    with pytest.raises(InputError, match=f"gives {repeated or 380} of its .* examples twice or more"):
        evaluate(trained.model, loader)


def test_an_example_that_comes_twice_by_way_of_a_part_is_an_error() -> None:
    data = TensorDataset(torch.rand(6, 3, 4, 4), torch.arange(6))
    part = Subset(data, [1, 2, -4])
    for repeated in (
        part,
        ConcatDataset([Subset(data, [0, 1]), Subset(data, [2, 1])]),
        Subset(part, [0, -3]),
    ):
        with pytest.raises(InputError, match=r"gives 1 of its . examples twice"):
            evaluate(torch.nn.Flatten(), DataLoader(repeated, 2), num_classes=48)
    apart = ConcatDataset([Subset(data, [0, 1]), Subset(data, [2])])
    assert len(LoaderSource(DataLoader(apart, 2), fixed=True)) == 3


def test_what_is_no_data_set_is_a_sentence() -> None:
    x, y = torch.rand(6, 3, 4, 4), torch.arange(6)
    for given, message in (
        (x.numpy(), "torch.from_numpy"),
        ([(x[:3], y[:3]), (x[3:], y[3:])], "list of batches"),
    ):
        with pytest.raises(InputError, match=message):
            evaluate(torch.nn.Flatten(), given, num_classes=48)


def test_the_padding_of_a_distributed_sampler_is_counted() -> None:
    data = TensorDataset(torch.rand(5, 3, 10, 10), torch.arange(5))
    # Rank 2 of 3: the examples 2 and 5, which is 0 again. Of one rank each comes once; of seven ranks for
    # five examples too.
    padded = [*DistributedSampler(data, 3, 2, shuffle=False), *DistributedSampler(data, 3, 0, shuffle=False)]
    with pytest.raises(InputError, match="gives 1 of its 4 examples twice"):
        evaluate(torch.nn.Flatten(), DataLoader(data, 2, sampler=padded))


def left_out(data: TensorDataset) -> dict[str, tuple[DataLoader, str]]:
    part = SubsetRandomSampler(torch.arange(30))  # type: ignore[arg-type]
    batches = BatchSampler(range(200), 64, drop_last=True)
    return {
        "drop_last": (
            DataLoader(data, 64, drop_last=True),
            r"left out 8 of the data set's 200 examples \(drop_last=True\)",
        ),
        "batch_sampler": (DataLoader(data, batch_sampler=batches), r"left out 8 .*drop_last=True"),
        "sampler": (
            DataLoader(data, 64, sampler=part),
            r"left out 170 of the data set's 200 examples \(its sampler\)",
        ),
    }


@pytest.mark.parametrize("name", ["drop_last", "batch_sampler", "sampler"])
def test_what_a_loader_leaves_out_is_said(trained: Trained, name: str) -> None:
    import re

    loader, note = left_out(TensorDataset(trained.x, trained.y))[name]
    report = evaluate(trained.model, loader, attack=PGD)
    assert [bool(re.search(note, said)) for said in report.notes] == [True]
    assert report.to_json()["notes"] == report.notes
    assert "left out" in report.table()


def test_a_loader_that_leaves_nothing_out_has_nothing_to_say(trained: Trained) -> None:
    data = TensorDataset(trained.x, trained.y)
    for loader in (DataLoader(data, 50, drop_last=True), DataLoader(data, 64, shuffle=True), data):
        assert evaluate(trained.model, loader).notes == []


def test_empty_batches_are_nothing(trained: Trained) -> None:
    loader = DataLoader(TensorDataset(trained.x, trained.y), batch_sampler=[[0, 1], [], [2]])
    assert evaluate(trained.model, loader).clean.labels.tolist() == trained.y[:3].tolist()


class Own(DataLoader):
    def __iter__(self) -> Any:
        for x, y in super().__iter__():
            yield x * 0.5, y


def test_a_loader_whose_iteration_is_its_own_is_said(trained: Trained) -> None:
    (note,) = evaluate(trained.model, Own(TensorDataset(trained.x, trained.y), 64)).notes
    assert "not through its own __iter__" in note


class Noisy(TensorDataset):
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(index)
        return (x + 0.01 * torch.rand(1)).clamp(0, 1), y


def test_passes_over_images_that_change_are_an_error(trained: Trained) -> None:
    """The clean pass and the attack would be of different images."""
    data = Noisy(trained.x, trained.y)
    assert evaluate(trained.model, data, attack=PGD).robust is not None
    with pytest.raises(InputError, match="batch 0 has other images than when it was read before"):
        evaluate_radii(trained.model, data, radii=[0.01, 0.02], attack={"steps": 1})
    with pytest.raises(InputError, match="batch 0 has other images"):
        evaluate(trained.model, DataLoader(data, 64), attack=AutoAttack(trained.model, EPS))


def test_a_shuffled_loader_is_one_order_over_all_radii(trained: Trained) -> None:
    loader = DataLoader(TensorDataset(trained.x, trained.y), 64, shuffle=True)
    report = evaluate_radii(trained.model, loader, radii=[0, 0.01, 0.02], attack={"steps": 1})
    assert report.more["curve"][0]["robust"]["confusion"] == report.clean.to_json()["confusion"]


class Growing(Dataset):
    """Longer in every pass."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y, self.n = x, y, 100

    def __len__(self) -> int:
        self.n += 10
        return self.n

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], int(self.y[index])


def test_the_rows_are_those_of_the_first_look_at_a_loader(trained: Trained) -> None:
    loader = DataLoader(Growing(trained.x, trained.y), 64)
    report = evaluate_radii(trained.model, loader, radii=[0.01, 0.02], attack={"steps": 1})
    n = len(report.clean.correct)
    assert report.clean.labels.tolist() == trained.y[:n].tolist()


class Broken(TensorDataset):
    def __init__(self, x: Tensor, y: Tensor, error: type[Exception]) -> None:
        super().__init__(x, y)
        self.error = error

    def __getitem__(self, index: int) -> Any:
        if index == 150:
            raise self.error("cannot be read")
        return super().__getitem__(index)


@pytest.mark.parametrize("error", [StopIteration, OSError, IndexError])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_an_error_of_the_data_set_is_never_the_end_of_the_data(
    trained: Trained, error: type[Exception], workers: int
) -> None:
    loader = DataLoader(Broken(trained.x, trained.y, error), 64, num_workers=workers)
    with pytest.raises((RuntimeError, OSError, IndexError, InputError)):
        evaluate(trained.model, loader)


def opened(_: int) -> None:
    """As people open a file in each worker."""
    get_worker_info().dataset.scale = 1.0  # type: ignore[union-attr]


class Opened(TensorDataset):
    scale = 0.0

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x * self.scale, y


@pytest.mark.slow
def test_a_worker_reaches_the_data_set_itself(trained: Trained) -> None:
    loader = DataLoader(
        Opened(trained.x, trained.y), 64, num_workers=2, worker_init_fn=opened, persistent_workers=True
    )
    expected = evaluate(*trained, batch_size=64)
    assert torch.equal(evaluate(trained.model, loader).clean.correct, expected.clean.correct)


@pytest.mark.parametrize("ranks", [None, Ranks(0, 1)])
def test_a_loader_of_classes_in_another_order_is_read_as_any_other(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, ranks: Ranks | None
) -> None:
    names = [f"class {c}" for c in range(10)]
    monkeypatch.setattr(trained.model, "classes", names[::-1], raising=False)
    data = TensorDataset(trained.x, 9 - trained.y)
    data.classes = names  # type: ignore[attr-defined]
    report = evaluate(trained.model, DataLoader(data, 64, drop_last=True), ranks=ranks)
    assert report.clean.average == 1
    assert ["left out 8 of" in note for note in report.notes] == [True, False]


def test_loaders_of_ranks_with_other_orders_are_refused() -> None:
    data = TensorDataset(torch.rand(9, 1), torch.arange(9))
    orders = [
        loader_in(LoaderSource(DataLoader(data, 3, sampler=order), True))
        for order in (range(9), range(8, -1, -1))
    ]
    assert orders[0].order != orders[1].order  # type: ignore[union-attr]
    for source in (orders[1], InModelOrder(orders[1], range(9), [str(c) for c in range(9)])):  # type: ignore[arg-type]
        found: list[Any] = []
        ranks = Ranks(0, 2)
        ranks.gather_objects = lambda value, found=found: found.append(value) or [value, value]  # type: ignore
        check_same_work(ranks, torch.nn.Linear(1, 1), source)
        check_same_work(ranks, torch.nn.Linear(1, 1), orders[0])
        assert found[1] != found[3]
