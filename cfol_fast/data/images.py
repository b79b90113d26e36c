"""Labelled images as plain tensors: what the readers return and the sources hold.

Images stay uint8 until the gather + augment op turns a batch of them into pixels in [0, 1]. The class names
stay with the labels, all the way to the plots. The choices made here (hold-out, imbalance) are seeded, and
made within each class.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, Union

import numpy as np
import torch
from torch import Tensor

from cfol_fast import ops
from cfol_fast.data.groups import holdout_of_groups, numbered
from cfol_fast.errors import InputError

if TYPE_CHECKING:
    from cfol_fast.data.listing import Listing

# Bytes of a part whose pixels are all read: a second or two. The pixels of a larger one may lie on the disk.
MOST_READ = 1 << 32


class StoredImages(Protocol):
    """The images of a part that stay in files (`BetonSet`, `StreamSet`), with the surface of `ImageSet` that
    dividing and describing a data set need.
    """

    @property
    def labels(self) -> Tensor: ...

    @property
    def classes(self) -> list[str]: ...

    @property
    def channels(self) -> int: ...

    @property
    def size(self) -> tuple[int, int] | None: ...

    def __len__(self) -> int: ...

    def subset(self, indices: Tensor | Sequence[int] | np.ndarray) -> StoredImages: ...

    def class_counts(self) -> Tensor: ...

    def image(self, index: int) -> Tensor: ...

    def stored_sizes(self) -> np.ndarray:
        """int64 (n,): the bytes of each image as it is stored."""
        ...

    def bytes_on_disk(self) -> int:
        """Of the files that the images are in."""
        ...

    def described_sizes(self) -> np.ndarray:
        """int64 (n,): the sizes that belong to the digests of a part without a list of files of its own."""
        ...

    @property
    def described_whole(self) -> bool:
        """Whether all images of such a part are looked at."""
        ...

    def described(self, indices: Iterable[int]) -> Iterator[bytes] | Iterator[Tensor]:
        """What the digests of these images are made of: their pixels, or their bytes as they are stored."""
        ...

    def remembered(self, what: str, compute: Callable[[], np.ndarray], indices: Iterable[int]) -> np.ndarray:
        """`compute()` of these images, which may be kept beside the data."""
        ...


# What a data set's parts are: in memory, or in files.
Images: TypeAlias = Union["ImageSet", StoredImages]


@dataclass(frozen=True, eq=False)
class ImageSet(torch.utils.data.Dataset):
    """Images of one split, in one of two layouts.

    images: uint8 (N, H, W, C); or, with a table, uint8 (bytes,): all images one after another.
    table:  int64 (N, 3) of (byte offset, height, width), for images of different sizes.
    labels: int64 (N,), in 0..k-1 with k = len(classes).
    """

    images: Tensor
    labels: Tensor
    classes: list[str]
    table: Tensor | None = None
    channels: int = 3

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8:
            raise InputError(f"images must be uint8, got {self.images.dtype}")
        if self.table is None:
            if self.images.dim() != 4:
                raise InputError(f"images must be (N, H, W, C), got the shape {tuple(self.images.shape)}")
            object.__setattr__(self, "channels", self.images.shape[3])
            count = len(self.images)
        else:
            if self.images.dim() != 1 or self.table.dim() != 2 or self.table.shape[1] != 3:
                raise InputError(
                    "with a table images must be (bytes,) and the table (N, 3), got"
                    f" {tuple(self.images.shape)} and {tuple(self.table.shape)}"
                )
            count = len(self.table)
            self._check_table(self.table)
        check_labels(self.labels, len(self.classes), count)

    def _check_table(self, table: Tensor) -> None:
        ends = table[:, 0] + table[:, 1] * table[:, 2] * self.channels
        wrong = (table < 0).any(1) | (table[:, 1:] == 0).any(1) | (ends > self.images.numel())
        if bool(wrong.any()):
            first = int(wrong.nonzero()[0])
            raise InputError(
                f"image {first}: offset, height, width {table[first].tolist()} do not lie in"
                f" {self.images.numel()} bytes"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def targets(self) -> Tensor:
        """The labels, under the name torchvision's data sets use."""
        return self.labels

    @property
    def nbytes(self) -> int:
        """Bytes the resident source keeps on the device."""
        if self.table is None:
            return self.images.nbytes + self.labels.nbytes
        pixels = int((self.table[:, 1] * self.table[:, 2]).sum()) * self.channels
        return pixels + self.labels.nbytes + self.table.nbytes

    def compact(self) -> ImageSet:
        """A copy without other images' bytes: a subset with a table shares the bytes of the set it was taken
        from.
        """
        if self.table is None or not len(self):
            return self
        lengths = self.table[:, 1] * self.table[:, 2] * self.channels
        ends = lengths.cumsum(0)
        if int(ends[-1]) == self.images.numel():
            return self
        pairs = zip(self.table[:, 0].tolist(), lengths.tolist(), strict=True)
        images = torch.cat([self.images[start : start + length] for start, length in pairs])
        table = torch.cat([(ends - lengths).unsqueeze(1), self.table[:, 1:]], 1)
        return ImageSet(images, self.labels, self.classes, table, self.channels)

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) when all images have it, else None."""
        if self.table is None:
            return self.images.shape[1], self.images.shape[2]
        first = self.table[0, 1:]
        return (int(first[0]), int(first[1])) if bool((self.table[:, 1:] == first).all()) else None

    def image(self, index: int) -> Tensor:
        """Image `index`: uint8 (H, W, C)."""
        if self.table is None:
            return self.images[index]
        offset, height, width = self.table[index].tolist()
        return self.images[offset : offset + height * width * self.channels].view(
            height, width, self.channels
        )

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """(float32 (C, H, W) in [0, 1], label): an ImageSet is also a torch data set, for the user's own
        DataLoader.
        """
        return self.image(int(index)).permute(2, 0, 1).contiguous().float() / 255, int(self.labels[index])

    def subset(self, indices: Tensor | Sequence[int] | np.ndarray) -> ImageSet:
        """The images at `indices`, in that order. With a table the pixels are shared with this set."""
        idx = check_rows(indices, len(self))
        if self.table is None:
            return ImageSet(self.images[idx], self.labels[idx], self.classes)
        return ImageSet(self.images, self.labels[idx], self.classes, self.table[idx], self.channels)

    def class_counts(self) -> Tensor:
        """int64 (k,): images of each class."""
        return torch.bincount(self.labels, minlength=len(self.classes))


@dataclass(frozen=True, eq=False)
class ImageData:
    """A data set ready for training: both splits, and what goes with them.

    augment: what training does to the images unless told otherwise. paper_augment: what the paper does to
    this data set.
    white: the white point that images with more than 8 bits were read with; None where there are none.
    files: of "train", "test" and "holdout", where the images were decoded from files. Where a data set has no
    test part, all are in "train".
    holdout: the user's own, where it was asked for. groups: of the training images, int64 (n,), where they
    were asked for.
    """

    name: str
    train: Images
    test: Images
    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: ops.Augment | None
    paper_augment: ops.Augment
    eps: float
    model: str
    notes: list[str] = field(default_factory=list)
    white: float | None = None
    files: dict[str, Listing] = field(default_factory=dict)
    holdout: Images | None = None
    groups: Tensor | None = None

    @property
    def channels(self) -> int:
        return self.train.channels

    @property
    def classes(self) -> list[str]:
        return self.train.classes


def check_rows(indices: Tensor | Sequence[int] | np.ndarray, count: int) -> Tensor:
    """int64: the indices of a subset of `count` images."""
    idx = torch.as_tensor(indices, dtype=torch.int64)
    if len(idx) and (int(idx.min()) < 0 or int(idx.max()) >= count):
        raise InputError(f"subset indices must be in 0..{count - 1}, got {int(idx.min())}..{int(idx.max())}")
    return idx


def check_labels(labels: Tensor, num_classes: int, count: int | None = None) -> None:
    """Refuses labels that are not int64 (count,) in 0..num_classes-1."""
    if labels.dtype != torch.int64 or labels.dim() != 1:
        raise InputError(f"labels must be int64 (N,), got {labels.dtype} {tuple(labels.shape)}")
    if count is not None and len(labels) != count:
        raise InputError(f"there are {count} images, but {len(labels)} labels")
    if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= num_classes):
        raise InputError(
            f"labels must be 0..{num_classes - 1} for {num_classes} classes, got"
            f" {int(labels.min())}..{int(labels.max())}"
        )


def check_every_class(images: Images, where: str) -> None:
    """Refuses a split in which a class has no image: it could be neither drawn nor given an accuracy."""
    counts = images.class_counts()
    missing = [images.classes[c] for c in range(len(counts)) if int(counts[c]) == 0]
    if missing:
        raise InputError(
            f"{where}: no image of class {', '.join(map(repr, missing[:5]))}{' ...' if missing[5:] else ''}"
        )


def holdout(
    labels: Tensor,
    fraction: float = 0.2,
    seed: int = 0,
    classes: Sequence[str] = (),
    groups: Sequence[Hashable] | np.ndarray | Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Splits off `fraction` of every class at random: (kept indices, held-out indices), each sorted.

    At least one image of every class is kept, and at least one held out. classes: their names, for errors.
    groups: of each image, what it belongs to: no group is on both sides, and the shares are as near as groups
    allow.
    """
    if not 0 < fraction < 1:
        raise InputError(f"the hold-out fraction must be in (0, 1), got {fraction}")
    if groups is not None and len(labels):
        return holdout_of_groups(labels, numbered(groups, len(labels)), fraction, seed, classes)
    array = labels.cpu().numpy()
    kept, held = [], []
    for c in np.unique(array):
        members = np.flatnonzero(array == c)
        if len(members) < 2:
            raise InputError(
                f"class {repr(classes[c]) if len(classes) else c} has {len(members)} image: nothing is left"
                " to hold out (use --holdout none)"
            )
        order = np.random.default_rng([seed, int(c)]).permutation(members)
        give = min(max(round(fraction * len(members)), 1), len(members) - 1)
        held.append(order[:give])
        kept.append(order[give:])
    if not kept:
        raise InputError("cannot hold out anything from 0 images")
    return torch.from_numpy(np.sort(np.concatenate(kept))), torch.from_numpy(np.sort(np.concatenate(held)))


