"""The source for data that does not fit on the device: an FFCV file, decoded by FFCV, augmented by the project's op.

The indices of step t + lag are drawn when step t begins, by the trainer and in its thread; the loader's thread only waits for them
and decodes. So thread timing cannot change the result: what the sampler learns after step t is seen at exactly step t + 1 + lag.
With a raw file and lag 0 the batches are those of the resident source, bit for bit.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cfol_fast import ops
from cfol_fast.data.beton import open_beton
from cfol_fast.data.ffcv_install import quietly
from cfol_fast.data.resident import Batch, Draw
from cfol_fast.errors import InputError


class FFCVSource:
    """The images of the FFCV file `path`, with the surface of `ResidentSource`.

    lag: how many batches are drawn ahead. 0 is on-policy and decodes while the trainer waits; 1 decodes the next batch during a step.
    workers: threads that decode; by default all cores, at most 8. The batches do not depend on it.
    """

    def __init__(
        self,
        path: str | Path,
        lag: int = 1,
        size: tuple[int, int] | None = None,
        augment: ops.Augment | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = True,
        seed: int = 0,
        workers: int | None = None,
    ) -> None:
        if lag < 0:
            raise InputError(f"lag must be 0 (on-policy) or more, got {lag}")
        if workers is not None and workers < 1:
            raise InputError(f"workers must be at least 1, got {workers}")
        self.file = open_beton(path)
        own = self.file.size
        self.size = size or own or _said_size(self.file.facts)
        if self.size is None:
            raise InputError(
                f"{path} has images of different sizes: the source needs size=(height, width) of the batches"
            )
        self.lag = lag
        self.device = torch.device(device or "cpu")
        self.classes: list[str] = list(self.file.facts["classes"])
        self.channels = self.file.channels
        self.augment, self.dtype, self.channels_last = augment, dtype, channels_last
        self.labels = torch.from_numpy(self.file.labels).to(self.device)
        self.rng = ops.new_rng(seed, self.device)
        self.fault = ops.new_fault(self.device)  # flags of the op on a GPU; the trainer reads them
        self._own_size = own
        self._sizes = None
        if own is None:
            columns = (torch.from_numpy(self.file.heights), torch.from_numpy(self.file.widths))
            self._sizes = torch.stack(columns, 1).to(self.device)
        self._workers = workers or min(os.cpu_count() or 1, 8)
        self._places = torch.arange(0, device=self.device)  # of a batch's images in it, kept for the next
        self._loader: Any = None
        self._feeds: list[Any] = []

    def __len__(self) -> int:
        return len(self.file)

    def feed(self, draw: Draw, steps: int) -> Iterator[Batch]:
        """`steps` training batches (idx, x, y); batch t + lag is drawn when batch t is asked for."""
        return self._run(draw, steps, self.lag, self.augment)

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Every image once, in order, without augmentation: (idx, x, y)."""
        parts = iter(torch.arange(len(self), device=self.device).split(batch_size))
        return self._run(lambda: next(parts), -(-len(self) // batch_size), max(self.lag, 1), None)

    def _run(self, draw: Draw, steps: int, lag: int, augment: ops.Augment | None) -> Iterator[Batch]:
        if steps < 1:
            return
        drawn = deque([draw()])
        feed = self._start(len(drawn[0]), lag, drawn[0].is_cuda)
        try:
            feed.push(drawn[0])
            left = steps - 1
            for step in range(steps):
                # Before the first batch the lag is filled; after that one batch is drawn for each one given.
                for _ in range(min(left, lag if step == 0 else 1)):
                    drawn.append(draw())
                    feed.push(drawn[-1])
                    left -= 1
                if left == 0:
                    feed.finish()
                pixels = feed.pull()
                idx = drawn.popleft()
                if idx.device != self.device:
                    idx = idx.to(self.device, non_blocking=True)
                yield (
                    idx,
                    self._augmented(torch.from_numpy(pixels), idx, augment),
                    self.labels.index_select(0, idx),
                )
        finally:
            feed.close()
            self._feeds.remove(feed)

    def _start(self, width: int, lag: int, cuda: bool) -> Any:
        with quietly():
            from cfol_fast.data import ffcv_feed

            if self._loader is None:
                self._loader = ffcv_feed.make_loader(self.file, self._workers)
            if self._feeds:
                raise InputError(
                    "this source is feeding already: end that loop first, or open a second source"
                )
            threads = ffcv_feed.threads_for(self.file, width, self._loader.num_workers)
            feed = ffcv_feed.Feed(self._loader, width, lag, cuda or self.device.type == "cuda", threads)
        self._feeds.append(feed)
        return feed

    def _augmented(self, rows: Tensor, idx: Tensor, augment: ops.Augment | None) -> Tensor:
        """rows: uint8 (B, bytes), a view of FFCV's ring buffer. What leaves here does not share memory with it."""
        count, stride = rows.shape
        if (
            self.device.type == "cuda"
        ):  # by way of pinned memory, so that the trainer does not wait for the copy
            rows = rows.pin_memory().to(self.device, non_blocking=True)
        if len(self._places) != count:
            self._places = torch.arange(count, device=self.device)
        places = self._places
        table = None
        if self._sizes is None:
            assert self._own_size is not None
            rows = rows.view(count, *self._own_size, self.channels)
        else:
            table = torch.cat([(places * stride).unsqueeze(1), self._sizes.index_select(0, idx)], 1)
            rows = rows.view(-1)
        return ops.gather_augment(
            rows,
            places,
            None if augment is None else self.rng,
            size=self.size,
            augment=augment,
            dtype=self.dtype,
            channels_last=self.channels_last,
            table=table,
            channels=self.channels,
            fault=self.fault,
        )

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.copy_(state["rng"])

    def close(self) -> None:
        """Ends a loader thread that is still waiting, when a loop over `feed` was left early and its iterator kept."""
        for feed in list(self._feeds):
            feed.close()


def _said_size(facts: dict[str, Any]) -> tuple[int, int] | None:
    size = facts.get("size")
    return (int(size[0]), int(size[1])) if isinstance(size, list) and len(size) == 2 else None
