"""Memory of data that never fits: a folder of JPEG files becomes FFCV files, and a run is trained from them.

Anonymous and shared memory (RssAnon + RssShmem) of both processes is looked at many times a second. Pages of
files do not count: the system gives them back when memory is needed. The images are made for this and removed
afterwards.
"""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from benchmarks.rows import Row, at_most, main

CLASSES = 10
# Of the test part.
TESTED = 200
LIMIT = 2 << 30
LOOKS_A_SECOND = 20


def measure(tiny: bool) -> list[Row]:
    count, side, steps = (300, 32, 2) if tiny else (50_000, 160, 50)
    with TemporaryDirectory() as folder:
        photos, files = Path(folder) / "photos", Path(folder) / "files"
        make_photos(photos, count, side)
        converted = peak_of(
            "data", "to-ffcv", "--dataset=folder", f"--data={photos}", "--split=all", f"--out={files}"
        )
        stored = sum(path.stat().st_size for path in files.iterdir())
        trained = peak_of(
            *(
                "train",
                "cfol",
                "--dataset=beton",
                f"--data={files}",
                f"--out={folder}/run",
                "--device=cpu",
                "--quiet",
            ),
            *(
                "--model=demo-cnn",
                "--batch-size=32",
                "--epochs=1",
                f"--holdout={100 / count}",
                "--crop=random-resized",
            ),
            *(f"--set=steps_per_epoch={steps}", "--set=attack.steps=1", "--set=validation.steps=1"),
            *("--set=test.steps=1", "--set=test.batch_size=32"),
        )
    note = (
        f"{converted / 2**20:,.0f} MiB while {stored / 2**20:,.0f} MiB are written, {trained / 2**20:,.0f}"
        f" MiB while {steps} steps are trained and tested; decoded the images would have"
        f" {count * side * side * 3 / 2**30:,.1f} GiB"
    )
    name = f"anonymous and shared memory, {count:,} JPEG files of {side} px, folder to result"
    return [at_most(name, "2 GiB", max(converted, trained) / LIMIT, 1.0, note)]


def make_photos(root: Path, count: int, side: int) -> None:
    """Coarse noise made large, which compresses like photographs."""
    for split in ("train", "test"):
        for c in range(CLASSES):
            (root / split / f"class{c}").mkdir(parents=True)

    def make(i: int) -> None:
        split = "test" if i < min(TESTED, count // 3) else "train"
        coarse = np.random.default_rng(i).integers(0, 256, (side // 8, side // 8, 3), np.uint8)
        image = Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)
        image.save(root / split / f"class{i % CLASSES}" / f"{i}.jpg", quality=90)

    with ThreadPoolExecutor() as pool:
        list(pool.map(make, range(count), chunksize=64))


def peak_of(*arguments: str) -> int:
    """Runs cfol-fast and returns the most that its process had at a time, in bytes."""
    process, peak = subprocess.Popen([sys.executable, "-m", "cfol_fast", *arguments]), 0
    while process.poll() is None:
        peak = max(peak, anonymous_and_shared(process.pid))
        time.sleep(1 / LOOKS_A_SECOND)
    if process.returncode:
        raise RuntimeError(f"cfol-fast {' '.join(arguments)} ended with status {process.returncode}")
    return peak


def anonymous_and_shared(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    lines = (line.split() for line in status.splitlines())
    return sum(int(words[1]) * 1024 for words in lines if words[0] in ("RssAnon:", "RssShmem:"))


if __name__ == "__main__":
    main(measure)
