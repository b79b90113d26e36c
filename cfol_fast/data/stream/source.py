"""The source for folders of image files that are not decoded before the run: no conversion, and no memory but
that of a few batches.

With lag 0 its batches are those of the resident source, bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cfol_fast import ops
from cfol_fast.data.decoders import NVJPEG, Nvjpeg
from cfol_fast.data.fed_source import FedSource
from cfol_fast.data.ring_feed import RingFeed
from cfol_fast.data.room import check_memory
from cfol_fast.data.stream.data_set import StreamSet
from cfol_fast.data.stream.feed import Packed, StreamFeed
from cfol_fast.errors import InputError


class StreamSource(FedSource):
    """The images of a `StreamSet`, with the surface of `ResidentSource`. lag, workers: see `FedSource`."""

    def __init__(
        self,
        images: StreamSet,
        lag: int = 1,
        size: tuple[int, int] | None = None,
        augment: ops.Augment | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = True,
        seed: int = 0,
        workers: int | None = None,
    ) -> None:
        size = size or images.size
        if size is None:
            raise InputError(
                "the images have different sizes: the source needs size=(height, width) of the batches"
            )
        super().__init__(
            list(images.classes), 3, size, lag, augment, device, dtype, channels_last, seed, workers
        )
        self.images = images
        self.labels = images.labels.to(self.device)
        self._subset = None if images.rows is None else images.rows.to(self.device)
        self._on_device: Nvjpeg | None = None
        if images.decoder.way == NVJPEG:
            if self.device.type != "cuda":
                raise InputError(
                    f"data.decode={NVJPEG} decodes on an NVIDIA GPU, and the run is on"
                    f" {self.device.type}: take data.decode=whole"
                )
            self._on_device = Nvjpeg(images.decoder, self.device)

    def batch_memory(self, width: int) -> int:
        """About as many bytes as batches of `width` images take, by the headers of a few images."""
        # Those drawn ahead, the one at hand, and the images of the one that is being put together.
        return int((max(self.lag, 1) + 2) * width * self.images.average_bytes())

    def check_room(self, width: int) -> None:
        check_memory(
            f"batches of {width:,} images, decoded,",
            self.batch_memory(width),
            "take a smaller batch, or smaller images with --set data.size=PX",
        )

    def _feed_of(self, width: int, lag: int, gpu: torch.device | None) -> RingFeed:
        self._check_idle()
        images = self.images
        return StreamFeed(images.index, images.decoder, self._workers, width, lag, gpu, self._on_device)

    def _rows(self, idx: Tensor) -> Tensor:
        return idx if self._subset is None else self._subset.index_select(0, idx.to(self.device))

    def _table(self, batch: Packed, idx: Tensor) -> tuple[Tensor, Tensor | None]:
        pixels, table = batch
        return pixels, table.to(self.device, non_blocking=True)
