"""A simulated week: a million steps of the bandit and the feed, with a network that costs nothing.

Time and memory must stay flat.

A step is what a training step does beside its network: the draw, the batch, the update, with the epochs' ends
between. The images are small, so that the million takes a minute. The first tenth of the run is compared with
the last; all tenths stand in the note.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks import images as pictures
from benchmarks import peers
from benchmarks.rows import Row, at_most, main, seconds
from benchmarks.timing import THREADS
from cfol_fast import ClassSampler, ExampleSampler, data, ops
from cfol_fast.data.source import TrainingSource
from cfol_fast.sampling import IndexSampler
from cfol_fast.training.batches import TrainingBatches

STEPS, EPOCH, TENTHS = 1_000_000, 1000, 10
BATCH, CLASSES = 64, 10
# The last tenth by the first: the median, the slowest of a hundred (which other processes decide, too), the
# memory.
MEDIAN, SLOWEST, MEMORY = 1.1, 1.5, 1.02
AUGMENT = ops.Augment(pad=1, crop=True, flip=True)
PAGE = os.sysconf("SC_PAGE_SIZE")


class Tenth(NamedTuple):
    p50: float
    p99: float
    rss: int


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def run(sampler: IndexSampler, source: TrainingSource, steps: int, epoch: int) -> list[Tenth]:
    """Takes the steps, and says of each tenth how long a step took and what the process had in memory at its
    end.
    """
    batches, wrong = TrainingBatches(sampler, source, BATCH), (torch.arange(BATCH) % 2).float()
    length = steps // TENTHS
    # Filled, so that it has its memory from the start.
    times, found = np.ones(length), []
    taken = -epoch
    while taken < steps:
        last = time.perf_counter()
        for batch in batches.feed(epoch):
            sampler.observe(batch.indices, batch.y, wrong, batch.ticket)
            now = time.perf_counter()
            times[taken % length] = now - last
            last, taken = now, taken + 1
            # What comes before step 0 is warm-up.
            if taken > 0 and taken % length == 0:
                p50, p99 = np.percentile(times, (50, 99))
                found.append(Tenth(float(p50), float(p99), resident_bytes()))
    return found


@contextmanager
def resident(count: int) -> Iterator[TrainingSource]:
    yield data.ResidentSource(pictures.random_images(count, 8), augment=AUGMENT)


@contextmanager
def from_ffcv(count: int) -> Iterator[TrainingSource]:
    with pictures.written_beton(pictures.random_images(count, 8), "raw") as path:
        source = data.FFCVSource(path, lag=1, augment=AUGMENT, workers=THREADS)
        try:
            yield source
        finally:
            source.close()


def measure(tiny: bool) -> list[Row]:
    torch.set_num_threads(THREADS)
    count, steps, epoch = (200, 40, 4) if tiny else (50_000, STEPS, EPOCH)
    labels = torch.arange(count) % CLASSES
    weeks: dict[str, tuple[Callable[[], IndexSampler], Callable[[int], object]]] = {
        "class bandit, resident images": (lambda: ClassSampler(labels), resident),
        "example bandit, resident images": (lambda: ExampleSampler(count), resident),
    }
    if peers.require(("ffcv",), tiny):
        weeks["class bandit, FFCV with lag 1"] = (lambda: ClassSampler(labels), from_ffcv)
    rows = []
    for name, (make, opened) in weeks.items():
        with opened(count) as source:  # type: ignore[attr-defined]
            rows += compared(name, steps, run(make(), source, steps, epoch))
    return rows


def compared(name: str, steps: int, tenths: list[Tenth]) -> list[Row]:
    first, last = tenths[0], tenths[-1]
    title = f"a simulated week, {steps:,} steps, {name}"
    p50, p99 = (", ".join(seconds(getattr(each, which)) for each in tenths) for which in ("p50", "p99"))
    rss = ", ".join(f"{each.rss / 2**20:,.1f}" for each in tenths)
    against, by = "the first tenth of the run", f"by tenths, batches of {BATCH}"
    return [
        at_most(f"{title}: p50", against, last.p50 / first.p50, MEDIAN, f"{by}: {p50}", last.p50, first.p50),
        at_most(f"{title}: p99", against, last.p99 / first.p99, SLOWEST, f"{by}: {p99}", last.p99, first.p99),
        at_most(f"{title}: memory", against, last.rss / first.rss, MEMORY, f"resident MiB {by}: {rss}"),
    ]


if __name__ == "__main__":
    main(measure)
