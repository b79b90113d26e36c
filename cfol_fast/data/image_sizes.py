"""The sizes of a part's images, by the headers of their files."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from cfol_fast import atomic
from cfol_fast.data.file_states import fingerprint_of
from cfol_fast.data.image_file import UNREADABLE, open_image, stored_size, upright_size
from cfol_fast.data.listing import Listing
from cfol_fast.data.parallel import map_in_order
from cfol_fast.progress import track

# The short side that images of different sizes are stored with when none is asked for: Imagenette's.
MIXED_SIZE = 160
# Images that are looked at to know about how much room all of them will take.
SAMPLES = 64


def common_size(
    listing: Listing, progress: bool = False, folder: Path | None = None
) -> tuple[int, int] | None:
    """(h, w) if all images have it, from the files' headers alone; images that cannot be opened do not count.

    folder: of the cache, where there is one.
    """
    if folder is None:
        return size_in_headers(listing, progress)
    known = folder / f"{listing.split}-size.json"
    fingerprint = fingerprint_of(listing, None, False)
    with contextlib.suppress(
        OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, IndexError
    ):
        cached = json.loads(known.read_text())
        if cached["fingerprint"] == fingerprint:
            return None if cached["size"] is None else (int(cached["size"][0]), int(cached["size"][1]))

    size = size_in_headers(listing, progress)
    # Where nothing can be written, the headers are read again next time.
    with contextlib.suppress(OSError):
        atomic.write_json(known, {"fingerprint": fingerprint, "size": size})
    return size


def size_in_headers(
    listing: Listing, progress: bool = False, folder: Path | None = None
) -> tuple[int, int] | None:
    """`common_size` without its cache. It ends at the first image of another size."""

    def header(path: str) -> tuple[int, int] | None:
        try:
            with open_image(listing.root / path) as image:
                width, height = upright_size(image)
                return height, width
        except UNREADABLE:
            return None

    common = None
    with contextlib.closing(map_in_order(header, listing.paths)) as headers:
        for size in track(headers, len(listing), f"sizes of {listing.split}", progress):
            if size is not None and size != (common := common or size):
                return None
    return common


def decoded_bytes(listing: Listing, size: int | None) -> int:
    """About as many as all images have, by the headers of a few."""
    found = []
    for path in listing.paths[:: -(-len(listing) // SAMPLES)]:
        with contextlib.suppress(*UNREADABLE), open_image(listing.root / path) as image:
            width, height = upright_size(image)
            width, height = (width, height) if size is None else stored_size(width, height, size)
            found.append(3 * width * height)
    return len(listing) * sum(found) // max(1, len(found))
