"""A data set in FFCV files: `--dataset beton --data DIR`.

Labels and sizes are in memory, pixels stay in the files.

`BetonSet` has the surface of `ImageSet` that dividing a data set needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from cfol_fast import ops
from cfol_fast.data.ffcv.format import JPG
from cfol_fast.data.ffcv.reader import Beton, open_beton, written_size
from cfol_fast.data.reading import ReadOptions, TrainAndTest, need_root
from cfol_fast.errors import InputError, one_line

NAME = "beton"
TRAIN, TEST = "train.beton", ("test.beton", "val.beton")
EXPECTED = (
    f"it should hold {TRAIN} and {' or '.join(TEST)}, as cfol-fast data to-ffcv --split all --out DIR writes"
    " them"
)


class BetonSet:
    """The images of an FFCV file at `rows`: (n,) int64; None: all of them."""

    def __init__(self, file: Beton, rows: Tensor | None = None) -> None:
        self.file, self.rows = file, rows
        labels = torch.from_numpy(file.labels)
        self.labels = labels if rows is None else labels[rows]
        self.classes: list[str] = list(file.description["classes"])
        self.channels = file.channels

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) when all images of the file have it, else None."""
        return self.file.size

    def subset(self, indices: Tensor | Sequence[int] | np.ndarray) -> BetonSet:
        rows = torch.as_tensor(indices, dtype=torch.int64)
        return BetonSet(self.file, rows if self.rows is None else self.rows[rows])

    def class_counts(self) -> Tensor:
        """int64 (k,): images of each class."""
        return torch.bincount(self.labels, minlength=len(self.classes))

    def stored_sizes(self) -> np.ndarray:
        """int64 (n,): the bytes of each image in the file."""
        lengths = self.file.lengths
        return lengths if self.rows is None else lengths[self.rows.numpy()]

    def bytes_on_disk(self) -> int:
        """Of the whole file."""
        return self.file.path.stat().st_size

    def described_sizes(self) -> np.ndarray:
        return self.stored_sizes()

    described_whole = False

    def described(self, indices: Iterable[int]) -> Iterator[bytes]:
        """The images' bytes in the file: what digests are made of."""
        return self.stored(indices)

    def remembered(self, what: str, compute: Callable[[], np.ndarray], indices: Iterable[int]) -> np.ndarray:
        """Nothing is kept beside the files."""
        return compute()

    def stored(self, indices: Iterable[int]) -> Iterator[bytes]:
        """The images' bytes in the file, as they are."""
        with open(self.file.path, "rb") as stream:
            for index in indices:
                row = index if self.rows is None else int(self.rows[index])
                stream.seek(int(self.file.pointers[row]))
                yield stream.read(int(self.file.lengths[row]))

    def image(self, index: int) -> Tensor:
        """Image `index`: uint8 (H, W, C), read from the file."""
        file, row = self.file, index if self.rows is None else int(self.rows[index])
        (stored,) = self.stored([index])
        if file.modes[row] == JPG:
            with Image.open(BytesIO(stored), formats=["JPEG"]) as image:
                return torch.from_numpy(np.array(image.convert("RGB")))
        pixels = np.frombuffer(stored, np.uint8).reshape(file.heights[row], file.widths[row], file.channels)
        return torch.from_numpy(pixels.copy())


def read(root: Path | None, options: ReadOptions) -> TrainAndTest:
    """The reader of `--dataset beton`: it opens the two files, and reads nothing else."""
    folder = need_root(root, EXPECTED)
    tests = [folder / name for name in TEST if (folder / name).is_file()]
    if not tests or not (folder / TRAIN).is_file():
        missing = " or ".join(TEST) if (folder / TRAIN).is_file() else TRAIN
        raise InputError(f"{folder}: {missing} is not there; {EXPECTED}")
    train, test = open_beton(folder / TRAIN), open_beton(tests[0])
    for file, other in ((train, "test"), (test, "train")):
        if file.description.get("split") == other:
            raise InputError(
                f"{file.path} holds the {other} part of {file.description.get('dataset')}: {EXPECTED}"
            )
    for what, mine, theirs in (
        ("classes", train.description["classes"], test.description["classes"]),
        ("channels", train.channels, test.channels),
        ("sizes", train.size or test.size, test.size or train.size),
    ):
        if mine != theirs:
            raise InputError(
                f"{train.path} and {test.path} are not of one data set: their {what} differ ({mine};"
                f" {theirs})"
            )
    size = train.size or written_size(train.description)
    if size is None:
        raise InputError(
            f"{train.path} has images of different sizes, and does not say the size of the batches: write it"
            " with cfol-fast data to-ffcv"
        )
    mean, std = (_per_channel(train, name) for name in ("mean", "std"))
    return TrainAndTest(BetonSet(train), BetonSet(test), size, [], mean, std, _augment(train), is_own(train))


def is_own(file: Beton) -> bool:
    """Whether the images are the user's own: written from a folder, or by a program that says nothing of
    them.
    """
    known = file.description
    return known.get("dataset") == "folder" or not known.keys() & {"dataset", "augment"}


def holds_own(folder: Path) -> bool | None:
    """`is_own` of the files in a folder; None where they cannot be read, which is refused where they are
    loaded.
    """
    with suppress(InputError):
        return is_own(open_beton(folder / TRAIN))
    return None


def _per_channel(file: Beton, name: str) -> tuple[float, ...] | None:
    """The mean or the deviation that the writer noted, or None in a file that another program wrote."""
    values = file.description.get(name)
    if values is None:
        return None
    if (
        not isinstance(values, list)
        or len(values) != file.channels
        or not all(type(value) in (int, float) and 0 <= value <= 1 for value in values)
        or (name == "std" and not all(values))
    ):
        raise InputError(f"{file.path}: its {name} must be {file.channels} numbers in [0, 1], got {values!r}")
    return tuple(map(float, values))


def _augment(file: Beton) -> ops.Augment | None:
    """The augmentation of the data set that the file was written from, or None."""
    values = file.description.get("augment")
    if values is None:
        return None
    known = {
        field.name: (int, float) if field.type == "float" else (int, bool) for field in fields(ops.Augment)
    }
    try:
        if not all(type(value) in known[name] for name, value in values.items()):
            raise ValueError(f"got {values!r}")
        return ops.Augment(**values)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file.path}: its augmentation cannot be used: {one_line(error)}") from error
