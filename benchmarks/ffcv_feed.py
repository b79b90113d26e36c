"""Our late-fed FFCV source with lag 1, against FFCV's own loader on an order that is fixed for the epoch.

Both decode the same file with the same workers; the batches of both go through the same gather + augment op.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks import images as pictures
from benchmarks.rows import Row, faster, main
from benchmarks.timing import THREADS, interleaved
from cfol_fast import data, ops

AUGMENT = ops.Augment(pad=4, crop=True, flip=True)
BATCH = 128
TARGET = 1.0
Batches = Iterator[tuple[Tensor, ...]]


def measure(tiny: bool) -> list[Row]:
    return [
        question(256 if tiny else 8 * 1024, 32, tiny),
        question(128 if tiny else 4 * 1024, 96, tiny),
        question(128 if tiny else 2 * 1024, 160, tiny, "jpg"),
    ]


def trained_on(batches: Batches) -> None:
    """Keeps a batch until the next one has come, as a training loop does: the next would be cheaper in memory
    that was just freed.
    """
    for _batch in batches:
        pass


def question(count: int, side: int, tiny: bool, mode: str = "raw") -> Row:
    image_set = (pictures.random_images if mode == "raw" else pictures.smooth_images)(count, side)
    with pictures.written_beton(image_set, mode) as path:
        source = data.FFCVSource(path, lag=1, augment=AUGMENT, workers=THREADS)
        fixed = pictures.ffcv_loader(path, BATCH, THREADS, augment=False, order="RANDOM")
        rng, places = ops.new_rng(0), torch.arange(BATCH)

        def late() -> Batches:
            parts = iter(torch.randperm(count).split(BATCH))
            return source.feed(lambda: next(parts), count // BATCH)

        def own() -> Batches:
            for pixels, labels in pictures.batches_of(fixed):
                yield (
                    ops.gather_augment(pixels, places, rng, augment=AUGMENT, channels_last=True),
                    labels.long(),
                )

        contestants = {"ours": lambda: trained_on(late()), "own": lambda: trained_on(own())}
        timings = interleaved(contestants, 2 if tiny else 15)
        source.close()
    name = f"FFCV feed with lag 1, {side}x{side} {mode}, batch {BATCH}, time an image"
    ours, own = (count / timings[who].cpu_best for who in ("ours", "own"))
    note = f"{ours:,.0f} images/s per core against {own:,.0f}"
    against = "FFCV's own loader on a fixed order"
    return faster(name, against, timings["ours"], timings["own"], TARGET, note, per=count)


if __name__ == "__main__":
    main(measure)
