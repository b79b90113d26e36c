"""One training step: attack, objective, optimiser, feedback. Nothing in it reads a value back from the device.

What the log needs (error counts of each class, the sum of the losses, the first step whose loss was not finite) is
gathered on the device and read at the log points.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast import ops
from cfol_fast.attacks import Attack
from cfol_fast.objectives import Batch, Objective
from cfol_fast.sampling import IndexSampler

Ticket = Tensor | None
NEVER = 2**62  # "the first bad step" while there is none


class DrawQueue:
    """Between sampler and source: keeps what each batch was drawn with until the batch comes back.

    A source may draw ahead (FFCV's lag). The sampler's update needs the p that drew the batch at hand, not the latest
    one, so indices and ticket wait here, first in, first out. They are part of a checkpoint: a resumed run hands out
    again what had been drawn and not yet trained on.
    """

    def __init__(self, sampler: IndexSampler, batch_size: int, rows: Tensor | None = None) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.rows = rows  # the source's row for each of the sampler's indices; None: the same numbers
        self._waiting: deque[tuple[Tensor, Ticket]] = deque()
        self._again: deque[tuple[Tensor, Ticket]] = deque()

    def draw(self) -> Tensor:
        """The rows of the next batch: (batch_size,) int64; called by the source."""
        if self._again:
            idx, ticket = self._again.popleft()
        else:
            idx = self.sampler.draw(self.batch_size)
            ticket = self.sampler.ticket()
        self._waiting.append((idx, ticket))
        return idx if self.rows is None else self.rows.index_select(0, idx)

    def take(self) -> tuple[Tensor, Ticket]:
        """The sampler's indices and the ticket of the batch that just came."""
        return self._waiting.popleft()

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": [{"idx": idx, "ticket": ticket} for idx, ticket in (*self._waiting, *self._again)]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self.sampler.device
        self._waiting.clear()
        self._again.clear()
        for item in state["drawn"]:
            ticket = item["ticket"]
            self._again.append((item["idx"].to(device), None if ticket is None else ticket.to(device)))


class TrainingStep:
    """Called once a step with a batch; holds the tensors that the log points read."""

    def __init__(
        self,
        model: nn.Module,
        attack: Attack,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        sampler: IndexSampler,
        num_classes: int,
        device: torch.device,
        precision: str = "float32",
        compile: bool = False,
    ) -> None:
        self.model, self.attack, self.objective = model, attack, objective
        self.optimizer, self.sampler = optimizer, sampler
        self.device, self.precision = device, precision
        self.forward: Callable[[Tensor], Tensor] = compiled(model, device) if compile else model
        self.tally = ops.new_tally(num_classes, device)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.first_bad = torch.full((), NEVER, dtype=torch.int64, device=device)
        self.fault = ops.new_fault(device)

    def __call__(self, number: int, lr: float, idx: Tensor, x: Tensor, y: Tensor, ticket: Ticket) -> None:
        """idx: (B,) the sampler's indices; x: (B, C, H, W) in [0, 1]; y: (B,) int64."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        torch.compiler.cudagraph_mark_step_begin()  # what an earlier step's graphs returned is not needed any more
        with self._autocast():
            x_adv = self.attack(x, y)
            loss, logits = self.objective(self.forward, Batch(x, x_adv, y, self.sampler.weight(y)))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

        with torch.no_grad():
            wrong = (logits.argmax(dim=1) != y).float()
            self.sampler.observe(idx, y, wrong, ticket)
            ops.class_tally_(self.tally, y, wrong, self.fault)
            loss = loss.detach().double()
            self.loss_sum += loss
            bad = torch.where(torch.isfinite(loss), NEVER, number)
            self.first_bad.copy_(torch.minimum(self.first_bad, bad))

    def begin_epoch(self) -> None:
        self.tally.zero_()
        self.loss_sum.zero_()

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def state_dict(self) -> dict[str, Any]:
        return {"tally": self.tally, "loss_sum": self.loss_sum, "first_bad": self.first_bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("tally", "loss_sum", "first_bad"):
            getattr(self, name).copy_(state[name])


def compiled(model: nn.Module, device: torch.device) -> Callable[[Tensor], Tensor]:
    """The model under torch.compile; on a GPU with CUDA graphs, which "reduce-overhead" brings."""
    return torch.compile(model, mode="reduce-overhead" if device.type == "cuda" else "default")
