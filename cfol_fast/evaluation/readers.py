"""A user's own `DataLoader` or data set as a source: every example once, in an order that stays the same.

The labels are known when the examples have been read: images are decoded once for an evaluation, not once
more for their labels.
"""

from __future__ import annotations

import itertools
import operator
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset

from cfol_fast.data.classes import InModelOrder
from cfol_fast.data.numbered import IMAGES, LABELS, Delivered, in_sequence, numbered_batches
from cfol_fast.data.source import Batch
from cfol_fast.errors import InputError
from cfol_fast.evaluation.dataset_names import names_of
from cfol_fast.evaluation.rows import MISSING


class LoaderSource:
    """loader: reads the examples with its own workers and collate_fn. fixed: keep its batches; otherwise they
    are chosen here.

    A loader that shuffles or takes a part of its data set does so once, here; every later pass reads the same
    examples, and must find the same images and labels. notes: what a reader of the result should know of the
    loader.
    """

    def __init__(self, loader: DataLoader[Any], fixed: bool) -> None:
        if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
            raise InputError(
                "an evaluation reads each example by its index, in batches: pass a map-style data set, or a"
                " DataLoader of one with a batch_size"
            )
        self.loader = loader
        given = [batch for batch in loader.batch_sampler if len(batch)]
        self._batches = given if fixed else None
        self.order = [index for batch in given for index in batch]
        _check_each_once(self.order, loader.dataset)
        # Filled by `batches`.
        self.labels = torch.full((len(self.order),), MISSING, dtype=torch.int64)
        self.classes, notes = names_of(loader.dataset)
        self.notes = [*_notes(loader, len(self.order)), *notes]
        # The check sum of the images of each batch that was read, by its first row and its size.
        self._sums: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.order)

    def batches(self, batch_size: int, first: int = 0, every: int = 1) -> Iterator[Batch]:
        batches, starts = self._division(batch_size)
        loader = self.loader
        again = numbered_batches(
            loader.dataset,
            [*in_sequence(batches, first, every)],
            loader.collate_fn,
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            timeout=loader.timeout,
        )
        reader = iter(again)
        for delivered in reader:
            if delivered.problem() is not None:
                raise InputError(_what_went_wrong(delivered, reader))
            x, y = images_and_labels(delivered.batch, delivered.number)
            if len(y) != delivered.asked:
                raise InputError(
                    f"batch {delivered.number} has {len(y)} examples, the loader was asked for"
                    f" {delivered.asked}"
                )
            start = starts[delivered.number]
            self._keep(delivered.number, start, x, y.cpu())
            yield torch.arange(start, start + len(y)), x, y

    def batch_of(self, row: int, batch_size: int) -> int:
        """The number of the batch with this row."""
        return bisect_right(self._division(batch_size)[1], row) - 1

    def _division(self, batch_size: int) -> tuple[list[list[Any]], list[int]]:
        """The batches, and the row that each begins with."""
        order = self.order
        batches = self._batches or [order[at : at + batch_size] for at in range(0, len(order), batch_size)]
        return batches, [0, *itertools.accumulate(map(len, batches))][:-1]

    def _keep(self, number: int, start: int, x: Tensor, y: Tensor) -> None:
        """Remembers a batch, and compares it with what was read before: figures of different images do not
        belong together.
        """
        rows, key = slice(start, start + len(y)), (start, len(y))
        found = zlib.crc32(x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        before = self.labels[rows]
        for what, changed in (
            ("labels", bool(((before != y) & (before != MISSING)).any())),
            ("images", self._sums.setdefault(key, found) != found),
        ):
            if changed:
                raise InputError(
                    f"batch {number} has other {what} than when it was read before: the data set must give"
                    " the same each time, without random augmentation"
                )
        self.labels[rows] = y


def _check_each_once(order: list[Any], dataset: Any) -> None:
    """A loader may leave examples out; one that comes twice would count twice."""
    try:
        different = len({_example(dataset, index) for index in order})
    # Indices of a kind that cannot be compared.
    except TypeError:
        return
    if repeated := len(order) - different:
        raise InputError(
            f"the loader gives {repeated} of its {len(order)} examples twice or more: each must come once;"
            " leave out sampling with replacement, a Subset or ConcatDataset with repetitions, and"
            " DistributedSampler, which fills up its last batch with repeated examples"
        )


def _example(dataset: Any, index: Any) -> Any:
    """What an index stands for, below the parts of data sets that torch makes: (data set, its number)."""
    number = _number(index, len(dataset) if hasattr(dataset, "__len__") else 0)
    if isinstance(number, int) and 0 <= number < len(dataset):
        if type(dataset) is Subset:
            return _example(dataset.dataset, dataset.indices[number])
        if type(dataset) is ConcatDataset:
            part = bisect_right(dataset.cumulative_sizes, number)
            before = dataset.cumulative_sizes[part - 1] if part else 0
            return _example(dataset.datasets[part], number - before)
    return id(dataset), number


def _number(index: Any, size: int) -> Any:
    """An index as a data set with so many examples understands it."""
    try:
        number = operator.index(index)
    except TypeError:
        return index
    return number + size if number < 0 else number


def _notes(loader: DataLoader[Any], examples: int) -> list[str]:
    notes = []
    size = len(loader.dataset) if hasattr(loader.dataset, "__len__") else examples  # type: ignore[arg-type]
    if left_out := size - examples:
        why = "drop_last=True" if getattr(loader.batch_sampler, "drop_last", False) else "its sampler"
        notes.append(f"the loader left out {left_out} of the data set's {size} examples ({why})")
    if type(loader).__iter__ is not DataLoader.__iter__:
        notes.append(
            f"the examples were read through the data set and collate_fn of {type(loader).__name__}, not"
            " through its own __iter__"
        )
    return notes


def _what_went_wrong(delivered: Delivered, rest: Iterator[Delivered]) -> str:
    """Of all batches: the others are read for their counts alone."""
    asked = missing = 0
    for one in itertools.chain([delivered], rest):
        asked += one.asked
        missing += one.missing
    said = f"batch {delivered.number}: {delivered.problem()}"
    if missing:
        what = "are missing" if missing > 0 else "came in addition"
        said += f"; of all {asked} examples {abs(missing)} {what}"
    return (
        f"{said}; an evaluation needs each example once, in its place (leave examples out with"
        " torch.utils.data.Subset)"
    )


def loader_in(source: Any) -> LoaderSource | None:
    """The loader that a source reads, also where its labels are mapped to those of a model."""
    while isinstance(source, InModelOrder):
        source = source.source
    return source if isinstance(source, LoaderSource) else None


def images_and_labels(batch: Any, number: int) -> tuple[Tensor, Tensor]:
    """(x, y) of a collated batch: the first two of a tuple, or the entries of a dict."""
    if isinstance(batch, Mapping):
        found = [next((name for name in names if name in batch), None) for names in (IMAGES, LABELS)]
        if None in found:
            raise InputError(
                f"batch {number} has the entries {', '.join(map(str, batch))}: expected images as one of"
                f" {', '.join(IMAGES)} and labels as one of {', '.join(LABELS)}"
            )
        x, y = (batch[name] for name in found)
    elif isinstance(batch, (tuple, list)) and len(batch) >= 2:
        x, y = batch[:2]
    else:
        raise InputError(f"batch {number} must be (images, labels) or a dict, got {type(batch).__name__}")
    if not isinstance(x, Tensor) or not x.is_floating_point():
        what = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise InputError(
            f"batch {number}: images must be a tensor of floating point numbers in [0, 1], got {what}; "
            "torchvision's ToTensor makes one"
        )
    if not isinstance(y, Tensor) or y.dim() != 1 or y.is_floating_point() or len(y) != len(x):
        what = f"{y.dtype} {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise InputError(f"batch {number}: labels must be integers ({len(x)},), got {what}")
    return x, y.to(torch.int64)
