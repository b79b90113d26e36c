"""Image files to pixels, once: decoded in parallel, cached beside the data, mapped into memory from then on.

The cache is one file of bytes and one JSON file that says what is in it. It is used again only when the names, sizes and times of
all image files are the same as when it was made, so changed data cannot be mistaken for the old.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from PIL import Image

from cfol_fast import atomic
from cfol_fast.data.images import ImageSet
from cfol_fast.data.parallel import map_in_order
from cfol_fast.data.reading import ReadOptions
from cfol_fast.data.room import check_disk
from cfol_fast.errors import InputError, one_line
from cfol_fast.progress import track

CACHE_FOLDER = ".cfol_fast_cache"
FORMAT = 2
# What Pillow raises for a file that is not a whole image.
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
# The short side that images of different sizes are stored with when none is asked for: Imagenette's.
MIXED_SIZE = 160
# What makes an image upright, by EXIF's number for how it lies; from 5 on it lies on its side.
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = (5, 6, 7, 8)
# Images that are looked at to know about how much room all of them will take.
SAMPLES = 64
# Of one image, in its file and as it is stored: 200 MB. A file of a few bytes may claim to have billions.
MOST_PIXELS = 1 << 26


@dataclass(frozen=True)
class Listing:
    """Image files with their labels. paths are relative to root, in the order of the data set."""

    root: Path
    split: str
    paths: list[str]
    labels: list[int]
    classes: list[str]

    def __len__(self) -> int:
        return len(self.paths)

    def subset(self, rows: Sequence[int], split: str | None = None) -> Listing:
        paths, labels = [self.paths[row] for row in rows], [self.labels[row] for row in rows]
        return Listing(self.root, split or self.split, paths, labels, self.classes)


def decode(listing: Listing, options: ReadOptions, size: int | None = None) -> tuple[ImageSet, list[str]]:
    """The images of `listing` as RGB, with the notes to pass on.

    size: resize so that the short side has this many pixels (no change where it has already); None keeps sizes.
    """
    fingerprint = fingerprint_of(listing, size, options.skip_corrupt)
    folder = listing.root / CACHE_FOLDER
    stem = f"{listing.split}-{size or 'own'}px"
    contents = _cached(folder, stem, fingerprint)
    if contents is None:
        try:
            folder.mkdir(exist_ok=True)
            writable = os.access(folder, os.W_OK)
        except OSError:
            writable = False
        if not writable:
            warnings.warn(
                f"{listing.root} cannot be written: its images are decoded again each time", stacklevel=2
            )
            with tempfile.TemporaryDirectory() as temporary:
                return _decode_into(Path(temporary), stem, listing, options, size, fingerprint)
        return _decode_into(folder, stem, listing, options, size, fingerprint)
    return _image_set(folder / f"{stem}.bytes", contents, listing.classes), skipped_note(
        contents["skipped"], listing
    )


def fingerprint_of(listing: Listing, size: int | None, skip_corrupt: bool) -> str:
    """Changes with any name, size or time of the files, the labels, or the way of decoding."""
    digest = hashlib.sha256(json.dumps([FORMAT, size, skip_corrupt, listing.classes]).encode())
    for path, label in zip(listing.paths, listing.labels, strict=True):
        try:
            status = os.stat(listing.root / path)
            state = f"{status.st_size}\0{status.st_mtime_ns}"
        except PermissionError:
            raise
        except OSError:
            # A link to nothing or to itself; whether that is an error is decided when it is to be read.
            state = "missing"
        digest.update(os.fsencode(path) + f"\0{label}\0{state}\n".encode())
    return digest.hexdigest()


def common_size(listing: Listing, progress: bool = False) -> tuple[int, int] | None:
    """(h, w) if all images have it, from the files' headers alone; images that cannot be opened do not count."""
    known = listing.root / CACHE_FOLDER / f"{listing.split}-size.json"
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
        known.parent.mkdir(exist_ok=True)
        atomic.write_json(known, {"fingerprint": fingerprint, "size": size})
    return size


def size_in_headers(listing: Listing, progress: bool = False) -> tuple[int, int] | None:
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


