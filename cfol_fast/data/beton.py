"""FFCV's file format, `.beton`: written here, and read here far enough to know that a file is whole.

FFCV's own writer waits forever when a worker dies (a full disk, say), and its reader returns zeros for what is not there. So files
are written in one pass to a temporary name, compared with the images they hold, and renamed; and a file is checked as a whole when
it is opened. What is written is plain FFCV: its Loader reads it. Class names and the like stand as JSON in the data region; the
unused arguments of the label field say where.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image

from cfol_fast import atomic
from cfol_fast.data.ffcv_install import quietly
from cfol_fast.data.images import ImageSet
from cfol_fast.data.progress import track
from cfol_fast.errors import InputError

SMALLEST_PAGE = 1 << 21  # FFCV's limit; an image does not cross a page
MARK = b"cfol_fast 1\0"
INT, RGB, ARRAY = 1, 2, 4  # FFCV's numbers for the kinds of fields
JPG, RAW = 0, 1  # FFCV's numbers for the ways an image is stored
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
MODES = {"jpg": JPG, "raw": RAW}


@dataclass(frozen=True)
class Beton:
    """What a checked file holds. All arrays have one entry an image."""

    path: Path
    kind: int  # of the image field: RGB or ARRAY
    image_field: str
    label_field: str
    fields: list[str]
    channels: int
    heights: np.ndarray
    widths: np.ndarray
    modes: np.ndarray
    pointers: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray
    facts: dict[str, Any]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) when all images have it."""
        same = (self.heights == self.heights[0]).all() and (self.widths == self.widths[0]).all()
        return (int(self.heights[0]), int(self.widths[0])) if same else None


# ---------------------------------------------------------------- writing


def write(
    path: str | Path,
    images: ImageSet,
    mode: str = "raw",
    quality: int = 90,
    facts: dict[str, Any] | None = None,
    progress: bool = False,
) -> Beton:
    """Writes `images` to `path` and compares the file with them before it takes that name.

    mode: "raw" keeps every bit; "jpg" is smaller and changes the pixels, for images with three channels.
    """
    path = Path(path)
    if mode not in MODES:
        raise InputError(f"mode must be raw or jpg, got {mode!r}")
    if mode == "jpg" and images.channels != 3:
        raise InputError(f"jpg holds images with 3 channels, these have {images.channels}: use raw")
    if not 1 <= quality <= 100:
        raise InputError(f"the jpg quality must be in 1..100, got {quality}")
    if images.channels != 3 and images.size is None:
        raise InputError(
            f"images of different sizes must have 3 channels, these have {images.channels}: resize them to one size"
        )
    if not len(images):
        raise InputError("there are no images to write")
    known = {"classes": images.classes, **(facts or {})}
    try:
        with atomic.replacing(path) as out:
            _write_all(out, images, mode, quality, known, progress)
            out.flush()
            _compare(mmap.mmap(out.fileno(), 0, access=mmap.ACCESS_READ), path, images, mode, progress)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise InputError(
                f"{path}: the disk is full ({images.images.nbytes / 2**20:,.0f} MiB of pixels to write): nothing was left there"
            ) from error
        raise
    return open_beton(path)


def _write_all(
    out: IO[bytes], images: ImageSet, mode: str, quality: int, facts: dict[str, Any], progress: bool
) -> None:
    with quietly():
        from ffcv.fields import IntField, NDArrayField, RGBImageField
        from ffcv.types import ALLOC_TABLE_TYPE, CURRENT_VERSION, FieldDescType, HeaderType, get_metadata_type
    rgb = images.channels == 3
    field = RGBImageField() if rgb else NDArrayField(np.dtype("<u1"), (*_size(images), images.channels))
    kinds = [field, IntField()]
    metadata = np.zeros(len(images), get_metadata_type(kinds))
    metadata["f1"] = images.labels.numpy()
    start = HeaderType.itemsize + 2 * FieldDescType.itemsize + metadata.nbytes
    pages = _Pages(out, start, page_size(images))
    allocations = np.zeros(len(images), ALLOC_TABLE_TYPE)
    for i, (shape, data) in enumerate(
        track(_encoded(images, mode, quality), len(images), "writing", progress)
    ):
        pointer = pages.append(data)
        allocations[i] = (i, pointer, len(data))
        metadata[i]["f0"] = (MODES[mode], shape[1], shape[0], pointer) if rgb else pointer
    said = json.dumps(facts).encode()
    blob = pages.append(said)
    pages.finish()
    header = np.zeros(1, HeaderType)
    header["version"], header["num_fields"], header["page_size"] = CURRENT_VERSION, 2, pages.size
    header["num_samples"], header["alloc_table_ptr"] = len(images), out.tell()
    out.write(allocations.tobytes())
    described = np.zeros(2, FieldDescType)
    for row, (number, name, kind) in zip(
        described, [(RGB if rgb else ARRAY, b"image", field), (INT, b"label", kinds[1])], strict=True
    ):
        row["type_id"] = number
        row["name"][: len(name)] = np.frombuffer(name, np.uint8)
        row["arguments"][:] = kind.to_binary()[0]
    where = np.frombuffer(MARK + np.array([blob, len(said)], "<u8").tobytes(), np.uint8)
    described[1]["arguments"][: len(where)] = where
    out.seek(0)
    out.write(header.tobytes() + described.tobytes() + metadata.tobytes())