def stratified(labels: Tensor, count: int, seed: int = 0) -> Tensor:
    """`count` images at random, in each class its share of all: sorted indices.

    With a count for it, every class has one at least.

    The same for the same labels, so that what is measured on such a part can be compared.
    """
    array = labels.cpu().numpy()
    if not 1 <= count <= len(array):
        raise InputError(f"a part of the images must have 1 to {len(array)} of them, got {count}")
    classes, sizes = np.unique(array, return_counts=True)
    shares = count * sizes / len(array)
    given = np.full(len(classes), int(count >= len(classes)))
    # Ties are broken at random: with fewer images than classes there is no order to prefer.
    ties = np.random.default_rng([seed, len(classes)]).random(len(classes)) * 1e-6
    for _ in range(count - int(given.sum())):
        given[np.argmax(np.where(given < sizes, shares - given + ties, -np.inf))] += 1
    chosen = [
        np.random.default_rng([seed, int(c)]).permutation(np.flatnonzero(array == c))[:n]
        for c, n in zip(classes, given, strict=True)
    ]
    return torch.from_numpy(np.sort(np.concatenate(chosen)))


def imbalance(images: Images, factor: float, seed: int = 0) -> Images:
    """Thins class c to its count times factor^(-c/(k-1)): the first class keeps all, the last one
    1/factor.
    """
    rows = thinned(images.labels.numpy(), len(images.classes), factor, seed)
    return images if rows is None else images.subset(rows)


