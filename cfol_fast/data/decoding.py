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
import tempfile
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from PIL import Image

from cfol_fast import atomic
from cfol_fast.data.images import ImageSet
from cfol_fast.data.progress import track
from cfol_fast.data.reading import ReadOptions
from cfol_fast.errors import InputError

CACHE_FOLDER = ".cfol_fast_cache"
FORMAT = 1
MIXED_SIZE = 160  # short side for images of different sizes when none is asked for: Imagenette's


@dataclass(frozen=True)
class Listing:
    """Image files with their labels. paths are relative to root, in the order of the data set."""

    root: Path
    split: str
    paths: list[str]
    labels: list[int]
    classes: list[str]


def decode(listing: Listing, options: ReadOptions, size: int | None = None) -> tuple[ImageSet, list[str]]:
    """The images of `listing` as RGB, with the notes to pass on.

    size: resize so that the short side has this many pixels (no change where it has already); None keeps sizes.
    """
    print_of = fingerprint(listing, size, options.skip_corrupt)
    folder = listing.root / CACHE_FOLDER
    stem = f"{listing.split}-{size or 'own'}px"
    facts = _cached(folder, stem, print_of)
    if facts is None:
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
                return _decode_into(Path(temporary), stem, listing, options, size, print_of)
        return _decode_into(folder, stem, listing, options, size, print_of)
    return _image_set(folder / f"{stem}.bytes", facts, listing.classes), _notes(facts, listing)


def fingerprint(listing: Listing, size: int | None, skip_corrupt: bool) -> str:
    """Changes with any name, size or time of the files, the labels, or the way of decoding."""
    digest = hashlib.sha256(json.dumps([FORMAT, size, skip_corrupt, listing.classes]).encode())
    for path, label in zip(listing.paths, listing.labels, strict=True):
        facts = os.stat(listing.root / path)
        digest.update(f"{path}\0{label}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def common_size(listing: Listing, progress: bool = False) -> tuple[int, int] | None:
    """(h, w) if all images have it, from the files' headers alone; images that cannot be opened do not count."""
    known = listing.root / CACHE_FOLDER / f"{listing.split}-size.json"
    print_of = fingerprint(listing, None, False)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        facts = json.loads(known.read_text())
        if facts["fingerprint"] == print_of:
            return None if facts["size"] is None else (int(facts["size"][0]), int(facts["size"][1]))

    def header(path: str) -> tuple[int, int] | None:
        try:
            with Image.open(listing.root / path) as image:
                return image.height, image.width
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            return None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        headers = pool.map(header, listing.paths)
        sizes = set(track(headers, len(listing.paths), f"sizes of {listing.split}", progress)) - {None}
    size = sizes.pop() if len(sizes) == 1 else None
    with contextlib.suppress(OSError):  # where nothing can be written, the headers are read again next time
        known.parent.mkdir(exist_ok=True)
        atomic.write_json(known, {"fingerprint": print_of, "size": size})
    return size


def read_image(path: Path, size: int | None) -> np.ndarray:
    """uint8 (h, w, 3); raises OSError or ValueError when the file is not a whole image."""
    with Image.open(path) as file:
        image: Image.Image = file
        if image.mode.startswith("I"):  # 16-bit grey: convert() would clip it at 255
            image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).clip(0, 255).astype(np.uint8))
        image = image.convert("RGB")
        if size is not None and min(image.size) != size:
            scale = size / min(image.size)
            width, height = (max(size, round(side * scale)) for side in image.size)
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        return np.array(image)


