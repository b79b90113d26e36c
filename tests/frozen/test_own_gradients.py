"""Models that define a gradient of their own (autograd.Function): the attack follows it, it is not lost by
tracing.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cfol_fast import PGD
from tests.attacks.small_models import EPS, Trained


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x * 32).round() / 32

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class WithSetup(StraightThrough):
    @staticmethod
    def forward(x: Tensor) -> Tensor:  # type: ignore[override]
        return (x * 32).round() / 32

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass


class Rounding(nn.Module):
    def __init__(self, model: nn.Module, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, x: Tensor) -> Tensor:
        return self.model(self.function.apply(x))


@pytest.mark.parametrize("function", [StraightThrough, WithSetup])
@pytest.mark.slow
def test_the_attack_follows_a_straight_through_gradient(
    trained: Trained, function: type[torch.autograd.Function]
) -> None:
    model = Rounding(trained.model, function).eval()
    fast, plain = (
        (model(PGD(model, eps=EPS, steps=5, fast=fast)(trained.x, trained.y)).argmax(1) == trained.y)
        .float()
        .mean()
        for fast in (True, False)
    )
    assert fast == plain
    assert fast < (model(trained.x).argmax(1) == trained.y).float().mean() - 0.1