def read_image(path: Path, size: int | None) -> np.ndarray:
    """uint8 (h, w, 3), upright; raises OSError or ValueError when the file is not a whole image."""
    with open_image(path) as file:
        return pixels_of(file, size)


def pixels_of(file: Image.Image, size: int | None) -> np.ndarray:
    """The same of an open image."""
    image, turn = file, TURNS.get(orientation(file))
    width, height = upright_size(image)
    if size is not None:
        width, height = stored_size(width, height, size)
    if width * height > MOST_PIXELS:
        raise ValueError(f"{width}x{height} pixels in memory, at most {MOST_PIXELS:,} are decoded")
    if image.mode == "F":
        raise ValueError(
            "its pixels are fractions, and what is white is not said: store them with 8 or 16 bits"
        )
    # 16-bit grey: convert() would clip it at 255.
    if image.mode.startswith("I"):
        grey = np.asarray(image).astype(np.int64)
        if grey.min() < 0 or grey.max() > 0xFFFF:
            raise ValueError(
                f"its pixels go from {grey.min()} to {grey.max()}, and what is white is not said: store them with 8 or 16 bits"
            )
        image = Image.fromarray((grey >> 8).astype(np.uint8))
    if turn is not None:
        image = image.transpose(turn)
    image = image.convert("RGB")
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.array(image)


def stored_size(width: int, height: int, size: int) -> tuple[int, int]:
    """(width, height) of an image that is stored with a short side of `size` pixels."""
    scale = size / min(width, height)
    return max(size, round(width * scale)), max(size, round(height * scale))


def orientation(image: Image.Image) -> int:
    """How a camera was held, as EXIF says: 1 is upright. Pillow turns a TIFF itself."""
    # A PNG may have it after the pixels, and Pillow would decode them all to find out.
    if "exif" in image.info:
        # Pillow raises all kinds of exceptions for damaged EXIF data, which says nothing about the pixels.
        with contextlib.suppress(Exception):
            found = image.getexif().get(0x0112)
            return found if found in TURNS else 1
    return 1


def upright_size(image: Image.Image) -> tuple[int, int]:
    """(width, height) of the picture as it is to be seen."""
    width, height = image.size
    return (height, width) if orientation(image) in SIDEWAYS else (width, height)


