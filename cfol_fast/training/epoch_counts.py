"""What the steps of an epoch count on the device; read at the log points."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cfol_fast import ops

# The value of `EpochCounts.first_bad` while every loss was finite.
NEVER = 2**62


class EpochCounts:
    """What the steps count on the device: themselves, per class examples and errors, the sum of the losses, the first bad loss."""

    def __init__(self, num_classes: int, device: torch.device) -> None:
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

    def state_dict(self) -> dict[str, Any]:
        return {"tally": self.tally, "loss_sum": self.loss_sum, "first_bad": self.first_bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])
