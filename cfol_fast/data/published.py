"""CIFAR-10, CIFAR-100, STL10 and Fashion-MNIST, read as their authors publish them.

torchvision reads the first three. It checks the official hash of every file before opening it, which matters:
CIFAR is a set of pickles, and no other pickle is ever loaded here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision import datasets

from cfol_fast.data.embedded.make import DEBIAN_FOLDER, read_idx
from cfol_fast.data.embedded_images import CLASSES as FASHION_CLASSES
from cfol_fast.data.images import ImageSet
from cfol_fast.data.reading import ReadOptions, TrainAndTest, need_root
from cfol_fast.errors import InputError, one_line


class LabelledSTL10(datasets.STL10):
    """Without the 2.7 GB of unlabelled images, which torchvision would otherwise require and hash
    each time.
    """

    train_list = datasets.STL10.train_list[:2]


def cifar10(root: Path | None, options: ReadOptions) -> TrainAndTest:
    return _cifar(datasets.CIFAR10, root, options)


def cifar100(root: Path | None, options: ReadOptions) -> TrainAndTest:
    return _cifar(datasets.CIFAR100, root, options)


def _cifar(kind: Any, root: Path | None, options: ReadOptions) -> TrainAndTest:
    expected = f"{kind.base_folder}/ from {kind.url}"
    root = _parent_of(need_root(root, expected), kind.base_folder)

    def part(train: bool) -> ImageSet:
        with _explained(root / kind.base_folder, expected):
            data = kind(str(root), train=train, download=options.download)
        return ImageSet(
            torch.from_numpy(data.data), torch.tensor(data.targets, dtype=torch.int64), list(data.classes)
        )

    return _both(part)


def stl10(root: Path | None, options: ReadOptions) -> TrainAndTest:
    kind = LabelledSTL10
    expected = (
        f"{kind.base_folder}/ with train_X.bin, train_y.bin, test_X.bin, test_y.bin, class_names.txt from"
        f" {kind.url}"
    )
    root = _parent_of(need_root(root, expected), kind.base_folder)

    def part(train: bool) -> ImageSet:
        with _explained(root / kind.base_folder, expected):
            data = kind(str(root), split="train" if train else "test", download=options.download)
        names = list(getattr(data, "classes", [])) or [str(c) for c in range(10)]
        images = np.ascontiguousarray(data.data.transpose(0, 2, 3, 1))
        assert data.labels is not None
        return ImageSet(torch.from_numpy(images), torch.from_numpy(data.labels.astype(np.int64)), names)

    return _both(part)


def fashion_mnist(root: Path | None, options: ReadOptions) -> TrainAndTest:
    """The four IDX files, gzipped as published or unpacked as torchvision leaves them; Debian's package needs
    no folder.
    """
    if root is None and DEBIAN_FOLDER.is_dir() and not options.download:
        root = DEBIAN_FOLDER
    expected = (
        "the four files (train|t10k)-(images-idx3|labels-idx1)-ubyte.gz from"
        " https://github.com/zalandoresearch/fashion-mnist or Debian's package dataset-fashion-mnist"
    )
    root = need_root(root, expected)
    if options.download:
        with _explained(root, expected):
            datasets.FashionMNIST(str(root), download=True)

    def part(train: bool) -> ImageSet:
        prefix = "train" if train else "t10k"
        images, labels = (
            _idx(root, f"{prefix}-{kind}-ubyte", expected) for kind in ("images-idx3", "labels-idx1")
        )
        if images.ndim != 3 or labels.ndim != 1:
            raise InputError(
                f"{root}: {prefix} images and labels have the shapes {images.shape} and {labels.shape}"
            )
        return ImageSet(
            torch.from_numpy(images.copy()).unsqueeze(-1),
            torch.from_numpy(labels.astype(np.int64)),
            FASHION_CLASSES,
        )

    return _both(part)


def _idx(root: Path, name: str, expected: str) -> np.ndarray:
    for folder in (root, root / "FashionMNIST" / "raw", root / "raw"):
        for path in (folder / f"{name}.gz", folder / name):
            if path.is_file():
                try:
                    return read_idx(path)
                except (ValueError, EOFError, OSError) as error:
                    raise InputError(f"{path} is damaged ({error}): get it again, or remove it") from error
    raise InputError(f"{root} has no {name}.gz: expected are {expected}; or add --download")


def _both(part: Callable[[bool], ImageSet]) -> TrainAndTest:
    return TrainAndTest(train=part(True), test=part(False))


def _parent_of(root: Path, base_folder: str) -> Path:
    """The folder above `base_folder`, which torchvision wants; users also give the folder itself."""
    return root.parent if root.name == base_folder else root


@contextmanager
def _explained(folder: Path, expected: str) -> Iterator[None]:
    """torchvision's exceptions as an InputError that says whether the files are missing or are not the
    official ones.
    """
    try:
        yield
    except PermissionError:
        raise
    except (RuntimeError, OSError, EOFError, ValueError) as error:
        if not folder.is_dir():
            raise InputError(
                f"{folder} is not there: expected is {expected}; or add --download ({one_line(error)})"
            ) from error
        raise InputError(
            f"{folder}: files are missing or are not the official ones (their hashes differ): expected is"
            f" {expected}; or remove the folder and add --download ({one_line(error)})"
        ) from error
