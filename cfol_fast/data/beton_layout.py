"""FFCV's file layout: its numbers, and the writer that appends images to a file one by one.

Pixels are written as they come; labels, places and checksums stay in memory, about 50 bytes an image, and are
written at the end. So a file may be larger than the memory, and how many images it will hold need not be
known exactly.
"""

from __future__ import annotations

import json
import zlib
from typing import IO, Any

import numpy as np

from cfol_fast.data.ffcv_install import using_ffcv

# FFCV's limit; an image does not cross the border between two pages.
SMALLEST_PAGE = 1 << 21
# FFCV keeps the sides of an image in 16 bits.
LONGEST_SIDE = (1 << 16) - 1
MARK = b"cfol_fast 1\0"
# FFCV's numbers for the kinds of fields, and for the ways an image is stored.
INT, RGB, ARRAY = 1, 2, 4
JPG, RAW = 0, 1
MODES = {"jpg": JPG, "raw": RAW}


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

    def add(self, height: int, width: int, mode: int, data: bytes, label: int) -> None:
        i = self.count
        self._checksums[i] = zlib.crc32(data)
        pointer = self._pages.append(data)
        self._allocations[i] = (i, pointer, len(data))
        self._metadata[i]["f0"] = (mode, width, height, pointer) if self.rgb else pointer
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
