"""Policies that look at the hold-out: FRL at its accuracies, WAT at its losses.

The test set would leak into training.

They change at the end of every epoch that is validated.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cfol_fast.errors import InputError
from cfol_fast.policies.policy import ClassPolicy, EpochFacts, Need, check_at_least_zero

# FRL: the sum of the multipliers of one term is at most this, so that no weight is negative.
MOST_MULTIPLIER = 0.5
SMALLEST_RADIUS, LARGEST_RADIUS = 0.98, 3.0


class FRL(ClassPolicy):
    """Fair robust learning (Xu et al.

    2021): multipliers for classes whose error is more than `tolerance` above the mean.

    One set of multipliers for the clean error, one for the boundary error (clean minus robust accuracy).
    remargin: the radius of a class with a large boundary error grows too. tolerance: None is the authors'
    0.07, or 0.1 without remargin. Its objective is `objectives.NormalisedTrades`.
    """

    needs = frozenset({Need.HOLDOUT_ACCURACIES})
    factors = ("clean", "robust", "radius")
    options = ("remargin", "tolerance", "weight_rate", "radius_rate")
    judges_the_start = True

    def __init__(
        self,
        num_classes: int,
        epochs: int,
        device: Any = None,
        remargin: bool = True,
        tolerance: float | None = None,
        weight_rate: float = 0.05,
        radius_rate: float = 0.2,
    ) -> None:
        super().__init__(num_classes, epochs, device)
        self.remargin = check_flag("remargin", remargin)
        self.tolerance = (0.07 if remargin else 0.1) if tolerance is None else tolerance
        check_at_least_zero(tolerance=self.tolerance, weight_rate=weight_rate, radius_rate=radius_rate)
        self.weight_rate, self.radius_rate = weight_rate, radius_rate
        self.clean, self.boundary, self.margin = torch.zeros(3, num_classes, dtype=torch.float64).unbind()

    def change(self, facts: EpochFacts) -> bool:
        if facts.holdout_clean is None or facts.holdout_robust is None:
            return False
        clean = self._excess(1 - facts.holdout_clean)
        boundary = self._excess(facts.holdout_clean - facts.holdout_robust)
        self.clean.copy_(projected(self.clean + self.weight_rate * clean))
        self.boundary.copy_(projected(self.boundary + 2 * self.weight_rate * boundary))
        self.margin += self.radius_rate * boundary
        for name, multipliers in (("clean", self.clean), ("robust", self.boundary)):
            # k times the release's weight 1/k + m - mean(m): the objective divides by the sum of the batch's
            # weights.
            weight = 1 + self.num_classes * (multipliers - multipliers.mean())
            getattr(self.view, name).copy_(weight)
        if self.remargin and self.view.radius is not None:
            self.view.radius.copy_((2 * self.margin).exp().clamp(SMALLEST_RADIUS, LARGEST_RADIUS))
        return True

    def _excess(self, errors: Tensor) -> Tensor:
        """How much more than tolerated each class errs; nothing for a class without images."""
        return (errors - errors.nanmean() - self.tolerance).nan_to_num(0.0)

    def memory(self) -> dict[str, Tensor]:
        return {"clean multipliers": self.clean, "boundary multipliers": self.boundary, "margin": self.margin}


class WAT(ClassPolicy):
    """Worst-class adversarial training (Li and Liu 2023): Hedge over k classes and the mean, by cumulated
    hold-out losses.

    A class's weight is k p_y + p_mean. released: k p_y + k p_mean, as in the authors' code, which weighs the
    mean's expert k times.
    """

    needs = frozenset({Need.HOLDOUT_LOSSES})
    factors = ("weight",)
    options = ("hedge_rate", "released")

    def __init__(
        self,
        num_classes: int,
        epochs: int,
        device: Any = None,
        hedge_rate: float = 0.1,
        released: bool = False,
    ) -> None:
        check_at_least_zero(hedge_rate=hedge_rate)
        super().__init__(num_classes, epochs, device)
        self.hedge_rate, self.released = hedge_rate, check_flag("released", released)
        self.costs = torch.zeros(num_classes + 1, dtype=torch.float64)

    def change(self, facts: EpochFacts) -> bool:
        if facts.holdout_losses is None or facts.holdout_loss is None or self.view.weight is None:
            return False
        mean = torch.tensor([facts.holdout_loss], dtype=torch.float64)
        # A class without images is taken for an average one.
        losses = torch.where(facts.holdout_losses.isnan(), mean, facts.holdout_losses)
        self.costs += torch.cat([losses, mean])
        p = (self.hedge_rate * self.costs).softmax(0)
        of_the_mean = self.num_classes if self.released else 1
        self.view.weight.copy_(self.num_classes * p[:-1] + of_the_mean * p[-1])
        return True

    def memory(self) -> dict[str, Tensor]:
        return {"costs": self.costs}


def projected(multipliers: Tensor) -> Tensor:
    """Not negative, and scaled to a sum of at most `MOST_MULTIPLIER`."""
    clamped = multipliers.clamp(min=0)
    return clamped * (MOST_MULTIPLIER / clamped.sum()).clamp(max=1)


def check_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{name} must be true or false, got {value!r}")
    return value
