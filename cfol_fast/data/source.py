"""The interface between data and everything that reads it: what a source of examples offers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from cfol_fast.errors import InputError


class Source(Protocol):
    """Where the examples come from: `data.ResidentSource`, or tensors."""

    @property
    def labels(self) -> Tensor: ...

    @property
    def classes(self) -> Sequence[str]: ...

    def __len__(self) -> int: ...

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]: ...


class TensorSource:
    """Images (N, C, H, W) in [0, 1] and labels (N,) as a source."""

    def __init__(self, x: Tensor, y: Tensor, classes: Sequence[str] = ()) -> None:
        if not x.is_floating_point():
            raise InputError(
                f"images must be floating point numbers in [0, 1], got {x.dtype}; divide bytes by 255"
            )
        if len(x) != len(y):
            raise InputError(f"there are {len(x)} images, but {len(y)} labels")
        self.x, self.labels = x, y
        self.classes: Sequence[str] = list(classes)

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for start in range(0, len(self), batch_size):
            rows = slice(start, start + batch_size)
            yield torch.arange(start, min(start + batch_size, len(self))), self.x[rows], self.labels[rows]
