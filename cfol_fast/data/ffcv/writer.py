"""The one writer of FFCV files.

FFCV's own writer waits forever when a worker dies (of a full disk, for example). So a file is written in one
pass, by one thread, to a temporary name, compared with the images it should hold, and renamed. What is
written is plain FFCV: its Loader reads it.

Pixels are written as they come; labels, places and checksums stay in memory, about 50 bytes an image, and are
written at the end. So a file may be larger than the memory, and how many images it will hold need not be
known exactly. Class names and the rest of the description are JSON in the data region; the label field's
arguments, which FFCV does not use, say where it starts.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image

from cfol_fast import atomic
from cfol_fast.data.ffcv.format import ARRAY, INT, MARK, MODES, RGB, SMALLEST_PAGE
from cfol_fast.data.ffcv.install import using_ffcv
from cfol_fast.data.ffcv.reader import Beton, open_beton, parse
from cfol_fast.data.images import ImageSet
from cfol_fast.data.parallel import map_in_order
from cfol_fast.errors import InputError
from cfol_fast.progress import track


@dataclass(frozen=True)
class Stored:
    """One image as it stands in the file. mode: JPG or RAW."""

    height: int
    width: int
    mode: int
    data: bytes


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

    def one(i: int) -> Stored:
        return stored_image(images.image(i).numpy(), mode, quality)

    numbers = range(len(images))
    stored = map(one, numbers) if mode == "raw" else map_in_order(one, numbers)
    labelled = zip(images.labels.tolist(), track(stored, len(images), "writing", progress), strict=True)
    write_stored(
        out,
        path,
        labelled,
        len(images),
        lambda: {"classes": images.classes, **(description or {})},
        progress,
        images.channels,
        images.size,
    )


def write_stored(
    out: IO[bytes],
    path: Path,
    labelled: Iterable[tuple[int, Stored]],
    most: int,
    describe: Callable[[], dict[str, Any]],
    progress: bool,
    channels: int = 3,
    size: tuple[int, int] | None = None,
) -> None:
    """Writes pairs of a label and an image to the empty file `out`, which is to be called `path`, and
    compares the file with them.

    most: no more images than these. describe: called after the last image, for JSON. size: (height, width) of
    all images, needed where `channels` is not 3.
    """
    writer = BetonWriter(out, most, channels, size)
    for label, stored in labelled:
        writer.add(stored, label)
    if not writer.count:
        raise InputError(f"{path}: there are no images to write")
    writer.finish(describe())
    check_written(writer, path, progress)


def stored_image(pixels: np.ndarray, mode: str, quality: int) -> Stored:
    """pixels: uint8 (H, W, C)."""
    height, width = pixels.shape[:2]
    data = pixels.tobytes() if mode == "raw" else as_jpeg(pixels, quality)
    return Stored(height, width, MODES[mode], data)


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


class BetonWriter:
    """Appends images to the empty file `out`, at most `most` of them.

    size: (height, width) of all images, needed where `channels` is not 3.
    """

    def __init__(self, out: IO[bytes], most: int, channels: int, size: tuple[int, int] | None) -> None:
        with using_ffcv():
            from ffcv.fields import IntField, NDArrayField, RGBImageField
            from ffcv.types import ALLOC_TABLE_TYPE, FieldDescType, HeaderType, get_metadata_type
        self.rgb = channels == 3
        assert self.rgb or size is not None
        field = RGBImageField() if self.rgb else NDArrayField(np.dtype("<u1"), (*(size or ()), channels))
        self._fields = [(RGB if self.rgb else ARRAY, b"image", field), (INT, b"label", IntField())]
        self._metadata = np.zeros(most, get_metadata_type([field for _, _, field in self._fields]))
        self._allocations = np.zeros(most, ALLOC_TABLE_TYPE)
        self._checksums = np.zeros(most, np.uint32)
        self.count = 0
        self.out = out
        start = HeaderType.itemsize + 2 * FieldDescType.itemsize + self._metadata.nbytes
        self._pages = Pages(out, start)

    def add(self, image: Stored, label: int) -> None:
        i = self.count
        self._checksums[i] = zlib.crc32(image.data)
        pointer = self._pages.append(image.data)
        self._allocations[i] = (i, pointer, len(image.data))
        place = (image.mode, image.width, image.height, pointer)
        self._metadata[i]["f0"] = place if self.rgb else pointer
        self._metadata[i]["f1"] = label
        self.count += 1

    def finish(self, description: dict[str, Any]) -> None:
        """Everything but the pixels. description: for JSON; where it stands is noted in the label field's
        arguments.
        """
        from ffcv.types import CURRENT_VERSION, FieldDescType, HeaderType

        text = json.dumps(description).encode()
        text_pointer = self._pages.append(text)
        self._pages.finish()
        header = np.zeros(1, HeaderType)
        header["version"], header["num_fields"], header["page_size"] = CURRENT_VERSION, 2, self._pages.size
        header["num_samples"], header["alloc_table_ptr"] = self.count, self.out.tell()
        self.out.write(self._allocations[: self.count].tobytes())
        described = np.zeros(2, FieldDescType)
        for row, (number, name, field) in zip(described, self._fields, strict=True):
            row["type_id"] = number
            row["name"][: len(name)] = np.frombuffer(name, np.uint8)
            row["arguments"][:] = field.to_binary()[0]
        text_place = np.frombuffer(MARK + np.array([text_pointer, len(text)], "<u8").tobytes(), np.uint8)
        described[1]["arguments"][: len(text_place)] = text_place
        self.out.seek(0)
        self.out.write(header.tobytes() + described.tobytes() + self._metadata[: self.count].tobytes())
        self.out.flush()

    @property
    def labels(self) -> np.ndarray:
        return self._metadata["f1"][: self.count]

    def is_stored(self, i: int, data: memoryview) -> bool:
        """Whether `data` is what image `i` was written as."""
        return zlib.crc32(data) == self._checksums[i]


class Pages:
    """Appends to the data region, which begins at the first page after `start`, so that nothing crosses a
    page's border.

    A page is as large as the largest piece needs it to be. What lies in one page lies in one page of twice
    the size, too, so pages may grow while the file is written.
    """

    def __init__(self, out: IO[bytes], start: int) -> None:
        self.out, self.size = out, SMALLEST_PAGE
        self.position = start + -start % self.size
        out.seek(self.position)

    def append(self, data: bytes) -> int:
        while len(data) > self.size:
            self.size *= 2
        room = -self.position % self.size
        if len(data) > (room or self.size):
            self.out.seek(room, 1)
            self.position += room
        pointer = self.position
        self.out.write(data)
        self.position += len(data)
        return pointer

    def finish(self) -> None:
        self.out.write(bytes(-self.position % self.size))