def thinned(labels: np.ndarray, k: int, factor: float, seed: int) -> np.ndarray | None:
    """The rows that `imbalance` keeps, sorted; None where it keeps all."""
    if factor < 1:
        raise InputError(f"the imbalance factor must be >= 1 (first class : last class), got {factor}")
    if factor == 1 or k < 2:
        return None
    chosen = []
    for c in range(k):
        members = np.flatnonzero(labels == c)
        keep = max(1, int(len(members) * factor ** (-c / (k - 1)) + 1e-9))
        chosen.append(np.random.default_rng([seed, c]).permutation(members)[:keep])
    return np.sort(np.concatenate(chosen))


class ChannelSums:
    """Sums over pixels, in integers, for the mean and the standard deviation of each channel."""

    def __init__(self, channels: int) -> None:
        self.count = 0
        self.sums, self.squares = np.zeros(channels, np.int64), np.zeros(channels, np.int64)

    def add(self, pixels: np.ndarray) -> None:
        """pixels: uint8 (H, W, C)."""
        flat = pixels.reshape(-1, len(self.sums)).astype(np.int64)
        self.count += len(flat)
        self.sums += flat.sum(0)
        self.squares += np.square(flat).sum(0)

    def join(self, other: ChannelSums) -> None:
        self.count += other.count
        self.sums += other.sums
        self.squares += other.squares

    def mean_and_std(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Of pixels in [0, 1], to four digits; a channel that does not vary has a deviation of 0.001."""
        mean = self.sums / self.count / 255
        std = np.sqrt(np.maximum(self.squares / self.count / 255**2 - mean**2, 1e-6))
        return tuple(round(float(v), 4) for v in mean), tuple(max(round(float(v), 4), 1e-3) for v in std)
