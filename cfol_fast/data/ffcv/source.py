"""The source for data that does not fit on the device: an FFCV file, decoded by FFCV, augmented by the
project's op.

The indices of step t + lag are drawn when step t begins, by the trainer and in its thread; the loader's
thread only waits for them and decodes. So thread timing cannot change the result: what the sampler learns
after step t is seen at exactly step t + 1 + lag. With a raw file and lag 0 the batches are those of the
resident source, bit for bit.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cfol_fast import ops, processes
from cfol_fast.data.ffcv.install import using_ffcv
from cfol_fast.data.ffcv.reader import Beton, open_beton, written_size
from cfol_fast.data.room import check_memory
from cfol_fast.data.source import Batch, Draw
from cfol_fast.errors import InputError


class FFCVSource:
    """The images of the FFCV file `path`, which may be open already, with the surface of `ResidentSource`.

    lag: how many batches are drawn ahead. 0 is on-policy and decodes while the trainer waits; 1 decodes the
    next batch during a step.
    workers: threads that decode; by default this process's share of the cores, at most 8. The batches do not
    depend on it.
    subset: (n,) int64, the rows of the file that this source has; its indices are then 0..n-1. None: the
    whole file.
    """

    def __init__(
        self,
        path: str | Path | Beton,
        lag: int = 1,
        size: tuple[int, int] | None = None,
        augment: ops.Augment | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = True,
        seed: int = 0,
        workers: int | None = None,
        subset: Tensor | None = None,
    ) -> None:
        if lag < 0:
            raise InputError(f"lag must be 0 (on-policy) or more, got {lag}")
        if workers is not None and workers < 1:
            raise InputError(f"workers must be at least 1, got {workers}")
        self.file = path if isinstance(path, Beton) else open_beton(path)
        if subset is not None and (int(subset.min()) < 0 or int(subset.max()) >= len(self.file)):
            raise InputError(f"subset must name rows in 0..{len(self.file) - 1} of {self.file.path}")
        self._stored_size = self.file.size
        self.size = size or self._stored_size or written_size(self.file.description)
        if self.size is None:
            raise InputError(
                f"{self.file.path} has images of different sizes: the source needs size=(height, width) of"
                " the batches"
            )
        self.lag = lag
        self.rng = ops.new_rng(seed, device)
        # With its number: "cuda" alone would be whichever device is current later.
        self.device = self.rng.device
        self.classes: list[str] = list(self.file.description["classes"])
        self.channels = self.file.channels
        self.augment, self.dtype, self.channels_last = augment, dtype, channels_last
        self._subset = None if subset is None else subset.to(self.device)
        self.labels = self._of_my_images(self.file.labels)
        self.fault = ops.new_fault(self.device)
        # (n, 2) where the images have different sizes
        self._sizes: Tensor | None = None
        if self._stored_size is None:
            columns = (self.file.heights, self.file.widths)
            self._sizes = torch.stack([self._of_my_images(column) for column in columns], 1)
        self._workers = workers or max(1, min((os.cpu_count() or 1) // processes.local_count(), 8))
        # 0..B-1, kept from batch to batch
        self._places = torch.arange(0, device=self.device)
        self._loader: Any = None
        self._feeds: list[Any] = []

    def _of_my_images(self, column: np.ndarray) -> Tensor:
        """A column of the file's table, for the images of this source."""
        whole = torch.from_numpy(column).to(self.device)
        return whole if self._subset is None else whole.index_select(0, self._subset)

    def __len__(self) -> int:
        return len(self.labels)

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
                pixels = torch.from_numpy(feed.pull())
                idx = drawn.popleft().to(self.device, non_blocking=True)
                yield idx, self._augmented(pixels, idx, augment, first), self.labels.index_select(0, idx)
        finally:
            feed.close()
            self._feeds.remove(feed)

    def _here(self, idx: Tensor) -> Tensor:
        """Indices from another GPU come to this source's: its stream is the one that the feed waits for."""
        return idx.to(self.device) if idx.is_cuda and self.device.type == "cuda" else idx

    def _gpu(self, idx: Tensor) -> torch.device | None:
        """The GPU that the pixels go to or, where they stay here, that the indices come from."""
        return next((d for d in (self.device, idx.device) if d.type == "cuda"), None)

    def batch_memory(self, width: int) -> int:
        """Bytes that batches of `width` images take while they are decoded: each image has the room of the
        largest one.
        """
        largest = int((self.file.heights * self.file.widths).max()) * self.channels
        return self._batches_in_memory * width * largest

    @property
    def _batches_in_memory(self) -> int:
        # Those drawn ahead, the one at hand, and the two that FFCV adds.
        return max(self.lag, 1) + 3

    def check_room(self, width: int) -> None:
        """Refuses batches that do not fit into memory."""
        row = int((self.file.heights * self.file.widths).argmax())
        check_memory(
            f"{self._batches_in_memory} batches of {width:,} images with room for"
            f" {self.file.widths[row]}x{self.file.heights[row]} px",
            self.batch_memory(width),
            "take a smaller batch, or write the files again with a smaller --size",
        )

    def _start(self, width: int, lag: int, gpu: torch.device | None) -> Any:
        self.check_room(width)
        with using_ffcv():
            from cfol_fast.data.ffcv import feed as ffcv_feed

            if self._loader is None:
                self._loader = ffcv_feed.make_loader(self.file, self._workers)
            if self._feeds:
                raise InputError(
                    "this source is feeding already: end that loop first, or open a second source"
                )
            threads = ffcv_feed.threads_for(self.file, width, self._loader.num_workers)
            feed = ffcv_feed.Feed(self._loader, width, lag, gpu, threads)
        self._feeds.append(feed)
        return feed

    def _rows(self, idx: Tensor) -> Tensor:
        """The rows of the file at this source's indices."""
        return idx if self._subset is None else self._subset.index_select(0, idx.to(self.device))

    def _augmented(self, rows: Tensor, idx: Tensor, augment: ops.Augment | None, first: int) -> Tensor:
        """rows: uint8 (B, bytes), a view of FFCV's ring buffer.

        What leaves here does not share memory with it.
        """
        count, stride = rows.shape
        # By way of pinned memory, so that the trainer does not wait for the copy.
        if self.device.type == "cuda":
            rows = rows.pin_memory().to(self.device, non_blocking=True)
        if len(self._places) != count:
            self._places = torch.arange(count, device=self.device)
        places = self._places
        table = None
        if self._sizes is None:
            assert self._stored_size is not None
            rows = rows.view(count, *self._stored_size, self.channels)
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
            first=first,
            fault=self.fault,
        )

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.copy_(state["rng"])

    def close(self) -> None:
        """Ends a loader thread that is still waiting, when a loop over `feed` was left early and its iterator
        kept.
        """
        for feed in list(self._feeds):
            feed.close()
