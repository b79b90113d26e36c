"""Samplers that learn nothing: uniform without replacement (ERM), and a fixed class distribution (the two-run
baseline).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cfol_fast import ops
from cfol_fast.errors import InputError
from cfol_fast.ranks import Ranks
from cfol_fast.sampling.classes import classes_of, distribution
from cfol_fast.sampling.index_sampler import IndexSampler, Ticket, checked_gamma, checked_state


class UniformSampler(IndexSampler):
    """Every example once per epoch, in a new order each time; a batch may hold the end of one epoch and the
    start of the next.

    n: the number of examples. rank and world_size, or process_group: as for `ClassSampler`.
    """

    def __init__(
        self,
        n: int,
        seed: int = 0,
        device: torch.device | str | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        process_group: Any = None,
    ) -> None:
        super().__init__(n, seed, device, Ranks(rank, world_size, process_group))
        # How many examples of the current order have been drawn: (1,) int64.
        self._position = torch.zeros(1, dtype=torch.int64, device=self.device)

    def _draw(self, n: int) -> Tensor:
        drawn = ops.permutation(self.rng, self.size, self._position, n)
        self._position += n
        # The random state counts epochs, where other samplers count draws.
        self.rng[1:].add_(self._position // self.size)
        self._position %= self.size
        return drawn

    def update(self, y: Tensor, loss: Tensor, p: Tensor | Ticket | None = None) -> None:
        """There is nothing to learn; the ticket of another batch is refused as by the samplers that do."""
        if isinstance(p, Ticket):
            self.take_back(p, y, loss)

    def observe(self, idx: Tensor, y: Tensor, loss: Tensor, ticket: Tensor | None) -> None:
        """There is nothing to learn."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "kind": "uniform",
            "size": self.size,
            "rng": self.rng.clone(),
            "position": self._position.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = checked_state(state, self.state_dict())
        position = state["position"]
        if not position.is_meta and not 0 <= int(position) < self.size:
            raise InputError(
                f"the state's position must be from 0 to {self.size - 1}, got {int(position)}: it is damaged"
            )
        self.rng.copy_(state["rng"])
        self._position.copy_(position)


class FixedClassSampler(IndexSampler):
    """Classes i.i.d. from one distribution, then an example uniformly within its class.

    labels, rank, world_size, process_group: as for `ClassSampler`. p: "uniform", "empirical" or k
    probabilities.
    """

    def __init__(
        self,
        labels: Any,
        p: str | Sequence[float] | Tensor = "uniform",
        seed: int = 0,
        device: torch.device | str | None = None,
        *,
        num_classes: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        process_group: Any = None,
    ) -> None:
        self.classes = classes_of(labels, num_classes, device)
        ranks = Ranks(rank, world_size, process_group)
        super().__init__(self.classes.size, seed, self.classes.offsets.device, ranks)
        self._p = distribution(p, self.classes, "p")
        self._w = torch.zeros_like(self._p)

    @property
    def p(self) -> Tensor:
        return self._p

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "num_classes": self.classes.count}

    def _draw(self, n: int) -> Tensor:
        # With gamma = 1 the bandit draws from its base alone.
        offsets, members = self.classes.offsets, self.classes.members
        return ops.exp3_draw(self._w, self._p, 1.0, offsets, members, self.rng, n)[0]

    def update(self, y: Tensor, loss: Tensor, p: Tensor | Ticket | None = None) -> None:
        """There is nothing to learn; the ticket of another batch is refused as by the samplers that do."""
        if isinstance(p, Ticket):
            self.take_back(p, y, loss)

    def _labels_of(self, ticket: Ticket) -> Tensor | None:
        return self.classes.labels[ticket.idx]

    def observe(self, idx: Tensor, y: Tensor, loss: Tensor, ticket: Tensor | None) -> None:
        """There is nothing to learn."""

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "fixed", "size": self.size, "rng": self.rng.clone(), "p": self._p.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = checked_state(state, self.state_dict())
        self.rng.copy_(state["rng"])
        self._p = state["p"].to(self.device, copy=True)


def two_run_distribution(accuracies: Sequence[float] | Tensor, gamma: float = 0.5) -> Tensor:
    """The second run's class distribution in the paper's naive baseline: gamma / k + (1 - gamma) *
    softmax(-accuracies).

    accuracies: (k,), the robust accuracy of each class, in [0, 1], after a first run.
    """
    gamma = checked_gamma(gamma)
    accuracies = torch.as_tensor(accuracies, dtype=torch.float64)
    if accuracies.dim() != 1 or not bool(((accuracies >= 0) & (accuracies <= 1)).all()):
        raise ValueError(f"accuracies must be a vector of numbers in [0, 1], got {accuracies.tolist()}")
    return gamma / accuracies.numel() + (1 - gamma) * torch.softmax(-accuracies, dim=0)
