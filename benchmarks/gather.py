"""Gather, flip and crop: CPU time per image at 32x32, against `unfold` in torch, FFCV on raw images, and PIL
in a DataLoader.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision import transforms

from benchmarks import images as pictures
from benchmarks.rows import Row, faster, main
from benchmarks.steps import flip_and_crop
from benchmarks.timing import THREADS, interleaved
from cfol_fast import ops

AUGMENT = ops.Augment(pad=4, crop=True, flip=True)
BATCH = 128


def ffcv_pass(path: Path, repetitions: int) -> Callable[[], None]:
    """A pass with the number of workers that needs the least CPU time."""

    def reader(loader: Any) -> Callable[[], None]:
        def read() -> None:
            for _ in pictures.batches_of(loader):
                pass

        return read

    ways = {n: reader(pictures.ffcv_loader(path, BATCH, n, augment=True)) for n in range(1, THREADS + 1)}
    race = interleaved(ways, repetitions)
    return ways[min(race, key=lambda n: race[n].cpu_best)]


def measure(tiny: bool) -> list[Row]:
    count = 256 if tiny else 10 * 1024
    image_set = pictures.random_images(count)
    pixels, planes = image_set.images, image_set.images.permute(0, 3, 1, 2).contiguous()
    rng = ops.new_rng(0)

    def batches() -> tuple[Tensor, ...]:
        return torch.randperm(count).split(BATCH)

    def ours() -> None:
        for idx in batches():
            ops.gather_augment(pixels, idx, rng, augment=AUGMENT, channels_last=True)

    def unfold() -> None:
        """Works on uint8 until the end, which is faster than on floats."""
        for idx in batches():
            flip_and_crop(planes[idx]).float().mul_(1 / 255)

    usual = transforms.Compose(
        [transforms.RandomCrop(32, 4), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    )
    loader = pictures.one_pass(pictures.PILImages(image_set, usual), BATCH)
    with pictures.written_beton(image_set) as path:
        read = ffcv_pass(path, 2 if tiny else 3)
        calls = {"ours": ours, "unfold": unfold, "ffcv": read, "pil": loader}
        timings = interleaved(calls, 2 if tiny else 7)
    name = "gather + flip + crop, 32x32, CPU time an image"
    peers = (
        ("unfold", "an `unfold`-based gather in torch", 3),
        ("ffcv", "FFCV, raw images from the page cache", 3),
    )
    rows = [
        faster(name, against, timings["ours"], timings[peer], target, cpu=True, per=count)
        for peer, against, target in peers
    ]
    pil = faster(
        name,
        "PIL `DataLoader`",
        timings["ours"],
        timings["pil"],
        20,
        "no workers: the least CPU time",
        cpu=True,
        per=count,
    )
    return [*rows, pil]


if __name__ == "__main__":
    main(measure)
