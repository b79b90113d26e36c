"""The reader of FFCV files, far enough to know that a file is complete.

FFCV's own reader returns zeros for missing data, so everything but the pixels is checked when a file is
opened; the pixels are read by FFCV, in the feed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cfol_fast.data.ffcv.format import ARRAY, INT, JPG, MARK, RAW, RGB
from cfol_fast.data.ffcv.install import using_ffcv
from cfol_fast.data.image_file import MOST_PIXELS
from cfol_fast.errors import InputError

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


def written_size(description: dict[str, Any]) -> tuple[int, int] | None:
    """The size of the batches that this project's writer noted."""
    size = description.get("size")
    if (
        not isinstance(size, list)
        or len(size) != 2
        or not all(type(n) is int and 0 < n < 65536 for n in size)
    ):
        return None
    return size[0], size[1]