def _decode_into(
    folder: Path, stem: str, listing: Listing, options: ReadOptions, size: int | None, print_of: str
) -> tuple[ImageSet, list[str]]:
    """Both files appear only when whole; the JSON file comes last and makes the cache valid."""
    try:
        with atomic.replacing(folder / f"{stem}.bytes") as out:
            facts = _write_pixels(out, listing, options, size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise InputError(
                f"{folder}: the disk is full, the decoded images do not fit: nothing was left there"
            ) from error
        raise
    facts |= {"format": FORMAT, "fingerprint": print_of}
    atomic.write_json(folder / f"{stem}.json", facts)
    return _image_set(folder / f"{stem}.bytes", facts, listing.classes), _notes(facts, listing)


def _write_pixels(out: IO[bytes], listing: Listing, options: ReadOptions, size: int | None) -> dict[str, Any]:
    sizes: list[tuple[int, int]] = []
    labels: list[int] = []
    skipped: list[str] = []
    results = track(
        _in_order(listing, size), len(listing.paths), f"decoding {listing.split}", options.progress
    )
    for path, label, result in results:
        if isinstance(result, np.ndarray):
            out.write(result.tobytes())
            sizes.append((result.shape[0], result.shape[1]))
            labels.append(label)
        elif options.skip_corrupt and not isinstance(result, PermissionError):
            skipped.append(path)
        else:
            raise InputError(
                f"{listing.root / path} cannot be decoded ({_line(result)}): repair or remove it, or leave out such images "
                "with skip_corrupt (--skip-corrupt)"
            ) from result
    if not labels:
        raise InputError(f"{listing.root}: no image of {listing.split} could be decoded")
    same = len(set(sizes)) == 1
    return {"sizes": sizes[:1] if same else sizes, "count": len(labels), "labels": labels, "skipped": skipped}


def _in_order(listing: Listing, size: int | None) -> Iterator[tuple[str, int, np.ndarray | Exception]]:
    """Decodes on all cores, gives back in order, and keeps only a few hundred images in flight."""

    def one(path: str) -> np.ndarray | Exception:
        try:
            return read_image(listing.root / path, size)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            return error

    waiting: deque[tuple[str, int, Future[np.ndarray | Exception]]] = deque()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, label in zip(listing.paths, listing.labels, strict=True):
            waiting.append((path, label, pool.submit(one, path)))
            if len(waiting) >= 256:
                name, number, future = waiting.popleft()
                yield name, number, future.result()
        while waiting:
            name, number, future = waiting.popleft()
            yield name, number, future.result()


def _cached(folder: Path, stem: str, print_of: str) -> dict[str, Any] | None:
    try:
        facts = json.loads((folder / f"{stem}.json").read_text())
        if facts["format"] != FORMAT or facts["fingerprint"] != print_of:
            return None
        whole = (folder / f"{stem}.bytes").stat().st_size == _table(facts)[1]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return facts if whole else None


def _table(facts: dict[str, Any]) -> tuple[np.ndarray, int]:
    """int64 (N, 3) of (byte offset, height, width), and the bytes of all images together."""
    sizes = np.array(facts["sizes"], dtype=np.int64).reshape(-1, 2)
    sizes = np.broadcast_to(sizes, (facts["count"], 2))
    ends = np.cumsum(sizes[:, 0] * sizes[:, 1] * 3)
    return np.column_stack([np.concatenate([[0], ends[:-1]]), sizes]), int(ends[-1])


def _image_set(path: Path, facts: dict[str, Any], classes: Sequence[str]) -> ImageSet:
    table, count = _table(facts)
    # Copy-on-write: the pages come from the file when touched, so the data may be larger than the memory.
    pixels = torch.from_numpy(np.memmap(path, np.uint8, "c", shape=(count,)))
    labels = torch.tensor(facts["labels"], dtype=torch.int64)
    if len(facts["sizes"]) == 1:
        height, width = facts["sizes"][0]
        return ImageSet(pixels.view(-1, height, width, 3), labels, list(classes))
    return ImageSet(pixels, labels, list(classes), torch.from_numpy(table), 3)


def _notes(facts: dict[str, Any], listing: Listing) -> list[str]:
    skipped = facts["skipped"]
    if not skipped:
        return []
    named = ", ".join(skipped[:3]) + (" ..." if skipped[3:] else "")
    return [
        f"{listing.split}: {len(skipped)} of {len(listing.paths)} images cannot be decoded and were left out: {named}"
    ]


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
