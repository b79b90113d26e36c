"""The source for data that does not fit on the device: an FFCV file, decoded by FFCV, augmented by the
project's op.

With a raw file and lag 0 the batches are those of the resident source, bit for bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cfol_fast import ops
from cfol_fast.data.fed_source import FedSource
from cfol_fast.data.ffcv.install import using_ffcv
from cfol_fast.data.ffcv.reader import Beton, open_beton, written_size
from cfol_fast.data.ring_feed import RingFeed
from cfol_fast.data.room import check_memory
from cfol_fast.errors import InputError


class FFCVSource(FedSource):
    """The images of the FFCV file `path`, which may be open already, with the surface of `ResidentSource`.

    lag, workers: see `FedSource`.
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
        self.file = path if isinstance(path, Beton) else open_beton(path)
        if subset is not None and (int(subset.min()) < 0 or int(subset.max()) >= len(self.file)):
            raise InputError(f"subset must name rows in 0..{len(self.file) - 1} of {self.file.path}")
        self._stored_size = self.file.size
        size = size or self._stored_size or written_size(self.file.description)
        if size is None:
            raise InputError(
                f"{self.file.path} has images of different sizes: the source needs size=(height, width) of"
                " the batches"
            )
        classes = list(self.file.description["classes"])
        super().__init__(
            classes, self.file.channels, size, lag, augment, device, dtype, channels_last, seed, workers
        )
        self._subset = None if subset is None else subset.to(self.device)
        self.labels = self._of_my_images(self.file.labels)
        # (n, 2) where the images have different sizes
        self._sizes: Tensor | None = None
        if self._stored_size is None:
            columns = (self.file.heights, self.file.widths)
            self._sizes = torch.stack([self._of_my_images(column) for column in columns], 1)
        self._loader: Any = None

    def _of_my_images(self, column: np.ndarray) -> Tensor:
        """A column of the file's table, for the images of this source."""
        whole = torch.from_numpy(column).to(self.device)
        return whole if self._subset is None else whole.index_select(0, self._subset)

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

    def _feed_of(self, width: int, lag: int, gpu: torch.device | None) -> RingFeed:
        self.check_room(width)
        with using_ffcv():
            from cfol_fast.data.ffcv import feed as ffcv_feed

            if self._loader is None:
                self._loader = ffcv_feed.make_loader(self.file, self._workers)
            self._check_idle()
            threads = ffcv_feed.threads_for(self.file, width, self._loader.num_workers)
            return ffcv_feed.Feed(self._loader, width, lag, gpu, threads)

    def _rows(self, idx: Tensor) -> Tensor:
        """The rows of the file at this source's indices."""
        return idx if self._subset is None else self._subset.index_select(0, idx.to(self.device))

    def _table(self, batch: np.ndarray, idx: Tensor) -> tuple[Tensor, Tensor | None]:
        """batch: uint8 (B, bytes), a view of FFCV's ring buffer."""
        pixels = torch.from_numpy(batch)
        count, stride = pixels.shape
        if self._sizes is None:
            assert self._stored_size is not None
            return pixels.view(count, *self._stored_size, self.channels), None
        places = self._places_of(count)
        table = torch.cat([(places * stride).unsqueeze(1), self._sizes.index_select(0, idx)], 1)
        return pixels.view(-1), table
