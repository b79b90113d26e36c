"""Reads the 8,000 Fashion-MNIST images inside the package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
import torch

from cfol_fast.data.images import ImageSet
from cfol_fast.data.reading import ReadOptions, TrainAndTest

CLASSES = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
]


def read(root: Path | None, options: ReadOptions) -> TrainAndTest:
    """Needs no folder: `root` is not used."""
    file = resources.files("cfol_fast.data.embedded") / "fashion_mini.npz"
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        parts = {
            split: ImageSet(
                torch.from_numpy(arrays[f"{split}_images"]).unsqueeze(-1),
                torch.from_numpy(arrays[f"{split}_labels"].astype(np.int64)),
                CLASSES,
            )
            for split in ("train", "test")
        }
    return TrainAndTest(parts["train"], parts["test"])
