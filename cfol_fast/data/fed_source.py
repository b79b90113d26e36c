"""What sources have in common whose images are decoded batch by batch while a run goes on.

The indices of step t + lag are drawn when step t begins, by the trainer and in its thread; the feed's threads
only wait for them and decode. So thread timing cannot change the result: what the sampler learns after step t
is seen at exactly step t + 1 + lag.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from cfol_fast import ops, processes
from cfol_fast.data.ring_feed import RingFeed
from cfol_fast.data.source import Batch, Draw
from cfol_fast.errors import InputError


class FedSource:
    """A source with the surface of `ResidentSource`, over a `RingFeed`. A subclass sets `labels`.

    size: (height, width) of the batches.
    lag: how many batches are drawn ahead. 0 is on-policy and decodes while the trainer waits; 1 decodes the
    next batch during a step.
    workers: threads that decode; by default this process's share of the cores, at most 8. The batches do not
    depend on it.
    """

    labels: Tensor

    def __init__(
        self,
        classes: list[str],
        channels: int,
        size: tuple[int, int],
        lag: int,
        augment: ops.Augment | None,
        device: torch.device | str | None,
        dtype: torch.dtype,
        channels_last: bool,
        seed: int,
        workers: int | None,
    ) -> None:
        if lag < 0:
            raise InputError(f"lag must be 0 (on-policy) or more, got {lag}")
        if workers is not None and workers < 1:
            raise InputError(f"workers must be at least 1, got {workers}")
        self.size: tuple[int, int] | None = size
        self.lag = lag
        self.rng = ops.new_rng(seed, device)
        # With its number: "cuda" alone would be whichever device is current later.
        self.device = self.rng.device
        self.classes, self.channels = classes, channels
        self.augment, self.dtype, self.channels_last = augment, dtype, channels_last
        self.fault = ops.new_fault(self.device)
        self._workers = workers or max(1, min((os.cpu_count() or 1) // processes.local_count(), 8))
        # 0..B-1, kept from batch to batch
        self._places = torch.arange(0, device=self.device)
        self._feeds: list[RingFeed] = []

    def __len__(self) -> int:
        return len(self.labels)

    def check_room(self, width: int) -> None:
        """Refuses batches of `width` images that do not fit into memory."""
        raise NotImplementedError

    def batch_memory(self, width: int) -> int:
        """Bytes that batches of `width` images take while they are decoded."""
        raise NotImplementedError

    def _feed_of(self, width: int, lag: int, gpu: torch.device | None) -> RingFeed:
        raise NotImplementedError

    def _rows(self, idx: Tensor) -> Tensor:
        """What the feed is to decode for this source's indices."""
        raise NotImplementedError

    def _table(self, batch: Any, idx: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the feed made, as the images and the table that `ops.gather_augment` takes: uint8 (B, H, W, C)
        and None, or uint8 (bytes,) and (B, 3) of (offset, height, width).
        """
        raise NotImplementedError

    def feed(self, draw: Draw, steps: int, first: int = 0) -> Generator[Batch]:
        """`steps` training batches (idx, x, y); batch t + lag is drawn when batch t is asked for."""
        return self._run(draw, steps, self.lag, self.augment, first)

    def batches(self, batch_size: int, first: int = 0, every: int = 1) -> Generator[Batch]:
        """Every image once, in order, without augmentation: (idx, x, y)."""
        parts = torch.arange(len(self), device=self.device).split(batch_size)[first::every]
        draws = iter(parts)
        return self._run(lambda: next(draws), len(parts), max(self.lag, 1), None, 0)

    def _run(
        self, draw: Draw, steps: int, lag: int, augment: ops.Augment | None, first: int
    ) -> Generator[Batch]:
        if steps < 1:
            return
        drawn = deque([self._here(draw())])
        feed = self._start(len(drawn[0]), lag, self._gpu(drawn[0]))
        try:
            feed.push(self._rows(drawn[0]))
            left = steps - 1
            for step in range(steps):
                # Before the first batch the lag is filled; after that one batch is drawn for each one given.
                for _ in range(min(left, lag if step == 0 else 1)):
                    drawn.append(self._here(draw()))
                    feed.push(self._rows(drawn[-1]))
                    left -= 1
                if left == 0:
                    feed.finish()
                batch = feed.pull()
                idx = drawn.popleft().to(self.device, non_blocking=True)
                yield idx, self._augmented(batch, idx, augment, first), self.labels.index_select(0, idx)
        finally:
            feed.close()
            self._feeds.remove(feed)

    def _start(self, width: int, lag: int, gpu: torch.device | None) -> RingFeed:
        feed = self._feed_of(width, lag, gpu)
        self._feeds.append(feed)
        return feed

    def _check_idle(self) -> None:
        if self._feeds:
            raise InputError("this source is feeding already: end that loop first, or open a second source")

    def _here(self, idx: Tensor) -> Tensor:
        """Indices from another GPU come to this source's: its stream is the one that the feed waits for."""
        return idx.to(self.device) if idx.is_cuda and self.device.type == "cuda" else idx

    def _gpu(self, idx: Tensor) -> torch.device | None:
        """The GPU that the pixels go to or, where they stay here, that the indices come from."""
        return next((d for d in (self.device, idx.device) if d.type == "cuda"), None)

    def _places_of(self, count: int) -> Tensor:
        if len(self._places) != count:
            self._places = torch.arange(count, device=self.device)
        return self._places

    def _augmented(self, batch: Any, idx: Tensor, augment: ops.Augment | None, first: int) -> Tensor:
        """What leaves here does not share memory with what the feed made."""
        pixels, table = self._table(batch, idx)
        # By way of pinned memory, so that the trainer does not wait for the copy.
        if self.device.type == "cuda" and pixels.device.type == "cpu":
            pixels = pixels.pin_memory().to(self.device, non_blocking=True)
        return ops.gather_augment(
            pixels,
            self._places_of(len(idx)),
            None if augment is None else self.rng,
            size=self.size,
            augment=augment,
            dtype=self.dtype,
            channels_last=self.channels_last,
            table=table,
            channels=self.channels,
            first=first,
            fault=self.fault,
        )

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.copy_(state["rng"])

    def close(self) -> None:
        """Ends a feed's thread that is still waiting, when a loop over `feed` was left early and its iterator
        kept.
        """
        for feed in list(self._feeds):
            feed.close()
