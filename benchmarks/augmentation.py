"""The paper's whole augmentation (crop, flip, colour jitter, rotation): CPU time per image at 32x32, against
torchvision.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torchvision.transforms import v2

from benchmarks import images as pictures
from benchmarks.rows import Row, faster, main
from benchmarks.timing import interleaved
from cfol_fast import ops
from cfol_fast.data.registry import paper_augment

BATCH = 128


def chain(*last: Callable[..., object]) -> v2.Compose:
    return v2.Compose(
        [
            v2.RandomCrop(32, padding=4),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(brightness=0.25, contrast=0.25, saturation=0.25),
            v2.RandomRotation(2),
            *last,
        ]
    )


def measure(tiny: bool) -> list[Row]:
    count = 64 if tiny else 1024
    image_set = pictures.random_images(count)
    pixels, planes = image_set.images, image_set.images.permute(0, 3, 1, 2).contiguous()
    rng, augment = ops.new_rng(0), paper_augment(32)
    # Both kinds of tensor are tried: uint8 saves memory, floats save the rounding after each step.
    as_bytes, as_floats = chain(v2.ToDtype(torch.float32, scale=True)), chain()

    def ours() -> None:
        for idx in torch.randperm(count).split(BATCH):
            ops.gather_augment(pixels, idx, rng, augment=augment, channels_last=True)

    def tensors_of_bytes() -> None:
        for idx in torch.randperm(count).split(BATCH):
            torch.stack([as_bytes(planes[i]) for i in idx])

    def tensors_of_floats() -> None:
        for idx in torch.randperm(count).split(BATCH):
            x = planes[idx].float().mul_(1 / 255)
            torch.stack([as_floats(image) for image in x])

    pil = chain(v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True))
    calls: dict[str, Callable[[], object]] = {
        "ours": ours,
        "bytes": tensors_of_bytes,
        "floats": tensors_of_floats,
        "pil": pictures.one_pass(pictures.PILImages(image_set, pil), BATCH),
    }
    timings = interleaved(calls, 2 if tiny else 5)
    best = min(("bytes", "floats"), key=lambda kind: timings[kind].cpu_best)
    name = "full augmentation, 32x32, CPU time an image"
    return [
        faster(
            name,
            "torchvision v2 on tensors",
            timings["ours"],
            timings[best],
            3,
            f"{best}, which are faster; one image at a time, for parameters of its own",
            cpu=True,
            per=count,
        ),
        faster(name, "torchvision on PIL", timings["ours"], timings["pil"], 20, cpu=True, per=count),
    ]


if __name__ == "__main__":
    main(measure)
