"""No result is there before its example came: a row that nobody filled in, or that two filled in, is an error
with its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from cfol_fast.errors import InputError
from cfol_fast.evaluation import AutoAttack, ClassAccuracy, TensorSource, evaluate, evaluate_radii
from cfol_fast.evaluation.autoattack import _State
from cfol_fast.evaluation.rows import MISSING, Rows
from cfol_fast.ranks import Ranks
from cfol_fast.runs import predictions
from tests.attacks.small_models import EPS, Trained

PGD = {"eps": EPS, "steps": 1}
Batches = list[tuple[Tensor, Tensor, Tensor]]


class Changed(TensorSource):
    """A source whose batches go through `change`, which may depend on how often they were read."""

    def __init__(self, x: Tensor, y: Tensor, change: Callable[[Batches, int], Batches]) -> None:
        super().__init__(x, y)
        self.change, self.read = change, 0

    def batches(self, batch_size: int, first: int = 0, every: int = 1) -> Iterator[tuple]:
        found = list(super().batches(batch_size, first, every))
        self.read += 1
        yield from self.change(found, self.read)


def without_rows(batches: Batches, _: int) -> Batches:
    idx, x, y = batches[2]
    return [*batches[:2], (idx[3:], x[3:], y[3:]), *batches[3:]]


CHANGES = {
    "a row missing": (without_rows, "3 of 200 examples did not come, the first in batch 2"),
    "a batch missing": (lambda all_, _: all_[:-1], "8 of 200 examples did not come, the first in batch 3"),
    "a batch twice": (
        lambda all_, _: [*all_, all_[0]],
        "64 of 200 examples came more than once, the first in batch 0",
    ),
    "numbers from another source": (
        lambda all_, _: [(idx + 190, x, y) for idx, x, y in all_],
        "batch 0: its examples have the numbers 190..253, the source has 200",
    ),
    "more numbers than images": (
        lambda all_, _: [(idx, x[:1], y[:1]) for idx, x, y in all_],
        "batch 0: there are 1 results for 64 examples",
    ),
    "a generator that is used up": (
        lambda all_, n: all_ if n == 1 else [],
        "200 of 200 examples did not come",
    ),
}


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "a generator that is used up"])
@pytest.mark.parametrize("attack", [None, PGD], ids=["clean", "attacked"])
def test_what_a_source_leaves_out_or_repeats_is_an_error_with_its_batch(
    trained: Trained, name: str, attack: dict | None
) -> None:
    change, message = CHANGES[name]
    with pytest.raises(InputError, match=message):
        evaluate(trained.model, Changed(trained.x, trained.y, change), attack=attack, batch_size=64)


def test_a_source_that_is_read_again_must_give_all_again(trained: Trained) -> None:
    change, message = CHANGES["a generator that is used up"]
    source = Changed(trained.x, trained.y, change)
    with pytest.raises(InputError, match=message):
        evaluate_radii(trained.model, source, radii=[0.01, 0.02], attack={"steps": 1})
    with pytest.raises(InputError, match=message):
        evaluate(
            trained.model, Changed(trained.x, trained.y, change), attack={"kind": "autoattack", "eps": EPS}
        )


def test_a_second_reading_with_other_labels_is_an_error(trained: Trained) -> None:
    source = Changed(
        trained.x, trained.y, lambda all_, n: all_ if n == 1 else [(idx, x, y.flip(0)) for idx, x, y in all_]
    )
    with pytest.raises(InputError, match="batch 0 has other labels than when it was read before"):
        evaluate(trained.model, source, attack={"kind": "autoattack", "eps": EPS})


class Shuffled(TensorSource):
    def batches(self, batch_size: int, first: int = 0, every: int = 1) -> Iterator[tuple]:
        yield from reversed(list(super().batches(batch_size, first, every)))


def test_a_source_may_give_its_batches_in_any_order(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}
    monkeypatch.setattr(AutoAttack, "run", lambda self, x, y, clean, *_: seen.update(x=x, y=y) or clean)
    report = evaluate(trained.model, Shuffled(trained.x, trained.y), attack=AutoAttack(trained.model, EPS))
    assert torch.equal(seen["x"], trained.x)
    assert torch.equal(seen["y"], trained.y)
    assert torch.equal(report.clean.correct, evaluate(*trained).clean.correct)


class OneOfTwo(Ranks):
    """The other rank computed `theirs` of the rows."""

    def __init__(self, theirs: Tensor) -> None:
        super().__init__(0, 2)
        self.theirs = iter([theirs * 5, theirs])

    def sum(self, values: Tensor) -> Tensor:
        return values + next(self.theirs)


@pytest.mark.parametrize(
    ("mine", "theirs", "message"),
    [
        ([0, 1], [0, 0, 1, 1], None),
        ([0, 1], [0, 0, 1, 0], "1 of 4 examples did not come, the first in batch 1"),
        ([0, 1], [0, 1, 1, 1], "1 of 4 examples came more than once, the first in batch 0"),
    ],
)
def test_a_rank_that_comes_up_short_or_repeats_is_seen(mine: list, theirs: list, message: str | None) -> None:
    rows = Rows(4)
    rows.fill(torch.tensor(mine), torch.tensor([7, 8]), 0)
    ranks = OneOfTwo(torch.tensor(theirs))
    if message is None:
        assert rows.whole(ranks, "all", lambda row: row // 2).tolist() == [7, 8, 5, 5]
        return
    with pytest.raises(InputError, match=message):
        rows.whole(ranks, "all", lambda row: row // 2)


def test_a_row_starts_as_no_class_and_no_loss() -> None:
    for dtype in (torch.int64, torch.float64):
        rows = Rows(3, dtype)
        assert rows.values.tolist() == [MISSING] * 3
        rows.fill(torch.tensor([0, 1, 2]), torch.tensor([1, MISSING, 1]), 0)
        with pytest.raises(InputError, match="batch 1 has no result for example 1"):
            rows.whole(Ranks(world_size=1), "all", lambda row: row)


def test_autoattack_ends_no_attack_with_an_example_that_it_did_not_attack() -> None:
    y = torch.zeros(6, dtype=torch.int64)
    state = _State({}, y.clone(), y)
    state.attacked.fill(torch.arange(4), torch.ones(4), 0)
    with pytest.raises(
        InputError, match=r"AutoAttack's square: 2 of 6 examples did not come, the first in batch 1"
    ):
        state.next_attack(y, "square", batch_size=4)
    state.attacked.fill(torch.arange(4, 6), torch.ones(2), 1)
    state.next_attack(y, "square", batch_size=4)
    assert state.attack == 1


def test_a_batch_of_autoattack_with_too_few_results_is_an_error(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One result for a batch would be every row's."""
    monkeypatch.setattr(AutoAttack, "_adversary", lambda *_: object())
    monkeypatch.setattr(AutoAttack, "_attack", lambda *_: ([3], []))
    with pytest.raises(InputError, match=r"batch 0: there are 1 results for \d+ examples"):
        evaluate(*trained, attack=AutoAttack(trained.model, EPS), batch_size=64)


