"""Runs of two shards that read FFCV files, or images in memory: what both processes of torchrun do, and one
process beside them.

`python -m torch.distributed.run ... -m tests.distributed.from_files FOLDER`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cfol_fast import data, processes
from cfol_fast.data.ffcv import writer
from cfol_fast.training.batches import TrainingBatch
from cfol_fast.training.shards import ShardedStep
from tests.data.stream import image_folders
from tests.distributed.networks import DROPOUT
from tests.training import tiny

# Two batches are drawn ahead, and there are as many left of the epoch when a run is stopped.
STOPPED_AT, LAG = 2, 2
SHORT: dict[str, Any] = {"steps_per_epoch": 4, "attack__steps": 1, "test__steps": 1, "attack__eps": 0.05}
# JPEG files, cropped; pixels as they are, with tickets of each example; and images in memory.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "jpg": ("cfol", {"data__crop": "random-resized", "data__crop_scale": 0.3}),
    "raw": ("fol", {}),
    "memory": ("cfol", {}),
    "stream": ("cfol", {"data__name": "folder", "data__source": "stream", "data__size": 24}),
}


def settings(name: str, folder: Path) -> dict[str, Any]:
    if name == "stream":
        photos = {"data__root": str(folder / "photos"), "data__lag": LAG}
        return {"method": "cfol", "shards": 2, "model__name": DROPOUT, **SHORT, **photos, **RUNS[name][1]}
    files = {"data__name": "beton", "data__root": str(folder / "files" / name), "data__lag": LAG}
    own = RUNS[name][1] if name == "memory" else {**files, **RUNS[name][1]}
    return {"method": RUNS[name][0], "shards": 2, "model__name": DROPOUT, **SHORT, **own}


def write_files(folder: Path) -> None:
    """Smooth pictures of four classes, each in a shade of its own; every other one is upright."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(60) % 4
    coarse = torch.rand(60, 3, 6, 6, generator=generator) / 2 + labels.view(-1, 1, 1, 1) / 8
    smooth = torch.nn.functional.interpolate(coarse, (24, 28), mode="bicubic").clamp(0, 1)
    pixels = (smooth * 255).to(torch.uint8).permute(0, 2, 3, 1).flatten()
    upright = torch.arange(60) // 4 % 2
    table = torch.stack([torch.arange(60) * (24 * 28 * 3), 24 + 4 * upright, 28 - 4 * upright], 1)
    for mode in ("jpg", "raw"):
        for split, rows in (("train", slice(40)), ("test", slice(40, 60))):
            path = folder / "files" / mode / f"{split}.beton"
            path.parent.mkdir(parents=True, exist_ok=True)
            part = data.ImageSet(pixels, labels[rows], list("abcd"), table[rows], 3)
            described = {"split": split, "size": [24, 24], "augment": {"pad": 2, "flip": True}}
            writer.write(path, part, mode, description=described)
    write_photos(folder / "photos")


def write_photos(root: Path) -> None:
    """A folder of image files, as `--source stream` reads it."""
    photos = image_folders.write(root, per_class=9)
    assert len(list(photos.rglob("*.jpg"))) > 4


@contextmanager
def seen() -> Iterator[list[tuple[Tensor, Tensor]]]:
    """The indices and pixels of every step that is taken inside."""
    found, original = [], ShardedStep.minimise

    def minimise(self: ShardedStep, batch: TrainingBatch) -> Any:
        found.append((batch.indices, batch.x.clone()))
        return original(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardedStep, "minimise", minimise)
        yield found


def stop(out: Path, name: str, folder: Path) -> None:
    tiny.run_until(pytest.MonkeyPatch(), STOPPED_AT, out, **settings(name, folder))


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    tiny.use_few_images()
    with processes.joined("cpu"):
        for name in RUNS:
            with seen() as found:
                tiny.run(folder / name, **settings(name, folder))
            torch.save(found, folder / f"{name}-{os.environ['RANK']}.pt")
            tiny.run(folder / f"{name}-one-to-two", resume=True, **settings(name, folder))
            stop(folder / f"{name}-two-to-one", name, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