def page_size(images: ImageSet) -> int:
    """FFCV wants a power of two; large enough for the largest image."""
    if images.table is None:
        largest = images.images[0].numel()
    else:
        largest = int((images.table[:, 1] * images.table[:, 2]).max()) * images.channels
    return max(SMALLEST_PAGE, 1 << (largest - 1).bit_length())


class _Pages:
    """Appends to the data region, which begins on the first page after `start`, so that nothing crosses a page's border."""

    def __init__(self, out: IO[bytes], start: int, size: int) -> None:
        self.out, self.size = out, size
        self.at = start + -start % size
        out.seek(self.at)

    def append(self, data: bytes) -> int:
        room = -self.at % self.size
        if len(data) > (room or self.size):
            self.out.write(bytes(room))
            self.at += room
        pointer = self.at
        self.out.write(data)
        self.at += len(data)
        return pointer

    def finish(self) -> None:
        self.out.write(bytes(-self.at % self.size))


def _encoded(images: ImageSet, mode: str, quality: int) -> Iterator[tuple[tuple[int, int], bytes]]:
    """(height, width) and the bytes of each image, in order; JPEGs are made on all cores."""

    def one(i: int) -> tuple[tuple[int, int], bytes]:
        pixels = images.image(i).numpy()
        if mode == "raw":
            return pixels.shape[:2], pixels.tobytes()
        stream = BytesIO()
        Image.fromarray(pixels).save(stream, "JPEG", quality=quality)
        return pixels.shape[:2], stream.getvalue()

    if mode == "raw":
        yield from map(one, range(len(images)))
        return
    waiting: deque[Future[tuple[tuple[int, int], bytes]]] = deque()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for i in range(len(images)):
            waiting.append(pool.submit(one, i))
            if len(waiting) >= 256:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _compare(mapped: mmap.mmap, path: Path, images: ImageSet, mode: str, progress: bool) -> None:
    """The check at the end: the file as it will be read, against the images it was made from."""
    found = parse(np.frombuffer(mapped, np.uint8), path)
    wrong = None if np.array_equal(found.labels, images.labels.numpy()) else "the labels differ"
    for i in track(range(len(images)), len(images), "checking", progress):
        if wrong:
            break
        pixels = images.image(i).numpy()
        stored = mapped[int(found.pointers[i]) : int(found.pointers[i] + found.lengths[i])]
        if mode == "raw":
            wrong = None if stored == pixels.tobytes() else f"image {i} differs"
        else:
            with Image.open(BytesIO(stored)) as image:
                wrong = None if np.array(image).shape == pixels.shape else f"image {i} has another size"
    if wrong:
        raise OSError(f"{path}: the file does not hold what was written ({wrong}): the disk may be failing")


def _size(images: ImageSet) -> tuple[int, int]:
    assert images.size is not None
    return images.size


# ---------------------------------------------------------------- reading


