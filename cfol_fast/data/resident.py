"""The default source: all images as one uint8 tensor on the device, batches by one gather + augment op.

`feed` draws the indices of a step when that step is asked for, so a change of the distribution after step t
is seen at step t+1. Nothing is read back from the device and no worker process exists; on `device="meta"` the
whole path runs as shapes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch import Tensor

from cfol_fast import ops
from cfol_fast.data.images import ImageSet
from cfol_fast.data.room import check_device, free_memory, streaming
from cfol_fast.data.source import Batch, Draw
from cfol_fast.errors import InputError


class ResidentSource:
    """`image_set` on `device`; `feed` gives augmented batches, `batches` the plain ones in order.

    size: (h, w) of the output; needed for images of different sizes, else the images' own.
    augment: what `feed` does to the images; None is the centre crop that `batches` always gives.
    """

    def __init__(
        self,
        image_set: ImageSet,
        size: tuple[int, int] | None = None,
        augment: ops.Augment | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = True,
        seed: int = 0,
    ) -> None:
        self.device = torch.device(device or "cpu")
        self.size = size or image_set.size
        if self.size is None:
            raise InputError(
                "the images have different sizes: the source needs size=(height, width) of the batches"
            )
        # Images that are on the device already need no more room.
        if self.device != image_set.images.device:
            check_device(
                f"{len(image_set):,} images",
                image_set.nbytes,
                self.device,
                free_memory(self.device),
                streaming(),
            )
            image_set = image_set.compact()
        offsets = None if image_set.table is None else image_set.table[:, 0]
        if augment is not None and augment.scale and offsets is not None:
            wrong = (offsets % image_set.channels).nonzero()
            if len(wrong):
                raise InputError(
                    f"for random-resized crops images must start at multiples of {image_set.channels} bytes,"
                    f" image {int(wrong[0])} starts at {int(offsets[wrong[0]])}"
                )
        self.classes = list(image_set.classes)
        self.channels = image_set.channels
        self.augment = augment
        self.dtype = dtype
        self.channels_last = channels_last
        self.images = image_set.images.to(self.device)
        self.table = None if image_set.table is None else image_set.table.to(self.device)
        self.labels = image_set.labels.to(self.device)
        self.rng = ops.new_rng(seed, self.device)
        self.fault = ops.new_fault(self.device)

    def __len__(self) -> int:
        return len(self.labels)

    def pixels(self, idx: Tensor, augment: ops.Augment | None = None, first: int = 0) -> Tensor:
        """The images at `idx`: (B, C, h, w) in [0, 1]; augmentation advances the source's random state."""
        return ops.gather_augment(
            self.images,
            idx,
            None if augment is None else self.rng,
            size=self.size,
            augment=augment,
            dtype=self.dtype,
            channels_last=self.channels_last,
            table=self.table,
            channels=self.channels,
            first=first,
            fault=self.fault,
        )

    def feed(self, draw: Draw, steps: int, first: int = 0) -> Generator[Batch]:
        """`steps` training batches (idx, x, y) of the indices `draw()` returns, each drawn when its step
        begins.
        """
        for _ in range(steps):
            idx = draw()
            x = self.pixels(idx, self.augment, first)
            # On the CPU `pixels` has refused a bad index. On a GPU it has set a flag, and index_select would
            # end the process.
            yield idx, x, self.labels.index_select(0, idx.clamp(0, len(self) - 1))

    def batches(self, batch_size: int, first: int = 0, every: int = 1) -> Iterator[Batch]:
        """Every image once, in order, without augmentation: (idx, x, y)."""
        for start in range(first * batch_size, len(self), every * batch_size):
            idx = torch.arange(start, min(start + batch_size, len(self)), device=self.device)
            yield idx, self.pixels(idx), self.labels[start : start + len(idx)]

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.copy_(state["rng"])

    def close(self) -> None:
        """Nothing to release; so that every source can be closed."""