def open_image(path: Path) -> Image.Image:
    """Its header; nothing is decoded yet. A pipe is not opened, which would wait forever, and an image too large is refused."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError("it is not a file")
    image = Image.open(path)
    if image.width * image.height > MOST_PIXELS or min(image.size) < 1:
        image.close()
        raise ValueError(f"{image.width}x{image.height} pixels, at most {MOST_PIXELS:,} are decoded")
    return image


def _decode_into(
    folder: Path, stem: str, listing: Listing, options: ReadOptions, size: int | None, fingerprint: str
) -> tuple[ImageSet, list[str]]:
    """Decodes and caches. Both files appear only when complete; the JSON file comes last and makes the cache valid."""
    check_disk(
        f"the {len(listing):,} images of {listing.split}, decoded,",
        _decoded_bytes(listing, size),
        folder,
        "`cfol-fast data to-ffcv --mode jpg --split all --out FILES` keeps them as JPEG and decodes none to the disk; train with "
        "`--dataset beton --data FILES`",
    )
    try:
        with atomic.replacing(folder / f"{stem}.bytes") as out:
            contents = _write_pixels(out, listing, options, size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise InputError(
                f"{folder}: the disk is full, the decoded images do not fit: nothing was left there"
            ) from error
        raise
    contents |= {"format": FORMAT, "fingerprint": fingerprint}
    atomic.write_json(folder / f"{stem}.json", contents)
    return _image_set(folder / f"{stem}.bytes", contents, listing.classes), skipped_note(
        contents["skipped"], listing
    )


def _decoded_bytes(listing: Listing, size: int | None) -> int:
    """About as many as all images have, by the headers of a few."""
    found = []
    for path in listing.paths[:: -(-len(listing) // SAMPLES)]:
        with contextlib.suppress(*UNREADABLE), open_image(listing.root / path) as image:
            width, height = upright_size(image)
            width, height = (width, height) if size is None else stored_size(width, height, size)
            found.append(3 * width * height)
    return len(listing) * sum(found) // max(1, len(found))


def _write_pixels(out: IO[bytes], listing: Listing, options: ReadOptions, size: int | None) -> dict[str, Any]:
    sizes: list[tuple[int, int]] = []
    labels: list[int] = []
    skipped: list[str] = []

    def decoded(path: str) -> np.ndarray | Exception:
        try:
            return read_image(listing.root / path, size)
        except UNREADABLE as error:
            return error

    results = track(
        map_in_order(decoded, listing.paths),
        len(listing.paths),
        f"decoding {listing.split}",
        options.progress,
    )
    for path, label, result in zip(listing.paths, listing.labels, results, strict=True):
        if isinstance(result, np.ndarray):
            out.write(result.tobytes())
            sizes.append((result.shape[0], result.shape[1]))
            labels.append(label)
        else:
            refuse_unreadable(listing, path, result, options.skip_corrupt)
            skipped.append(path)
    if not labels:
        raise InputError(f"{listing.root}: no image of {listing.split} could be decoded")
    same = len(set(sizes)) == 1
    return {"sizes": sizes[:1] if same else sizes, "count": len(labels), "labels": labels, "skipped": skipped}


def refuse_unreadable(listing: Listing, path: str, error: Exception, skip_corrupt: bool) -> None:
    """Raises an error that names the file, unless such files are to be left out."""
    if not skip_corrupt or isinstance(error, PermissionError):
        raise InputError(
            f"{listing.root / path} cannot be decoded ({one_line(error)}): repair or remove it, or leave out such images "
            "with --skip-corrupt (in training: --set data.skip_corrupt=true)"
        ) from error


def _cached(folder: Path, stem: str, fingerprint: str) -> dict[str, Any] | None:
    try:
        contents = json.loads((folder / f"{stem}.json").read_text())
        if contents["format"] != FORMAT or contents["fingerprint"] != fingerprint:
            return None
        complete = (folder / f"{stem}.bytes").stat().st_size == _table(contents)[1]
        complete = (
            complete
            and len(contents["labels"]) == contents["count"]
            and isinstance(contents["skipped"], list)
        )
    # Somebody may have edited it; it is made again.
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, IndexError, MemoryError):
        return None
    return contents if complete else None


def _table(contents: dict[str, Any]) -> tuple[np.ndarray, int]:
    """int64 (N, 3) of (byte offset, height, width), and the bytes of all images together."""
    sizes = np.array(contents["sizes"], dtype=np.int64).reshape(-1, 2)
    sizes = np.broadcast_to(sizes, (contents["count"], 2))
    ends = np.cumsum(sizes[:, 0] * sizes[:, 1] * 3)
    return np.column_stack([np.concatenate([[0], ends[:-1]]), sizes]), int(ends[-1])


def _image_set(path: Path, contents: dict[str, Any], classes: Sequence[str]) -> ImageSet:
    table, count = _table(contents)
    # Copy-on-write: the pages come from the file when touched, so the data may be larger than the memory.
    pixels = torch.from_numpy(np.memmap(path, np.uint8, "c", shape=(count,)))
    labels = torch.tensor(contents["labels"], dtype=torch.int64)
    if len(contents["sizes"]) == 1:
        height, width = contents["sizes"][0]
        return ImageSet(pixels.view(-1, height, width, 3), labels, list(classes))
    return ImageSet(pixels, labels, list(classes), torch.from_numpy(table), 3)


def skipped_note(skipped: list[str], listing: Listing) -> list[str]:
    if not skipped:
        return []
    named = ", ".join(os.fsencode(path).decode("utf-8", "backslashreplace") for path in skipped[:3]) + (
        " ..." if skipped[3:] else ""
    )
    return [
        f"{listing.split}: {len(skipped)} of {len(listing.paths)} images cannot be decoded and were left out: {named}"
    ]
