"""The images of the loading questions, and the loaders they are compared with, each in its usual best
form.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cfol_fast import data
from cfol_fast.data.ffcv import writer
from cfol_fast.data.ffcv.install import using_ffcv


def random_images(count: int, side: int = 32) -> data.ImageSet:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, generator=generator)
    return data.ImageSet(pixels, torch.arange(count) % 10, [str(c) for c in range(10)])


class PILImages(Dataset[tuple[Any, int]]):
    """As in torchvision's CIFAR10: each image becomes a PIL image and is transformed, one at a time."""

    def __init__(self, images: data.ImageSet, transform: Callable[[Any], Any], mode: str = "RGB") -> None:
        pixels = images.images.numpy()
        self.pixels: np.ndarray = pixels[..., 0] if mode == "L" else pixels
        self.labels: list[int] = images.labels.tolist()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(Image.fromarray(self.pixels[index])), self.labels[index]


def one_pass(dataset: Dataset[Any], batch: int, workers: int = 0) -> Callable[[], None]:
    """A pass over all images with torch's loader."""

    def run() -> None:
        for _ in DataLoader(dataset, batch, shuffle=True, num_workers=workers):
            pass

    return run


def smooth_images(count: int, side: int) -> data.ImageSet:
    """Coarse noise made large, which compresses like photographs."""
    coarse = random_images(count, side // 8)
    pixels = torch.nn.functional.interpolate(
        coarse.images.permute(0, 3, 1, 2), scale_factor=8, mode="bilinear"
    )
    return data.ImageSet(pixels.permute(0, 2, 3, 1).contiguous(), coarse.labels, coarse.classes)


@contextmanager
def written_beton(images: data.ImageSet, mode: str = "raw") -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "images.beton"
        writer.write(path, images, mode)
        yield path


def ffcv_loader(path: Path, batch: int, workers: int, augment: bool, order: str = "QUASI_RANDOM") -> Any:
    """FFCV's own loader: raw images from the page cache; with `augment`, its own flip and crop, and floats in
    [0, 1].
    """
    with using_ffcv():
        from ffcv.fields.decoders import IntDecoder, SimpleRGBImageDecoder
        from ffcv.loader import OrderOption
        from ffcv.transforms import (
            Convert,
            RandomHorizontalFlip,
            RandomTranslate,
            Squeeze,
            ToTensor,
            ToTorchImage,
        )

        pipeline: list[Any] = [SimpleRGBImageDecoder()]
        if augment:
            pipeline += [
                RandomHorizontalFlip(),
                RandomTranslate(padding=4),
                ToTensor(),
                ToTorchImage(),
                Convert(torch.float32),
            ]
            pipeline += [Scaled()]
        else:
            pipeline += [ToTensor()]
        from cfol_fast.data.ffcv.feed import ReadOnlyLoader

        # Two FFCV loaders in one process damage numba's tables when it ends; this one has the same reader
        # without that.
        return ReadOnlyLoader(
            str(path),
            batch_size=batch,
            num_workers=workers,
            os_cache=True,
            order=getattr(OrderOption, order),
            seed=0,
            drop_last=True,
            pipelines={"image": pipeline, "label": [IntDecoder(), ToTensor(), Squeeze()]},
        )


class Scaled(torch.nn.Module):
    """Pixels to [0, 1]: the last stage of FFCV's pipeline."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(1 / 255)


def batches_of(loader: Any) -> Iterator[Any]:
    """FFCV's batches.

    Without this an error in its thread would leave the caller waiting forever; here it is raised.
    """
    thread = iter(loader)
    while True:
        try:
            item = thread.output_queue.get(timeout=1.0)
        except queue.Empty:
            if not thread.is_alive():
                raise RuntimeError("FFCV's thread ended with an error") from None
            continue
        if item is None:
            thread.close()
            return
        yield item[1]
