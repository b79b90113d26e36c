"""Policies that look at the training images themselves: CFA at their errors, DAFA at what they are taken for.

CFA gives hard classes a smaller radius, DAFA a larger one: the two papers disagree, and a fair comparison
needs both.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from cfol_fast.policies.policy import ClassPolicy, EpochFacts, Need, begin_epoch, check_at_least_zero

# DAFA's release has no lower bound: a class with many harder neighbours could get a negative radius.
SMALLEST_FACTOR = 0.1
# With several shards a sum of probabilities is rounded to multiples of its inverse: float64 adds those up
# exactly, in any order.
ROUNDING = 2.0**32


class CFA(ClassPolicy):
    """Class-wise calibrated fair adversarial training (Wei et al.

    2023): radius `offset` + t_y, t_y the training robust accuracy.

    The accuracy is that of the last epoch, under the class's own radius; the attack's step stays. begin: a
    share of the run.
    """

    factors: ClassVar[tuple[str, ...]] = ("radius",)
    options = ("begin", "offset")
    step_follows = False

    def __init__(
        self, num_classes: int, epochs: int, device: Any = None, begin: float = 0.05, offset: float = 0.5
    ) -> None:
        check_at_least_zero(offset=offset)
        super().__init__(num_classes, epochs, device)
        self.begin, self.offset = begin_epoch(begin, epochs), offset

    def change(self, facts: EpochFacts) -> bool:
        if facts.epoch < self.begin:
            return False
        factor = self.offset + (1 - facts.class_error)
        for name in self.factors:
            own = getattr(self.view, name)
            # A class that was not drawn in this epoch keeps its factor.
            own.copy_(torch.where(factor.isnan(), own.cpu(), factor))
        return True


class CFATrades(CFA):
    """CFA on TRADES: the same factor also multiplies beta. Its objective is `objectives.BalancedTrades`."""

    factors = ("robust", "radius")


class DAFA(ClassPolicy):
    """Distance-aware fair adversarial training (Lee et al.

    2024): once, after `begin`, classes near an easier one gain from it.

    The similarity of two classes is the mean probability that attacked training images of the one give to the
    other, in the last epoch before the change. Weight, radius and step of a class all get the same factor.
    """

    needs = frozenset({Need.TRAINING_CONFUSION})
    factors = ("weight", "radius")
    options = ("begin", "strength")
    sums = ("predicted", "counts")

    def __init__(
        self,
        num_classes: int,
        epochs: int,
        device: Any = None,
        begin: float = 70 / 110,
        strength: float = 1.0,
    ) -> None:
        check_at_least_zero(strength=strength)
        super().__init__(num_classes, epochs, device)
        self.begin, self.strength = begin_epoch(begin, epochs), strength
        options: dict[str, Any] = {"dtype": torch.float64, "device": device}
        # Sums over this epoch's images.
        self.predicted, self.counts = (
            torch.zeros(num_classes, num_classes, **options),
            torch.zeros(num_classes, **options),
        )

    def observe(self, y: Tensor, logits: Tensor) -> None:
        # A product with the members' matrix adds up in the same order at every repetition, unlike a scatter
        # of floats.
        members = (torch.arange(self.num_classes, device=y.device).unsqueeze(1) == y).to(torch.float32)
        found = members @ logits.float().softmax(1)
        self.predicted += (found.double() * ROUNDING).round() / ROUNDING if self.in_shards else found
        self.counts += members.sum(1)

    def change(self, facts: EpochFacts) -> bool:
        acts = facts.epoch == self.begin
        if acts:
            self.ranks.sum(self.predicted)
            self.ranks.sum(self.counts)
            similarity = (self.predicted / self.counts.clamp(min=1).unsqueeze(1)).cpu()
            factor = distance_weights(similarity, self.strength)
            for name in self.factors:
                getattr(self.view, name).copy_(factor)
        self.predicted.zero_()
        self.counts.zero_()
        return acts

    def memory(self) -> dict[str, Tensor]:
        return {"predicted": self.predicted, "counts": self.counts}


class DAFATrades(DAFA):
    """DAFA on TRADES: the factor weights the clean term, the divergence stays as it is."""

    factors = ("clean", "radius")


def distance_weights(similarity: Tensor, strength: float) -> Tensor:
    """(k, k) mean probabilities, a row per true class -> (k,) factors.

    A class takes from every easier one, as much as it is like it.
    """
    easy = similarity.diagonal()
    harder = easy.unsqueeze(1) < easy.unsqueeze(0)
    taken = torch.where(harder, similarity * easy.unsqueeze(0), 0)
    return (1 + strength * (taken.sum(1) - taken.sum(0))).clamp(min=SMALLEST_FACTOR)
