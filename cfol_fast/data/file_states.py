"""Whether files are those that they were: a digest of their names, inodes, sizes and times, without reading
them all.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
import zlib
from functools import lru_cache

import PIL
from PIL import features

from cfol_fast.data.listing import Listing

FORMAT = 3
# A file that changes twice within this many nanoseconds may have the same time both times.
TICK = 20_000_000
# Files of which some bytes are looked at too: a mounted image of a disk has the times of its making.
BYTES_OF_FILES, BYTES_LOOKED_AT = 64, 1 << 14


def fingerprint_of(listing: Listing, size: int | None, skip_corrupt: bool) -> str:
    """Changes with any name, inode, size or time of the files, the labels, or the way of decoding."""
    start, (digest, newest) = time.time_ns(), _states(listing, size, skip_corrupt)
    if 0 <= start - newest < TICK:
        # A change after this look could not be told from the one before it.
        time.sleep(TICK / 1e9)
        digest, _ = _states(listing, size, skip_corrupt)
    return digest


def _states(listing: Listing, size: int | None, skip_corrupt: bool) -> tuple[str, int]:
    """The digest, and when the file that changed last did so."""
    way = [FORMAT, size, skip_corrupt, listing.classes, decoders()]
    digest, newest = hashlib.sha256(json.dumps(way).encode()), 0
    every = -(-len(listing) // BYTES_OF_FILES)
    for row, (path, label) in enumerate(zip(listing.paths, listing.labels, strict=True)):
        try:
            status = os.stat(listing.root / path)
            # No program can set the time of the last change of an inode: `mv`, `tar` and `rsync -t` bring the
            # other one along.
            state = f"{status.st_ino}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ctime_ns}"
            newest = max(newest, status.st_mtime_ns, status.st_ctime_ns)
            if row % every == 0 and stat.S_ISREG(status.st_mode):
                with open(listing.root / path, "rb") as file:
                    state += f"\0{zlib.crc32(file.read(BYTES_LOOKED_AT))}"
        except PermissionError:
            raise
        except OSError:
            # A link to nothing or to itself; whether that is an error is decided when it is to be read.
            state = "missing"
        digest.update(os.fsencode(path) + f"\0{label}\0{state}\n".encode())
    return digest.hexdigest(), newest


@lru_cache
def decoders() -> list[str | None]:
    """The versions of what turns files into pixels."""
    return [PIL.__version__, *(features.version(name) for name in ("jpg", "zlib", "libtiff", "webp"))]
