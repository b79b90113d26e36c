"""How a batch reaches the training step: drawn by the sampler, made into pixels by the source, handed over
with its ticket.

The source decides when indices are drawn, since it may read ahead. So the call goes to and fro: the step
asks `TrainingBatches.feed`, which asks the source, which asks back through `_draw`, which asks the sampler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from contextlib import closing
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cfol_fast.data.source import TrainingSource
from cfol_fast.sampling import IndexSampler


class TrainingBatch(NamedTuple):
    """indices: (B,) int64, the sampler's; ticket: what they were drawn with; x: (B, C, H, W) in [0, 1]; y:
    (B,) int64.
    """

    indices: Tensor
    ticket: Tensor | None
    x: Tensor
    y: Tensor


class TrainingBatches:
    """The batches of a run, one per step.

    A source may draw ahead (FFCV's lag). The sampler's update needs what drew the batch at hand, not the
    latest draw, so each draw waits here with its ticket until its batch comes back. What waits is part of a
    checkpoint: a resumed run feeds again what had been drawn and not yet trained on. batch_size: the global
    one; of many ranks each gets its slots, and a checkpoint holds those of all.
    """

    def __init__(self, sampler: IndexSampler, source: TrainingSource, batch_size: int) -> None:
        self.sampler, self.source, self.ranks = sampler, source, sampler.ranks
        self.batch_size = batch_size // self.ranks.size
        self._first = self.ranks.rank * self.batch_size
        self._waiting: deque[tuple[Tensor, Tensor | None]] = deque()
        # How many of those that wait the source has asked for.
        self._asked_for = 0

    @property
    def shape(self) -> tuple[int, tuple[int, int] | None]:
        """What the shapes of a batch follow from."""
        return self.batch_size, self.source.size

    def feed(self, steps: int) -> Generator[TrainingBatch]:
        """The next `steps` batches. One loop at a time; close it when leaving early."""
        self._asked_for = 0
        with closing(self.source.feed(self._draw, steps, self._first)) as batches:
            for indices, x, y in batches:
                _, ticket = self._waiting.popleft()
                self._asked_for -= 1
                yield TrainingBatch(indices, ticket, x, y)

    def _draw(self) -> Tensor:
        """The indices of the next batch that the source is to make: (batch_size,) int64."""
        if self._asked_for == len(self._waiting):
            indices = self.sampler.draw(self.batch_size)
            self._waiting.append((indices, self.sampler.ticket()))
        self._asked_for += 1
        return self._waiting[self._asked_for - 1][0]

    def state_dict(self) -> dict[str, Any]:
        return {
            "drawn": [
                {"idx": self._of_all(indices), "ticket": self._of_all(ticket) if self._each else ticket}
                for indices, ticket in self._waiting
            ]
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self.sampler.device
        self._waiting.clear()
        for draw in state["drawn"]:
            ticket = None if draw["ticket"] is None else draw["ticket"].to(device)
            if ticket is not None and self._each:
                ticket = self.ranks.mine(ticket)
            self._waiting.append((self.ranks.mine(draw["idx"].to(device)), ticket))

    @property
    def _each(self) -> bool:
        """Whether a ticket has an entry for each example."""
        return self.sampler.tickets_each_example

    def _of_all(self, mine: Tensor | None) -> Tensor | None:
        return None if mine is None else torch.cat(self.ranks.gather(mine.contiguous()))