@pytest.mark.parametrize(("labels", "predicted"), [([0, 1], [0, -1]), ([0, 1], [0, 2]), ([-1, 1], [0, 1])])
def test_figures_are_not_made_of_what_is_no_class(labels: list, predicted: list) -> None:
    with pytest.raises(InputError, match=r"must be 0\.\.1 for 2 classes"):
        ClassAccuracy(torch.tensor(labels), torch.tensor(predicted), ["a", "b"])
    with pytest.raises(InputError, match="2 labels"):
        ClassAccuracy(torch.tensor([0, 1]), torch.tensor([0]), ["a", "b"])


@pytest.mark.parametrize("classes", [[0, -1], [0, 2**16]])
def test_predictions_are_not_packed_with_what_is_no_class(classes: list) -> None:
    with pytest.raises(InputError, match="from 0 to 65,535"):
        predictions.pack(classes)


def test_an_attack_that_fails_in_the_middle_gives_no_figures(trained: Trained) -> None:
    calls = []

    def attack(x: Tensor, y: Tensor) -> Tensor:
        calls.append(len(x))
        if len(calls) == 2:
            raise RuntimeError("out of luck")
        return x

    with pytest.raises(RuntimeError, match="out of luck"):
        evaluate(*trained, attack=attack, batch_size=64)
    assert isinstance(trained.model, nn.Module)
    assert not trained.model.training
