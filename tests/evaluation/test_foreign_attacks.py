"""Attacks that are not ours: `evaluate` and `gallery` call them as their own examples do, and check what they
return.
"""

from __future__ import annotations

import random
import warnings
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cfol_fast import data
from cfol_fast.data.source import TensorSource
from cfol_fast.errors import InputError
from cfol_fast.evaluation import evaluate, gallery
from cfol_fast.evaluation.sharing import batches_of_rank
from cfol_fast.ranks import Ranks
from tests.attacks.small_models import EPS, SmallNet, Trained


class ForeignFGSM:
    """Written as torchattacks writes them: no `enable_grad` of its own, images flattened by `view`, training
    mode left behind.
    """

    def __init__(self, model: SmallNet) -> None:
        self.model = model

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        self.model.eval()
        x = x.requires_grad_()
        grad = torch.autograd.grad(F.cross_entropy(self.model(x), y), x)[0]
        assert x.view(len(x), -1).shape[0] == len(y)
        self.model.train()
        return (x + EPS * grad.sign()).clamp(0, 1)


def colour_source(trained: Trained) -> data.ResidentSource:
    pixels = (trained.x * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
    return data.ResidentSource(data.ImageSet(pixels, trained.y, [str(c) for c in range(10)]))


def test_it_may_differentiate_and_view(trained: Trained) -> None:
    report = evaluate(trained.model, colour_source(trained), attack=ForeignFGSM(trained.model))
    assert report.robust.average < report.clean.average - 0.1
    assert report.attacks[0][0]["kind"] == "ForeignFGSM"


def test_the_model_predicts_in_eval_mode_after_it(trained: Trained) -> None:
    training, calm = (evaluate(*trained, attack=attack) for attack in (ForeignFGSM(trained.model), None))
    assert torch.equal(training.clean.correct, calm.clean.correct)
    again = evaluate(*trained, attack=ForeignFGSM(trained.model), batch_size=64)
    assert torch.equal(again.robust.correct, training.robust.correct)
    assert not trained.model.training


def test_it_cannot_change_the_images_that_others_are_given(trained: Trained) -> None:
    def spoiling(x: Tensor, y: Tensor) -> Tensor:
        return x.zero_()

    report = evaluate(*trained, attack=[spoiling, {"kind": "none"}])
    assert torch.equal(report.attacks[1][1].correct, report.clean.correct)


def test_a_gallery_takes_it_too(trained: Trained) -> None:
    shown = gallery(trained.model, colour_source(trained), ForeignFGSM(trained.model), class_index=3)
    assert len(shown["examples"]) == 6


def test_a_gallery_refuses_autoattack_by_name(trained: Trained) -> None:
    with pytest.raises(InputError, match="AutoAttack works on a whole data set"):
        gallery(trained.model, colour_source(trained), {"kind": "autoattack", "eps": EPS}, class_index=3)


@pytest.mark.parametrize(
    ("attack", "complaint"),
    [
        (lambda x, y: x[:1], "must return images of shape"),
        (lambda x, y: (x, y), "got tuple"),
        (lambda x, y: x * 255, "the result of the attack .*got values from"),
        (lambda x, y: x / 0 * 0, "got NaN"),
    ],
)
def test_what_it_returns_is_checked(trained: Trained, attack: object, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        evaluate(*trained, attack=attack)


class Library:
    """An attack object of another library."""

    def __init__(self, per_example: bool | None = None) -> None:
        if per_example is not None:
            self.per_example = per_example

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return x


def function(x: Tensor, y: Tensor) -> Tensor:
    return x


def independent(x: Tensor, y: Tensor) -> Tensor:
    return x


independent.per_example = True  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("attack", "shared"),
    [
        (Library(), False),
        (Library(per_example=True), True),
        (Library(per_example=False), False),
        (function, False),
        (independent, True),
        (partial(function), False),
    ],
)
def test_an_attack_of_others_is_shared_only_where_it_says_that_it_may(attack: object, shared: bool) -> None:
    source = TensorSource(torch.zeros(6, 1, 2, 2), torch.zeros(6, dtype=torch.int64))
    found = []
    for rank in (0, 1):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            batches = batches_of_rank(Ranks(rank, 2), source, 2, [attack])
            found.append([number for number, _ in batches])
        assert len(said) == (not shared and rank == 0)
    assert found == ([[0, 2], [1]] if shared else [[0, 1, 2], []])


def test_everybodys_generators_go_on_as_if_it_had_not_drawn(trained: Trained) -> None:
    def drawing(x: Tensor, y: Tensor) -> Tensor:
        return x * (torch.rand(1) * np.random.random() * random.random()).float()

    def drawn() -> tuple[float, float, float]:
        return float(torch.rand(1)), np.random.random(), random.random()

    def seed() -> None:
        torch.manual_seed(1), np.random.seed(1), random.seed(1)

    seed()
    wanted = drawn()
    seed()
    evaluate(*trained, attack=drawing)
    assert drawn() == wanted


def test_an_attack_that_writes_to_its_images_and_labels_changes_nothing_else(trained: Trained) -> None:
    """A targeted attack of a library counts its labels up in place; the next attack has the true ones."""

    def writes(x: Tensor, y: Tensor) -> Tensor:
        y.add_(1).remainder_(10)
        return x.mul_(0.9)

    model, x, y = trained.model, trained.x[:40].clone(), trained.y[:40].clone()
    pgd = {"eps": EPS, "steps": 2}
    alone, after = evaluate(model, x, y, pgd), evaluate(model, x, y, [writes, pgd])
    assert torch.equal(after.attacks[1][1].correct, alone.robust.correct)
    assert torch.equal(x, trained.x[:40])
    assert torch.equal(y, trained.y[:40])
