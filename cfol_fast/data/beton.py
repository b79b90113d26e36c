"""FFCV's file format, `.beton`: written here, and read here far enough to know that a file is complete.

FFCV's own writer waits forever when a worker dies (of a full disk, for example), and its reader returns zeros
for missing data. So a file is written in one pass to a temporary name, compared with the images it should
hold, and renamed; and it is checked in full when it is opened. What is written is plain FFCV: its Loader
reads it. Class names and the rest of the description are JSON in the data region; the label field's
arguments, which FFCV does not use, say where it starts.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image

from cfol_fast import atomic
from cfol_fast.data.beton_layout import ARRAY, INT, JPG, MARK, MODES, RAW, RGB, BetonWriter
from cfol_fast.data.decoding import MOST_PIXELS
from cfol_fast.data.ffcv_install import using_ffcv
from cfol_fast.data.images import ImageSet
from cfol_fast.data.parallel import map_in_order
from cfol_fast.errors import InputError
from cfol_fast.progress import track

# Nobody's JPEGs hold more pixels in a byte; a list of images that claims more would ask for memory that no
# pixels fill.
MOST_PIXELS_PER_BYTE = 1024


@dataclass(frozen=True)
class Beton:
    """What a checked file holds. All arrays have one entry per image.

    kind: of the image field, RGB or ARRAY. description: the class names, and what else the writer noted.
    """

    path: Path
    kind: int
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
    description: dict[str, Any]

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
    description: dict[str, Any] | None = None,
    progress: bool = False,
) -> Beton:
    """Writes `images` to `path` and compares the file with them before it takes that name.

    mode: "raw" keeps every bit; "jpg" is smaller and changes the pixels, for images with three channels.
    description: what to note beside the class names, for JSON.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a file, and FFCV reads only files: choose another name")
    with told_when_full(path, images.images.nbytes), atomic.replacing(path) as out:
        write_to(out, path, images, mode, quality, description, progress)
    return open_beton(path)


def write_to(
    out: IO[bytes],
    path: Path,
    images: ImageSet,
    mode: str,
    quality: int,
    description: dict[str, Any] | None,
    progress: bool,
) -> None:
    """The same to an open file, which is to be called `path`."""
    if mode not in MODES:
        raise InputError(f"mode must be raw or jpg, got {mode!r}")
    if mode == "jpg" and images.channels != 3:
        raise InputError(f"jpg holds images with 3 channels, these have {images.channels}: use raw")
    if not 1 <= quality <= 100:
        raise InputError(f"the jpg quality must be in 1..100, got {quality}")
    if images.channels != 3 and images.size is None:
        raise InputError(
            f"images of different sizes must have 3 channels, these have {images.channels}: resize them to"
            " one size"
        )
    if not len(images):
        raise InputError("there are no images to write")

    def one(i: int) -> tuple[int, int, bytes]:
        pixels = images.image(i).numpy()
        height, width = pixels.shape[:2]
        return height, width, pixels.tobytes() if mode == "raw" else as_jpeg(pixels, quality)

    numbers = range(len(images))
    pieces = map(one, numbers) if mode == "raw" else map_in_order(one, numbers)
    writer = BetonWriter(out, len(images), images.channels, images.size)
    labels = images.labels.tolist()
    for label, piece in zip(labels, track(pieces, len(images), "writing", progress), strict=True):
        height, width, data = piece
        writer.add(height, width, MODES[mode], data, label)
    writer.finish({"classes": images.classes, **(description or {})})
    check_written(writer, path, progress)


def as_jpeg(pixels: np.ndarray, quality: int) -> bytes:
    stream = BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=quality)
    return stream.getvalue()


def check_written(writer: BetonWriter, path: Path, progress: bool) -> None:
    """The check at the end: the file as it will be read, against what was written to it."""
    mapped = mmap.mmap(writer.out.fileno(), 0, access=mmap.ACCESS_READ)
    whole = memoryview(mapped)
    found = parse(np.frombuffer(mapped, np.uint8), path)
    wrong = None if np.array_equal(found.labels, writer.labels) else "the labels differ"
    for i in track(range(len(found)), len(found), "checking", progress):
        start = int(found.pointers[i])
        if wrong is None and not writer.is_stored(i, whole[start : start + int(found.lengths[i])]):
            wrong = f"image {i} differs"
    if wrong:
        raise OSError(
            errno.EIO,
            f"the file does not hold what was written ({wrong}), the disk may be failing",
            str(path),
        )


@contextlib.contextmanager
def told_when_full(path: Path, size: int | None = None) -> Iterator[None]:
    """A full disk is an error of the input, which names the bytes of pixels that were to be written."""
    try:
        yield
    except OSError as error:
        if error.errno not in atomic.DISK_FULL:
            raise
        wanted = "" if size is None else f"; {size / 2**20:,.0f} MiB of pixels to write"
        raise InputError(
            f"{path}: the disk is full ({error.strerror}{wanted}): nothing was left there"
        ) from error


# ---------------------------------------------------------------- reading


