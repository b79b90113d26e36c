"""Attacks that are not ours: `evaluate` and `gallery` call them as their own examples do, and check what they return."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cfol_fast import data
from cfol_fast.errors import InputError
from cfol_fast.evaluation import evaluate, gallery
from tests.attacks.small_models import EPS, SmallNet, Trained


class ForeignFGSM:
    """Written as torchattacks writes them: no `enable_grad` of its own, images flattened by `view`, training mode left behind."""

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
