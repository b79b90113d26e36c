"""The feed of image files: a pool of threads decodes the images of a batch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from cfol_fast.data.decoders import Decoder, Nvjpeg
from cfol_fast.data.library_words import caught
from cfol_fast.data.ring_feed import RingFeed
from cfol_fast.data.stream.data_set import decoded
from cfol_fast.data.stream.index import Index, lost

# One batch as the feed makes it: uint8 (bytes,) of all its images, int64 (B, 3) of (offset, height, width).
Packed = tuple[Tensor, Tensor]


class StreamFeed(RingFeed):
    """Decodes with `workers` threads; the batch does not depend on their number. on_device: decodes whole
    batches where the pixels go.
    """

    def __init__(
        self,
        index: Index,
        decoder: Decoder,
        workers: int,
        width: int,
        lag: int,
        device: torch.device | None,
        on_device: Nvjpeg | None,
    ) -> None:
        super().__init__(name="StreamFeed", daemon=True)
        self._start_ring(width, lag, device, len(index), str(index.listing.root))
        self._index, self._decoder, self._workers = index, decoder, workers
        self._on_device = on_device
        self.start()

    def run(self) -> None:
        # The threads go where this one goes: no feed leaves any behind.
        with ThreadPoolExecutor(self._workers, thread_name_prefix="StreamFeed") as self._pool:
            super().run()

    def _decode(self, row: int, count: int) -> None:
        self._wait_for(row)
        rows = self._indices[row][:count].tolist()
        with caught():
            self._decoded.put(self._batch(rows) if self._on_device is None else self._batch_on_device(rows))

    def _batch(self, rows: list[int]) -> Packed:
        def one(row: int) -> np.ndarray:
            return decoded(self._index, row, self._decoder)

        return packed([torch.from_numpy(image) for image in self._spread(one, rows)])

    def _batch_on_device(self, rows: list[int]) -> Packed:
        assert self._on_device is not None

        def read(row: int) -> bytearray:
            try:
                return self._index.read(row)
            except OSError as error:
                raise lost(self._index, row, error) from error

        return packed(self._on_device(self._spread(read, rows)))

    def _spread(self, function: Callable, rows: list[int]) -> list:
        """`function` of each row by the pool, a part of the rows for each thread: of the errors the first in
        the order of the rows.
        """
        parts = [rows[start :: self._workers] for start in range(min(self._workers, len(rows)))]

        def several(part: list[int]) -> list:
            found = []
            for row in part:
                try:
                    found.append(function(row))
                except Exception as error:
                    return [*found, error]
            return found

        found: list = [None] * len(rows)
        for start, results in enumerate(self._pool.map(several, parts)):
            places = range(start, len(rows), self._workers)
            for place, result in zip(places, results, strict=False):
                found[place] = result
        for result in found:
            if isinstance(result, Exception):
                raise result
        return found


def packed(images: list[Tensor]) -> Packed:
    """images: uint8 (h, w, 3) each."""
    sizes = torch.tensor([image.shape[:2] for image in images])
    ends = (sizes[:, 0] * sizes[:, 1] * 3).cumsum(0)
    offsets = torch.cat([ends.new_zeros(1), ends[:-1]])
    return torch.cat([image.reshape(-1) for image in images]), torch.cat([offsets.unsqueeze(1), sizes], 1)
