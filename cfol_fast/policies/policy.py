"""What a class policy is: it keeps factors for each class, and changes them at the end of an epoch.

The training step reads the factors from tensors that are changed in place, so that a step that was captured
sees them. What a policy must be told is in `needs` and is checked before training. The radius of a test is
never scaled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import torch
from torch import Tensor

from cfol_fast.errors import InputError
from cfol_fast.ranks import Ranks


class Need(Enum):
    """What a policy must be told."""

    HOLDOUT_ACCURACIES = "the hold-out's accuracies"
    HOLDOUT_LOSSES = "the hold-out's losses"
    # The policy's `observe` is called at every step.
    TRAINING_CONFUSION = "the training images' predictions"


FROM_HOLDOUT = frozenset({Need.HOLDOUT_ACCURACIES, Need.HOLDOUT_LOSSES})


@dataclass(frozen=True)
class ClassView:
    """The factors of each class, (k,) float32 on the device; 1 is neutral.

    None: the policy leaves this factor alone, at no cost.

    weight: of the whole loss. clean, robust: of the two terms of a TRADES-like loss. radius: of the training
    attack's eps.
    """

    weight: Tensor | None = None
    clean: Tensor | None = None
    robust: Tensor | None = None
    radius: Tensor | None = None

    def of(self, name: str, y: Tensor) -> Tensor | None:
        """One factor of each example: (B,), or None. y: (B,) int64."""
        factor = getattr(self, name)
        return None if factor is None else factor[y]


@dataclass(frozen=True)
class EpochFacts:
    """What is known at the end of an epoch.

    Tensors are (k,) float64 on the CPU, NaN for a class without examples.

    epoch: epochs that are finished. class_error: of the training images under attack, in this epoch.
    holdout_*: None in an epoch without validation; the losses only for a policy that needs them.
    holdout_loss: over all images.
    """

    epoch: int
    class_error: Tensor
    holdout_clean: Tensor | None = None
    holdout_robust: Tensor | None = None
    holdout_losses: Tensor | None = None
    holdout_loss: float | None = None


class ClassPolicy(ABC):
    """needs: see `Need`. factors: those of the view that it changes. options: the method's parameters that
    its constructor takes.

    step_follows: whether the attack's step is scaled with the radius. judges_the_start: whether it acts
    before the first epoch too, in a run that starts from trained weights. acted: how often the factors were
    changed.
    sums: those of the memory that each rank adds up over its own images; every rank calls `epoch_end` and
    `state_dict`, where they are added up over the ranks.
    """

    needs: ClassVar[frozenset[Need]] = frozenset()
    factors: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[tuple[str, ...]] = ()
    step_follows: ClassVar[bool] = True
    judges_the_start: ClassVar[bool] = False
    sums: ClassVar[tuple[str, ...]] = ()
    ranks = Ranks(0, 1)
    in_shards = False

    def __init__(self, num_classes: int, epochs: int, device: torch.device | str | None = None) -> None:
        self.num_classes, self.epochs = num_classes, epochs
        self.view = ClassView(**{name: torch.ones(num_classes, device=device) for name in self.factors})
        self.acted = 0

    def join(self, ranks: Ranks, in_shards: bool) -> None:
        """Before the first step: takes its place among the processes of a run. in_shards: whether a batch
        comes in several parts.
        """
        self.ranks, self.in_shards = ranks, in_shards

    def radii(self, y: Tensor, eps: float | Tensor, step: float | Tensor | None) -> dict[str, Any]:
        """The radius and step of each example, as an attack takes them; nothing where the policy leaves the
        radius alone.
        """
        scale = self.view.of("radius", y)
        if scale is None:
            return {}
        return {"eps": scale * eps, "step": scale * step if self.step_follows and step is not None else step}

    def observe(self, y: Tensor, logits: Tensor) -> None:
        """A training batch: y (B,), adversarial logits (B, k).

        On the device, without reading anything back.
        """
        return

    def epoch_end(self, facts: EpochFacts) -> None:
        """Changes the factors for the epochs that follow."""
        self.acted += self.change(facts)

    @abstractmethod
    def change(self, facts: EpochFacts) -> bool:
        """Changes the factors in place; False if this epoch's end changes none."""

    def review(self) -> list[str]:
        """What a user should be told at the end of a run."""
        if self.acted or not self.factors:
            return []
        return [
            f"the class factors never changed: all {self.epochs} epochs ended before {type(self).__name__}"
            " acted, so this is its base method"
        ]

    def state_dict(self) -> dict[str, Any]:
        found = {name: t.clone() for name, t in self._tensors().items()}
        for name in self.sums:
            self.ranks.sum(found[name])
        return {"acted": self.acted, **found}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.acted = int(state["acted"])
        for name, tensor in self._tensors().items():
            if state[name].shape != tensor.shape:
                raise InputError(
                    f"the policy's {name} has the shape {tuple(state[name].shape)}, expected"
                    f" {tuple(tensor.shape)}"
                )
            # The sums of all ranks go on in the first.
            elsewhere = name in self.sums and not self.ranks.is_first
            tensor.copy_(torch.zeros_like(tensor) if elsewhere else state[name])

    def _tensors(self) -> dict[str, Tensor]:
        """Everything that has to be saved, by its name in a checkpoint."""
        return {**{name: getattr(self.view, name) for name in self.factors}, **self.memory()}

    def memory(self) -> dict[str, Tensor]:
        """Tensors that a policy keeps beside its factors."""
        return {}


class Neutral(ClassPolicy):
    """No factors at all: every method without a class policy."""

    def change(self, facts: EpochFacts) -> bool:
        return False


def begin_epoch(share: float, epochs: int) -> int:
    """The epoch after which a schedule begins, as a share of the run, so that it acts in a short run too."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        raise InputError(f"begin must be a share of the run in [0, 1), got {share!r}")
    return max(1, round(share * epochs))


def check_at_least_zero(**values: Any) -> None:
    """Refuses, by its name, what is no number of at least 0."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise InputError(f"{name} must be a number of at least 0, got {value!r}")
