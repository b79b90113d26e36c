"""What the steps of an epoch count on the device; read at the log points."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cfol_fast import ops
from cfol_fast.ranks import Ranks

# The value of `EpochCounts.first_bad` while every loss was finite.
NEVER = 2**62


class EpochCounts:
    """What the steps count on the device: themselves, per class examples and errors, the sum of the losses,
    the first bad loss.

    Of many ranks each counts its own slots; `over_ranks` and `state_dict` add them up, so every rank asks for
    them at the same time.
    """

    def __init__(self, num_classes: int, device: torch.device, ranks: Ranks | None = None) -> None:
        self.ranks = ranks or Ranks(0, 1)
        self.number = torch.zeros((), dtype=torch.int64, device=device)
        self.tally = ops.new_tally(num_classes, device)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.first_bad = torch.full((), NEVER, dtype=torch.int64, device=device)
        self.fault = ops.new_fault(device)

    def add(self, y: Tensor, wrong: Tensor, loss: Tensor) -> None:
        """The next step. y, wrong: (B,); loss: a scalar."""
        ops.class_tally_(self.tally, y, wrong, self.fault)
        loss = loss.double()
        self.loss_sum += loss
        bad = torch.where(torch.isfinite(loss), NEVER, self.number)
        self.first_bad.copy_(torch.minimum(self.first_bad, bad))
        self.number += 1

    def begin_epoch(self) -> None:
        self.tally.zero_()
        self.loss_sum.zero_()

    def over_ranks(self) -> tuple[Tensor, Tensor]:
        """(the tally, the sum of the losses) of the whole batch."""
        if self.ranks.size == 1:
            return self.tally, self.loss_sum
        return self.ranks.sum(self.tally.clone()), self.ranks.sum(self.loss_sum.clone())

    def state_dict(self) -> dict[str, Any]:
        tally, loss_sum = self.over_ranks()
        return {"tally": tally, "loss_sum": loss_sum, "first_bad": self.first_bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first_bad.copy_(state["first_bad"])
        for name in ("tally", "loss_sum"):
            # The sums of all ranks go on in the first.
            getattr(self, name).copy_(state[name] if self.ranks.is_first else torch.zeros_like(state[name]))
