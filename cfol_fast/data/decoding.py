"""Image files to pixels, once: decoded in parallel, cached beside the data, mapped into memory from then on.

The cache is one file of bytes and one JSON file that says what is in it. It is used again only when the
names, inodes, sizes and times of all image files, the decoders and the white point are the same as when it
was made, and its bytes have the checksum they had then, so changed data cannot be mistaken for the old.
`data.cache` puts it elsewhere, or switches it off.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from cfol_fast import atomic
from cfol_fast.data.file_states import FORMAT, fingerprint_of
from cfol_fast.data.image_file import has_several_pictures, open_image, pixels_of, refuse_unreadable, tried
from cfol_fast.data.image_sizes import decoded_bytes
from cfol_fast.data.images import ImageSet
from cfol_fast.data.listing import Listing, several_note, skipped_note
from cfol_fast.data.parallel import map_in_order
from cfol_fast.data.reading import ReadOptions
from cfol_fast.data.room import check_disk
from cfol_fast.data.white_of_files import WhitePoint
from cfol_fast.errors import InputError
from cfol_fast.progress import track

CACHE_FOLDER = ".cfol_fast_cache"
CHUNK = 1 << 24


def cache_folder(root: Path, where: str) -> Path | None:
    """Where the decoded images of `root` are kept by the setting data.cache: None for "off", or where nothing
    can be written.
    """
    if where == "off":
        return None
    if where == "auto":
        folder = root / CACHE_FOLDER
    else:
        given = Path(where).expanduser()
        if not where or not given.is_dir():
            raise InputError(
                f"data.cache={where}: there is no such folder. Make it, or take data.cache=auto or"
                " data.cache=off."
            )
        name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:16]
        folder = given / f"{CACHE_FOLDER.removeprefix('.')}-{name}"
    try:
        folder.mkdir(exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    if where != "auto":
        raise InputError(
            f"data.cache={where}: the folder cannot be written. Choose another, or data.cache=off."
        )
    return None


def decode(
    listing: Listing, options: ReadOptions, size: int | None, folder: Path | None, white: WhitePoint
) -> tuple[ImageSet, list[str]]:
    """The images of `listing` as RGB, with the notes to pass on.

    size: resize so that the short side has this many pixels (no change where it has already); None keeps
    sizes.
    folder: of the cache; None: they are decoded again each time.
    """
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return _decode_into(Path(temporary), listing, options, size, "", white)
    fingerprint = fingerprint_of(listing, size, options.skip_corrupt)
    return _cached(folder, listing, size, fingerprint, white) or _decode_into(
        folder, listing, options, size, fingerprint, white
    )


def _decode_into(
    folder: Path,
    listing: Listing,
    options: ReadOptions,
    size: int | None,
    fingerprint: str,
    white: WhitePoint,
) -> tuple[ImageSet, list[str]]:
    """Decodes and caches.

    Both files appear only when complete; the JSON file comes last and makes the cache valid.
    """
    check_disk(
        f"the {len(listing):,} images of {listing.split}, decoded,",
        decoded_bytes(listing, size),
        folder,
        "`cfol-fast data to-ffcv --mode jpg --split all --out FILES` keeps them as JPEG and decodes none to"
        " the disk; train with `--dataset beton --data FILES`",
    )
    stem = _stem(listing, size)
    try:
        with atomic.replacing(folder / f"{stem}.bytes") as out:
            contents = _write_pixels(out, listing, options, size, white)
            out.flush()
            # By the open file: another run may put its own in this place at any time.
            found = _image_set(out, contents, listing.classes)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise InputError(
                f"{folder}: the disk is full, the decoded images do not fit: nothing was left there. Keep"
                " them on another with data.cache=FOLDER."
            ) from error
        raise
    contents |= {"format": FORMAT, "fingerprint": fingerprint}
    atomic.write_json(folder / f"{stem}.json", contents)
    return found, _notes(contents, listing)


def _stem(listing: Listing, size: int | None) -> str:
    return f"{listing.split}-{size or 'own'}px"


def _write_pixels(
    out: IO[bytes], listing: Listing, options: ReadOptions, size: int | None, white: WhitePoint
) -> dict[str, Any]:
    sizes: list[tuple[int, int]] = []
    labels: list[int] = []
    skipped: list[str] = []
    several: list[str] = []
    used: list[float] = []
    checksum = 0

    def white_here() -> float:
        used.append(white())
        return used[0]

    def decoded(path: str) -> tuple[np.ndarray, bool]:
        with open_image(listing.root / path) as file:
            return pixels_of(file, size, white_here), has_several_pictures(file)

    results = track(
        map_in_order(tried(decoded), listing.paths),
        len(listing.paths),
        f"decoding {listing.split}",
        options.progress,
    )
    for path, label, result in zip(listing.paths, listing.labels, results, strict=True):
        if isinstance(result, Exception):
            refuse_unreadable(listing, path, result, options.skip_corrupt)
            skipped.append(path)
            continue
        pixels, more = result
        content = pixels.tobytes()
        out.write(content)
        checksum = zlib.crc32(content, checksum)
        sizes.append((pixels.shape[0], pixels.shape[1]))
        labels.append(label)
        if more:
            several.append(path)
    if not labels:
        raise InputError(f"{listing.root}: no image of {listing.split} could be decoded")
    same = len(set(sizes)) == 1
    return {
        "sizes": sizes[:1] if same else sizes,
        "count": len(labels),
        "labels": labels,
        "skipped": skipped,
        "several": several,
        "white": used[0] if used else None,
        "checksum": checksum,
    }


def _cached(
    folder: Path, listing: Listing, size: int | None, fingerprint: str, white: WhitePoint
) -> tuple[ImageSet, list[str]] | None:
    """What was decoded before; None where it is not there, or of other images, or not whole."""
    stem = _stem(listing, size)
    try:
        contents = json.loads((folder / f"{stem}.json").read_text())
        if contents["format"] != FORMAT or contents["fingerprint"] != fingerprint:
            return None
        if len(contents["labels"]) != contents["count"] or not isinstance(contents["skipped"], list):
            return None
        with open(folder / f"{stem}.bytes", "rb") as file:
            if os.fstat(file.fileno()).st_size != _table(contents)[1]:
                return None
            found = _image_set(file, contents, listing.classes)
        if _checksum(found.images) != contents["checksum"]:
            return None
    # Somebody may have edited it; it is made again.
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, IndexError, MemoryError):
        return None
    if contents["white"] is not None and contents["white"] != white():
        return None
    return found, _notes(contents, listing)


def _checksum(images: torch.Tensor) -> int:
    whole, checksum = images.flatten().numpy(), 0
    for start in range(0, len(whole), CHUNK):
        checksum = zlib.crc32(whole[start : start + CHUNK].data, checksum)
    return checksum


def _table(contents: dict[str, Any]) -> tuple[np.ndarray, int]:
    """int64 (N, 3) of (byte offset, height, width), and the bytes of all images together."""
    sizes = np.array(contents["sizes"], dtype=np.int64).reshape(-1, 2)
    sizes = np.broadcast_to(sizes, (contents["count"], 2))
    ends = np.cumsum(sizes[:, 0] * sizes[:, 1] * 3)
    return np.column_stack([np.concatenate([[0], ends[:-1]]), sizes]), int(ends[-1])


def _image_set(file: IO[bytes], contents: dict[str, Any], classes: Sequence[str]) -> ImageSet:
    table, count = _table(contents)
    # Copy-on-write: the pages come from the file when touched, so the data may be larger than the memory.
    pixels = torch.from_numpy(np.memmap(file, np.uint8, "c", shape=(count,)))
    labels = torch.tensor(contents["labels"], dtype=torch.int64)
    if len(contents["sizes"]) == 1:
        height, width = contents["sizes"][0]
        return ImageSet(pixels.view(-1, height, width, 3), labels, list(classes))
    return ImageSet(pixels, labels, list(classes), torch.from_numpy(table), 3)


def _notes(contents: dict[str, Any], listing: Listing) -> list[str]:
    return [*skipped_note(contents["skipped"], listing), *several_note(contents["several"], listing)]