def open_beton(path: str | Path) -> Beton:
    """Reads and checks everything but the pixels; a file that is incomplete or holds no images is refused."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} is not there: make it with `cfol-fast data to-ffcv --out {path}`")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty: write it again with `cfol-fast data to-ffcv`")
    return parse(np.memmap(path, np.uint8, "r"), path)


def parse(data: np.ndarray, path: Path) -> Beton:
    with using_ffcv():
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

    def array(kind: np.dtype, count: int, start: int, what: str) -> np.ndarray:
        end = start + count * kind.itemsize
        if end > len(data):
            raise truncated(f"{what} should end at byte {end:,}, the file has {len(data):,}")
        return np.frombuffer(data[start:end].tobytes(), kind)

    if len(data) < HeaderType.itemsize:
        raise foreign(f"{len(data)} bytes, less than a header")
    header = array(HeaderType, 1, 0, "the header")[0]
    if header["version"] != CURRENT_VERSION or not 1 <= header["num_fields"] <= 64:
        raise foreign(
            f"version {header['version']} with {header['num_fields']} fields, not version {CURRENT_VERSION}"
        )
    count = int(header["num_samples"])
    described = array(FieldDescType, int(header["num_fields"]), HeaderType.itemsize, "the list of fields")
    samples_start = HeaderType.itemsize + described.nbytes
    try:
        names = [bytes(row["name"]).split(b"\0")[0].decode("ascii") for row in described]
        handlers = get_handlers(described)
        kind = get_metadata_type(handlers)
    # FFCV raises all kinds of exceptions for bytes that it did not write.
    except Exception as error:
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
    metadata = array(kind, count, samples_start, "the list of samples")
    table_start = int(header["alloc_table_ptr"])
    entries, rest = divmod(len(data) - table_start, ALLOC_TABLE_TYPE.itemsize)
    if not samples_start < table_start <= len(data) or rest:
        raise truncated(f"its table should start at byte {table_start:,} of {len(data):,}")
    table = array(ALLOC_TABLE_TYPE, entries, table_start, "the table of the data")

    if types[image] == RGB:
        rows = metadata[f"f{image}"]
        heights, widths, modes, pointers = (rows[name] for name in ("height", "width", "mode", "data_ptr"))
        channels = 3
    else:
        height, width, channels = map(int, handlers[image].shape)
        if not 0 < height * width * channels <= len(data):
            raise truncated(f"images of {height}x{width}x{channels} bytes do not fit in {len(data):,}")
        heights, widths = np.full(count, height), np.full(count, width)
        modes, pointers = np.full(count, RAW), metadata[f"f{image}"]
    heights, widths, pointers = (a.astype(np.int64) for a in (heights, widths, pointers))
    lengths = _lengths(table, pointers)
    wrong = (lengths < 0) | (pointers < 0) | (lengths > table_start) | (heights < 1) | (widths < 1)
    wrong |= pointers > table_start - lengths
    wrong |= (heights * widths > MOST_PIXELS) | (heights * widths > MOST_PIXELS_PER_BYTE * lengths)
    # Everything that is not a JPEG is copied byte by byte, so its length is known.
    wrong |= (modes != JPG) & (lengths != heights * widths * channels)
    if wrong.any():
        raise truncated(f"the pixels of image {int(np.flatnonzero(wrong)[0])} are not where it says")
    description = _description(bytes(described[label]["arguments"]), data, table_start)
    if description is None:
        raise truncated("its class names cannot be read")
    labels = metadata[f"f{label}"].astype(np.int64)
    # Every class has an image, so there are no more classes than images.
    if labels.min() < 0 or labels.max() >= count:
        raise InputError(
            f"{path}: {count:,} images have labels 0..{count - 1} at most, it has"
            f" {labels.min()}..{labels.max()}"
        )
    k = len(description["classes"]) if "classes" in description else int(labels.max()) + 1
    if labels.min() < 0 or labels.max() >= k:
        raise InputError(f"{path}: labels must be 0..{k - 1}, it has {labels.min()}..{labels.max()}")
    missing = np.flatnonzero(np.bincount(labels, minlength=k) == 0)
    if len(missing):
        raise InputError(
            f"{path}: class {missing[0]} of {k} has no image; labels must be 0..k-1, each one in use"
        )
    description.setdefault("classes", [str(c) for c in range(k)])
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
        description,
    )


def _is_image(handler: Any) -> bool:
    return handler.dtype == np.uint8 and len(handler.shape) == 3 and handler.shape[2] in (1, 3)


def _lengths(table: np.ndarray, pointers: np.ndarray) -> np.ndarray:
    """Bytes of each image by FFCV's table; -1 where the table has no such pointer."""
    if not len(table):
        return np.full(len(pointers), -1)
    order = np.argsort(table["ptr"])
    starts, sizes = table["ptr"][order].astype(np.int64), table["size"][order].astype(np.int64)
    rows = np.searchsorted(starts, pointers).clip(max=len(starts) - 1)
    return np.where(starts[rows] == pointers, sizes[rows], -1)


def _description(arguments: bytes, data: np.ndarray, end: int) -> dict[str, Any] | None:
    """The JSON of this project's writer; {} for a file that another program wrote; None when it is
    damaged.
    """
    if not arguments.startswith(MARK):
        return {}
    start, length = (int(v) for v in np.frombuffer(arguments, "<u8", 2, len(MARK)))
    if start + length > end:
        return None
    try:
        found = json.loads(data[start : start + length].tobytes())
    except (ValueError, RecursionError):
        return None
    classes = found.get("classes") if isinstance(found, dict) else None
    return found if isinstance(classes, list) and all(isinstance(name, str) for name in classes) else None