def open_beton(path: str | Path) -> Beton:
    """Reads and checks everything but the pixels; a file that is not whole, or not of images, is refused."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} is not there: make it with `cfol-fast data to-ffcv --out {path}`")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty: write it again with `cfol-fast data to-ffcv`")
    return parse(np.memmap(path, np.uint8, "r"), path)


def parse(data: np.ndarray, path: Path) -> Beton:
    with quietly():
        from ffcv.types import (
            ALLOC_TABLE_TYPE,
            CURRENT_VERSION,
            FieldDescType,
            HeaderType,
            get_handlers,
            get_metadata_type,
        )

    def foreign(why: str) -> InputError:
        return InputError(
            f"{path} is not an FFCV file of labelled images ({why}): write one with `cfol-fast data to-ffcv`"
        )

    def truncated(why: str) -> InputError:
        return InputError(
            f"{path} is truncated or damaged ({why}): write it again with `cfol-fast data to-ffcv`"
        )

    def array(kind: np.dtype, count: int, at: int, what: str) -> np.ndarray:
        end = at + count * kind.itemsize
        if end > len(data):
            raise truncated(f"{what} should end at byte {end:,}, the file has {len(data):,}")
        return np.frombuffer(data[at:end].tobytes(), kind)

    if len(data) < HeaderType.itemsize:
        raise foreign(f"{len(data)} bytes, less than a header")
    header = array(HeaderType, 1, 0, "the header")[0]
    if header["version"] != CURRENT_VERSION or not 1 <= header["num_fields"] <= 64:
        raise foreign(
            f"version {header['version']} with {header['num_fields']} fields, not version {CURRENT_VERSION}"
        )
    count, at = int(header["num_samples"]), HeaderType.itemsize
    described = array(FieldDescType, int(header["num_fields"]), at, "the list of fields")
    at += described.nbytes
    try:
        names = [bytes(row["name"]).split(b"\0")[0].decode("ascii") for row in described]
        handlers = get_handlers(described)
        kind = get_metadata_type(handlers)
    except Exception as error:  # whatever FFCV trips over in bytes that are not its own
        raise foreign(f"its list of fields cannot be read: {type(error).__name__}") from error
    types = [int(row["type_id"]) for row in described]
    image = next(
        (f for f, t in enumerate(types) if t == RGB or (t == ARRAY and _is_image(handlers[f]))), None
    )
    label = next((f for f, t in enumerate(types) if t == INT), None)
    if image is None or label is None:
        raise foreign(f"an image and an integer field are needed, it has {', '.join(names)}")
    if not count:
        raise truncated("it holds no samples: its writer was interrupted")
    metadata = array(kind, count, at, "the list of samples")
    table_at = int(header["alloc_table_ptr"])
    entries, rest = divmod(len(data) - table_at, ALLOC_TABLE_TYPE.itemsize)
    if not at < table_at <= len(data) or rest:
        raise truncated(f"its table should start at byte {table_at:,} of {len(data):,}")
    table = array(ALLOC_TABLE_TYPE, entries, table_at, "the table of the data")

    if types[image] == RGB:
        rows = metadata[f"f{image}"]
        heights, widths, modes, pointers = (rows[name] for name in ("height", "width", "mode", "data_ptr"))
        channels = 3
    else:
        height, width, channels = map(int, handlers[image].shape)
        heights, widths = np.full(count, height), np.full(count, width)
        modes, pointers = np.full(count, RAW), metadata[f"f{image}"]
    heights, widths, pointers = (a.astype(np.int64) for a in (heights, widths, pointers))
    lengths = _lengths(table, pointers)
    wrong = (lengths < 0) | (pointers + lengths > table_at) | (heights < 1) | (widths < 1)
    # whatever is not a JPEG is copied as it is, and must fit
    wrong |= (modes != JPG) & (lengths != heights * widths * channels)
    if wrong.any():
        raise truncated(f"the pixels of image {int(np.flatnonzero(wrong)[0])} are not where it says")
    facts = _facts(bytes(described[label]["arguments"]), data, table_at)
    if facts is None:
        raise truncated("its class names cannot be read")
    labels = metadata[f"f{label}"].astype(np.int64)
    known = len(facts["classes"]) if "classes" in facts else int(labels.max()) + 1
    if labels.min() < 0 or labels.max() >= known:
        raise InputError(f"{path}: labels must be 0..{known - 1}, it has {labels.min()}..{labels.max()}")
    missing = np.flatnonzero(np.bincount(labels, minlength=known) == 0)
    if len(missing):
        raise InputError(
            f"{path}: class {missing[0]} of {known} has no image; labels must be 0..k-1, each one in use"
        )
    facts.setdefault("classes", [str(c) for c in range(known)])
    return Beton(
        path,
        types[image],
        names[image],
        names[label],
        names,
        channels,
        heights,
        widths,
        modes,
        pointers,
        lengths,
        labels,
        facts,
    )


def _is_image(handler: Any) -> bool:
    return handler.dtype == np.uint8 and len(handler.shape) == 3 and handler.shape[2] in (1, 3)


def _lengths(table: np.ndarray, pointers: np.ndarray) -> np.ndarray:
    """Bytes of each image by FFCV's table, -1 where the table does not know the pointer."""
    if not len(table):
        return np.full(len(pointers), -1)
    order = np.argsort(table["ptr"])
    starts, sizes = table["ptr"][order].astype(np.int64), table["size"][order].astype(np.int64)
    at = np.searchsorted(starts, pointers).clip(max=len(starts) - 1)
    return np.where(starts[at] == pointers, sizes[at], -1)


def _facts(arguments: bytes, data: np.ndarray, end: int) -> dict[str, Any] | None:
    """The JSON of this project's writer; {} for a file that another program wrote; None when it is damaged."""
    if not arguments.startswith(MARK):
        return {}
    at, length = (int(v) for v in np.frombuffer(arguments, "<u8", 2, len(MARK)))
    if at + length > end:
        return None
    try:
        facts = json.loads(data[at : at + length].tobytes())
    except ValueError:
        return None
    return facts if isinstance(facts, dict) and isinstance(facts.get("classes"), list) else None
