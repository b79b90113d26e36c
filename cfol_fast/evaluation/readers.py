"""A user's own `DataLoader` or data set as a source: every example once, in an order that stays the same.

The labels are known when the examples have been read: images are decoded once for an evaluation, not once more for their labels.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from cfol_fast.data.source import Batch
from cfol_fast.errors import InputError

# Names of the images and the labels in examples that are dicts, as Hugging Face and torchvision call them.
IMAGES = ("pixel_values", "image", "images", "img", "x")
LABELS = ("labels", "label", "targets", "target", "y")


class LoaderSource:
    """loader: reads the examples with its own workers and collate_fn. fixed: keep its batches; otherwise they are chosen here.

    A loader that shuffles or takes a part of its data set does so once, here; every later pass reads the same examples.
    """

    def __init__(self, loader: DataLoader[Any], fixed: bool) -> None:
        if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
            raise InputError(
                "an evaluation reads each example by its index, in batches: pass a map-style data set, or a DataLoader of one "
                "with a batch_size"
            )
        self.loader = loader
        given = list(loader.batch_sampler)
        self._batches = given if fixed else None
        self.order = [index for batch in given for index in batch]
        # Filled by `batches`.
        self.labels = torch.zeros(len(self.order), dtype=torch.int64)
        self.classes = _class_names(loader.dataset)

    def __len__(self) -> int:
        return len(self.order)

    def batches(self, batch_size: int, first: int = 0, every: int = 1) -> Iterator[Batch]:
        order = self.order
        batches = self._batches or [order[at : at + batch_size] for at in range(0, len(order), batch_size)]
        starts = [0, *itertools.accumulate(map(len, batches))][first::every]
        loader = self.loader
        again = DataLoader(
            loader.dataset,
            batch_sampler=batches[first::every],
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
        )
        for number, (start, batch) in enumerate(zip(starts, again, strict=False)):
            x, y = images_and_labels(batch, first + number * every)
            rows = torch.arange(start, start + len(y))
            self.labels[rows] = y.cpu()
            yield rows, x, y


def images_and_labels(batch: Any, number: int) -> tuple[Tensor, Tensor]:
    """(x, y) of a collated batch: the first two of a tuple, or the entries of a dict."""
    if isinstance(batch, Mapping):
        found = [next((name for name in names if name in batch), None) for names in (IMAGES, LABELS)]
        if None in found:
            raise InputError(
                f"batch {number} has the entries {', '.join(map(str, batch))}: expected images as one of {', '.join(IMAGES)} "
                f"and labels as one of {', '.join(LABELS)}"
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


def _class_names(dataset: Any) -> list[str]:
    """torchvision's `classes`, also of a Subset, or the names of Hugging Face's label; empty where the data set has none."""
    if isinstance(dataset, torch.utils.data.Subset):
        return _class_names(dataset.dataset)
    features = getattr(dataset, "features", None)
    label = next((features[name] for name in LABELS if isinstance(features, dict) and name in features), None)
    classes = getattr(dataset, "classes", None) or getattr(label, "names", None)
    if not isinstance(classes, (list, tuple)):
        return []
    # torchvision's ImageNet has several names for a class.
    return [", ".join(name) if isinstance(name, tuple) else str(name) for name in classes]
