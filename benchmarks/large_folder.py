"""A folder of 200,000 image files, and a list of 1,281,167: the time until the first batch, and the memory.

The files of the folder are hard links to a few; the list is made up, and no file of it is read. Run by hand:
`python -m benchmarks.large_folder`.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image

from benchmarks import images as pictures
from benchmarks.rows import Row, at_most, main
from cfol_fast import data
from cfol_fast.data import content
from cfol_fast.data.listing import Listing
from cfol_fast.data.stream import index as index_module

CLASSES, DIFFERENT, SIDE = 100, 500, 224
LIMIT = 2 << 30
IMAGENET, IMAGENET_CLASSES = 1_281_167, 1000


def measure(tiny: bool) -> list[Row]:
    count = 2_000 if tiny else 200_000
    with TemporaryDirectory() as folder:
        root = Path(folder) / "photos"
        hard_links(root, count)
        runs = [until_the_first_batch(root) for _ in range(2)]
    entries = 100_000 if tiny else IMAGENET
    seconds, memory = in_a_process(f"keep_and_read({entries})")
    note = (
        f"the first batch of 64 images comes after {runs[0][0]:.1f} s, with the kept list after"
        f" {runs[1][0]:.1f} s; {entries:,} made-up entries are written and read again in {seconds:.1f} s with"
        f" {memory / 2**20:,.0f} MiB"
    )
    name = f"memory up to the first batch, {count:,} files that stream"
    return [at_most(name, "2 GiB", max(peak for _, peak in runs), LIMIT, note)]


def hard_links(root: Path, count: int) -> None:
    images = pictures.smooth_images(DIFFERENT, SIDE)
    first = root.parent / "first"
    first.mkdir(parents=True)
    for number in range(DIFFERENT):
        Image.fromarray(images.image(number).numpy()).save(first / f"{number}.jpg", quality=90)
    for split, files in (("train", count), ("test", CLASSES)):
        for c in range(CLASSES):
            folder = root / split / f"class{c:03}"
            folder.mkdir(parents=True)
            for i in range(files // CLASSES):
                os.link(first / f"{(c * 7 + i) % DIFFERENT}.jpg", folder / f"{i:07}.jpg")


def until_the_first_batch(root: Path) -> tuple[float, int]:
    """Seconds of a process of its own, without its imports, and its largest resident memory in bytes."""
    return in_a_process(f"first_batch({str(root)!r})")


def in_a_process(call: str) -> tuple[float, int]:
    code = f"from benchmarks import large_folder; large_folder.{call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, memory = done.stdout.split()
    return float(seconds), int(memory)


def first_batch(root: str) -> None:
    """The list, mean and deviation, digests, and one batch: what comes before a run's first step."""
    generator = torch.Generator().manual_seed(0)
    start = time.monotonic()
    found = data.load("folder", root, source="stream", size=SIDE, progress=False)
    content.describe(found)
    source = data.source_of(found.train, 1, size=found.size)
    drawn = torch.randint(0, len(found.train), (64,), generator=generator)
    for _ in source.feed(lambda: drawn, 1):
        print(time.monotonic() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def keep_and_read(count: int) -> None:
    rng = np.random.default_rng(0)
    labels = np.sort(rng.integers(0, IMAGENET_CLASSES, count)).tolist()
    paths = [f"train/n{label:08}/n{label:08}_{number}.JPEG" for number, label in enumerate(labels)]
    stamps = rng.integers(1, 1 << 40, (count, 3))
    with TemporaryDirectory() as folder:
        root = Path(folder)
        classes = [f"n{c:08}" for c in range(IMAGENET_CLASSES)]
        for name in classes:
            (root / "train" / name).mkdir(parents=True)
        folders = [str(root / "train"), *(str(root / "train" / name) for name in classes)]
        time.sleep(0.1)
        index_module.index_of = lambda listing, cache: index_module.Index(listing, stamps, cache)
        listing = Listing(root, "train", paths, labels, classes, [], folders, stamps[:, 1])
        (root / "cache").mkdir()
        start = time.monotonic()
        index_module.kept_index(root, "train", root / "cache", lambda *_: listing)
        found = index_module.kept_index(root, "train", root / "cache", lambda *_: None)  # type: ignore[arg-type, return-value]
        seconds = time.monotonic() - start
        assert found.listing.paths == paths
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


if __name__ == "__main__":
    main(measure)
