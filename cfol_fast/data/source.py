"""The interface between the images and everything that reads them: what a source of examples offers.

An evaluation asks a `Source` for every image once. Training asks a `TrainingSource` for the images at drawn
indices. Both give batches of (indices (B,) int64, x (B, C, H, W) in [0, 1], y (B,) int64).
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from cfol_fast.errors import InputError

Draw = Callable[[], Tensor]
Batch = tuple[Tensor, Tensor, Tensor]


class Source(Protocol):
    """What an evaluation needs: `data.ResidentSource`, `data.FFCVSource` and `TensorSource` have it."""

    @property
    def labels(self) -> Tensor: ...

    @property
    def classes(self) -> Sequence[str]: ...

    def __len__(self) -> int: ...

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Every image once, in order, without augmentation.

        A source that can leave batches out without reading them takes `first` and `every` too: the batches
        first, first + every, ...
        """
        ...


def every_nth_batch(source: Source, batch_size: int, first: int, every: int) -> Iterator[tuple[int, Batch]]:
    """The batches first, first + every, ... of all that the source has, with their numbers: one
    rank's share.
    """
    if every == 1:
        yield from enumerate(source.batches(batch_size))
    elif "every" in inspect.signature(source.batches).parameters:
        chosen = source.batches(batch_size, first=first, every=every)  # type: ignore[call-arg]
        yield from zip(itertools.count(first, every), chosen, strict=False)
    else:
        yield from itertools.islice(enumerate(source.batches(batch_size)), first, None, every)


class TrainingSource(Source, Protocol):
    """What training needs beside: `data.ResidentSource` and `data.FFCVSource` have it."""

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) of the batches."""
        ...

    @property
    def fault(self) -> Tensor:
        """Flags that kernels raised on the device; the trainer reads them before it saves."""
        ...

    def feed(self, draw: Draw, steps: int, first: int = 0) -> Generator[Batch]:
        """`steps` augmented batches of the indices that `draw()` returns, in the order of the draws.

        A source may draw ahead by a fixed number of batches, but never more than `steps` in all. first: the
        slot of the first of these indices in the global batch, of which a rank draws its slots alone: the
        random numbers of augmentation belong to the slot.
        """
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class PartOfSource:
    """The images of a source at `rows`: (n,) int64, sorted. Its batches are smaller than those asked for."""

    def __init__(self, source: Source, rows: Tensor) -> None:
        self.source, self.rows = source, rows.cpu()
        self.labels, self.classes = source.labels.cpu()[self.rows], source.classes

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self, batch_size: int) -> Iterator[Batch]:
        for idx, x, y in self.source.batches(batch_size):
            # Both are sorted, and a batch has every index between its first and its last.
            first, last = torch.searchsorted(self.rows, idx[[0, -1]].cpu() + torch.tensor([0, 1])).tolist()
            if first < last:
                chosen = (self.rows[first:last] - int(idx[0])).to(x.device)
                yield torch.arange(first, last, device=x.device), x[chosen], y[chosen]


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

    def batches(self, batch_size: int, first: int = 0, every: int = 1) -> Iterator[Batch]:
        for start in range(first * batch_size, len(self), every * batch_size):
            rows = slice(start, start + batch_size)
            yield torch.arange(start, min(start + batch_size, len(self))), self.x[rows], self.labels[rows]
