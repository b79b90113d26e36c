"""What a reader is asked for and what it gives back; every reader has the signature `read(root, options) ->
TrainAndTest`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from cfol_fast import ops
from cfol_fast.data.images import Images
from cfol_fast.errors import InputError

if TYPE_CHECKING:
    from cfol_fast.data.listing import Listing


@dataclass(frozen=True)
class ReadOptions:
    """white: the white point of images with more than 8 bits. cache: "auto", "off" or a folder, see
    `decoding.cache_folder`. holdout: of the user's own, "val" or a folder; see `part_folders`.

    source: of image files, "resident" (decoded into memory), "stream" (while the run goes on) or "auto",
    which looks at the memory of `device`. decode: one of `decoders.WAYS`.
    """

    download: bool = False
    size: int | None = None
    skip_corrupt: bool = False
    progress: bool = False
    white: float | None = None
    cache: str = "auto"
    source: str = "resident"
    decode: str = "whole"
    device: torch.device | str = "cpu"
    holdout: str | None = None


@dataclass(frozen=True)
class TrainAndTest:
    """What a reader found. test: None where the data has no test part. size: (h, w) of the batches where
    images differ in size.

    mean, std, augment: where the data itself says what goes with it. own: the same, see `DataSpec`.
    white: of images with more than 8 bits, where there are such.
    files: of "train", "test" and "holdout", where they were decoded from files.
    holdout: the user's own, where it was asked for.
    """

    train: Images
    test: Images | None
    size: tuple[int, int] | None = None
    notes: list[str] = field(default_factory=list)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: ops.Augment | None = None
    own: bool | None = None
    white: float | None = None
    files: dict[str, Listing] = field(default_factory=dict)
    holdout: Images | None = None


def need_root(root: Path | None, expected: str) -> Path:
    """The folder given with --data; `expected` says what should be in it."""
    if root is None:
        raise InputError(f"say with --data where the images are: {expected}")
    if root.exists() and not root.is_dir():
        raise InputError(f"{root} is not a folder: {expected}")
    return root
