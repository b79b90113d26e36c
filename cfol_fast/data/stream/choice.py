"""Images in memory, or decoded while the run goes on? `--source auto`."""

from __future__ import annotations

import shutil

import torch

from cfol_fast.data.decoding import cache_folder
from cfol_fast.data.folders import Files
from cfol_fast.data.image_sizes import decoded_bytes
from cfol_fast.data.reading import ReadOptions
from cfol_fast.data.room import available_memory, free_memory, size_text

RESIDENT, STREAM, BETON, AUTO = "resident", "stream", "beton", "auto"
SOURCES = (AUTO, RESIDENT, STREAM, BETON)
# The network, its activations and other programs need memory too.
SHARE = 0.5


def chosen(files: Files, options: ReadOptions) -> tuple[str, str]:
    """RESIDENT or STREAM, and why. The pixels do not depend on it."""
    needed = sum(decoded_bytes(part, files.size) for part in files.parts)
    images = f"the images take about {size_text(needed)} decoded"
    free = free_memory(torch.device(options.device))
    where = f"on {options.device}"
    if free is None:
        free, where = available_memory(), "of memory"
    if free is not None and needed > SHARE * free:
        return STREAM, f"{images}, {size_text(free)} {where} are free"
    cache = cache_folder(files.train.root, options.cache)
    if cache is not None and needed > (disk := shutil.disk_usage(cache).free):
        return STREAM, f"{images}, {size_text(disk)} are free in {cache}"
    return RESIDENT, images if free is None else f"{images}, {size_text(free)} {where} are free"
