"""What an evaluation is given: it is checked here, so that nothing silently gives a wrong figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from cfol_fast.data.source import Source, TensorSource
from cfol_fast.errors import InputError
from cfol_fast.evaluation.readers import LoaderSource, loader_in
from cfol_fast.frozen import described, logits_in, precision_told
from cfol_fast.models.spec import ModelSpec
from cfol_fast.user_input import shorten


def as_source(x_or_source: Any, y: Tensor | None) -> Source:
    if isinstance(x_or_source, Tensor):
        if y is None:
            raise InputError("the labels y are missing: evaluate(model, x, y)")
        source: Source = TensorSource(x_or_source, _as_labels(y))
    elif hasattr(x_or_source, "batches") and hasattr(x_or_source, "labels"):
        if y is not None:
            raise InputError("a source has its own labels; y belongs to a tensor of images")
        source = x_or_source
    elif isinstance(x_or_source, np.ndarray):
        raise InputError("images must be a tensor of torch: evaluate(model, torch.from_numpy(x), y)")
    elif _is_batch(x_or_source):
        raise InputError(
            "a list of batches is no data set of examples: join them with torch.cat, or pass the DataLoader"
        )
    elif isinstance(x_or_source, DataLoader) or hasattr(x_or_source, "__getitem__"):
        if y is not None:
            raise InputError("a data set has its own labels; y belongs to a tensor of images")
        fixed = isinstance(x_or_source, DataLoader)
        source = LoaderSource(x_or_source if fixed else DataLoader(x_or_source), fixed)
    else:
        raise TypeError(
            "expected images as a tensor, a DataLoader, a data set, or a source with batches() and labels,"
            f" got {type(x_or_source).__name__}"
        )
    if len(source) == 0:
        raise InputError("the data set is empty: there is nothing to evaluate")
    if source.labels.dtype != torch.int64 or source.labels.dim() != 1:
        raise InputError(f"labels must be int64 (N,), got {source.labels.dtype} {tuple(source.labels.shape)}")
    return source


def _is_batch(given: Any) -> bool:
    """Whether the entries of a list are (images, labels) of several examples."""
    first = given[0] if isinstance(given, (list, tuple)) and given else None
    y = first[1] if isinstance(first, (list, tuple)) and len(first) > 1 else None
    return isinstance(y, Tensor) and y.dim() == 1


def _as_labels(y: Any) -> Tensor:
    try:
        return torch.as_tensor(y)
    # torch raises each of them for something that is no row of numbers.
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"labels must be int64 (N,), got {shorten(y)}") from None


def class_names(
    source: Source, given: Sequence[str] | None, num_classes: int | None, logits: int
) -> list[str]:
    """The names of the classes, agreed upon by the data, the caller and the width of the model's logits."""
    names = list(given if given is not None else source.classes)
    k = num_classes if num_classes is not None else (len(names) or logits)
    names = names or [str(c) for c in range(k)]
    if len(names) != k:
        raise InputError(f"there are {len(names)} class names for {k} classes")
    if len(set(names)) < k:
        raise InputError(f"the class names are not different from each other: {', '.join(sorted(names))}")
    if logits != k:
        raise InputError(
            f"the model has {logits} outputs, the data set {k} classes: it was made for another data set, or"
            " num_classes is wrong"
        )
    # Those of a loader are known, and checked, batch by batch.
    if loader_in(source) is None:
        check_labels(source.labels, k)
    return names


def model_classes(model: nn.Module) -> list[str]:
    """The names of the model's classes, where it has them: `load` sets them."""
    names = _of_ours(model, "classes")
    if isinstance(names, (list, tuple)) and names and all(isinstance(name, str) for name in names):
        return list(names)
    return []


def _of_ours(model: nn.Module, name: str) -> Any:
    """What `load` noted at a model, also where DataParallel or DistributedDataParallel is around it."""
    inner = getattr(model, "module", None)
    return getattr(model, name, getattr(inner, name, None) if isinstance(inner, nn.Module) else None)


def check_size(model: nn.Module, x: Tensor) -> None:
    """Refuses images of another size than a model of ours, which knows its own, was trained with."""
    spec = _of_ours(model, "spec")
    if not isinstance(spec, ModelSpec):
        return
    wanted = (spec.in_channels, spec.image_size, spec.image_size)
    if tuple(x.shape[1:]) != wanted:
        channels, height, width = tuple(x.shape[1:])
        raise InputError(
            f"the images have {width}x{height} pixels and {channels} channels, the model takes"
            f" {wanted[2]}x{wanted[1]} and {wanted[0]}: give it images like those it was trained with"
        )


def check_labels(labels: Tensor, k: int) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= k:
        raise InputError(f"labels must be 0..{k - 1} for {k} classes, got {low}..{high}")


def logits_of(model: nn.Module, x: Tensor, batch: int) -> Tensor:
    """(B, k) logits, checked: NaN would count as a wrong prediction and look like a weak model."""
    with precision_told(model, x):
        # A model may write to its images, which are used again.
        logits = logits_in(model(x.clone()))
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(x):
        raise InputError(
            f"the model must return logits of shape ({len(x)}, classes), got {described(logits)}"
        )
    if bool(logits.isnan().any()):
        raise InputError(
            f"batch {batch}: the model's logits are NaN; the weights are broken, or its precision is too low"
        )
    return logits
