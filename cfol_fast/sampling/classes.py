"""The classes of a data set: which examples belong to each, and distributions over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cfol_fast import ops
from cfol_fast.errors import InputError
from cfol_fast.user_input import shorten, whole_number


@dataclass(frozen=True)
class Classes:
    """The examples of each class: those of class y are `members[offsets[y]:offsets[y + 1]]`.

    `offsets`: (k+1,) int64 and `members`: (N,) int64 are on the sampler's device, `frequencies`: (k,) float64
    too.
    """

    count: int
    size: int
    offsets: Tensor
    members: Tensor
    frequencies: Tensor

    @cached_property
    def labels(self) -> Tensor:
        """(N,) int64: the class of each example."""
        numbers = torch.arange(self.count, device=self.offsets.device)
        of_members = numbers.repeat_interleave(self.offsets.diff(), output_size=self.size)
        return torch.empty_like(self.members).index_copy_(0, self.members, of_members)


def classes_of(
    labels: Any, num_classes: int | None = None, device: torch.device | str | None = None
) -> Classes:
    """Groups a data set by class.

    `labels`: an int tensor (N,), a sequence, or a data set with `targets` or `labels`.

    The labels' values are looked at here, once, and nowhere later. Labels on the meta device have no values:
    they need
    `num_classes`.
    """
    labels = labels_of(labels)
    device = labels.device if device is None else torch.device(device)
    size = labels.numel()
    if num_classes is not None:
        num_classes = _few_enough(whole_number("num_classes", num_classes, 1))
    if labels.is_meta:
        if num_classes is None:
            raise ValueError("labels on the meta device hold no values: pass num_classes")
        k = num_classes
        offsets = torch.empty(k + 1, dtype=torch.int64, device="meta")
        members = torch.empty(size, dtype=torch.int64, device="meta")
    else:
        if size == 0:
            raise InputError("the data set is empty: there is no label to group by")
        k = int(labels.max()) + 1 if num_classes is None else num_classes
        # Before memory is taken for so many.
        if k > size:
            present = set(labels.tolist())
            first = next(c for c in range(size + 1) if c not in present)
            raise InputError(f"class {first} has no examples: there are {size} labels for {k} classes")
        _few_enough(k)
        offsets, members = ops.group_by_class(labels, k)
    offsets, members = offsets.to(device), members.to(device)
    return Classes(k, size, offsets, members, offsets.diff().to(torch.float64) / size)


def _few_enough(k: int) -> int:
    if k > ops.MAX_CLASSES:
        raise InputError(
            f"{k:,} classes are too many, at most {ops.MAX_CLASSES:,} can be drawn from: join classes, or"
            " draw examples with UniformSampler or ExampleSampler"
        )
    return k


def labels_of(data: Any) -> Tensor:
    """The labels of a data set, as it hands them out, as an int64 tensor: (N,)."""
    if isinstance(data, torch.utils.data.Subset):
        return labels_of(data.dataset)[torch.as_tensor(data.indices)]
    if isinstance(data, torch.utils.data.ConcatDataset):
        return torch.cat([labels_of(part) for part in data.datasets])
    if not isinstance(data, Tensor):
        found = getattr(data, "targets", None)
        found = getattr(data, "labels", None) if found is None else found
        if found is None and isinstance(data, torch.utils.data.Dataset):
            raise TypeError(
                f"{type(data).__name__} has neither 'targets' nor 'labels': pass its labels as a tensor of"
                " shape (N,)"
            )
        # torchvision keeps `targets` as they are on the disk.
        transform = None if found is None else getattr(data, "target_transform", None)
        found = data if found is None else found
        if transform is not None:
            found = [transform(y) for y in labels_of(found).tolist()]
        try:
            data = torch.as_tensor(found)
        # torch raises each of them for something that is no row of numbers.
        except (TypeError, ValueError, RuntimeError):
            raise InputError(
                f"labels must be integers of shape (N,), one for each example, got {shorten(found)}: give a"
                " tensor, a list or a data set with 'targets'"
            ) from None
    if data.dim() == 1 and not data.numel():
        return data.to(torch.int64)
    if (
        data.dim() != 1
        or data.dtype.is_floating_point
        or data.dtype in (torch.bool, torch.complex64, torch.complex128)
    ):
        raise InputError(
            f"labels must be integers of shape (N,), got {data.dtype} of shape {tuple(data.shape)}"
        )
    return data.to(torch.int64)


def distribution(given: str | Sequence[float] | Tensor, classes: Classes, name: str) -> Tensor:
    """A distribution over the classes: (k,) float64 on their device. "uniform", "empirical" or positive
    numbers.
    """
    device = classes.offsets.device
    if isinstance(given, str):
        if given == "uniform":
            return torch.full((classes.count,), 1 / classes.count, dtype=torch.float64, device=device)
        if given == "empirical":
            return classes.frequencies
    try:
        vector = torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"{name} must be 'uniform', 'empirical' or {classes.count} probabilities, got {given!r}"
        ) from None
    if vector.shape != (classes.count,):
        raise InputError(
            f"{name} must have {classes.count} entries, one per class, got shape {tuple(vector.shape)}"
        )
    if not vector.is_meta:
        total = float(vector.sum())
        if not bool((vector > 0).all()) or abs(total - 1) > 1e-4:
            raise InputError(
                f"{name} must be positive and sum to 1, got a sum of {total:g} and a least entry of"
                f" {float(vector.min()):g}"
            )
        vector = vector / total
    return vector.to(device)
