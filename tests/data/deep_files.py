"""PNG and TIFF files with more than 8 bits, written byte by byte: Pillow writes few of those that it
reads.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

PNG_COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}


def png(values: np.ndarray) -> bytes:
    """values: uint16 (h, w, c); c: grey, grey with transparency, RGB, RGB with transparency."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, channels = values.shape
    header = struct.pack(">IIBBBBB", width, height, 16, PNG_COLOURS[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def tiff(
    values: np.ndarray,
    photometric: int = 1,
    *,
    big: bool = False,
    planar: bool = False,
    extra: int | None = None,
) -> bytes:
    """values: (h, w, c), of any type. photometric: 0 is inverted grey, 1 grey, 2 RGB, 5 CMYK. planar: the
    channels lie apart.
    """
    end = ">" if big else "<"
    height, width, channels = values.shape
    stored = values.transpose(2, 0, 1) if planar else values
    data = stored.astype(values.dtype.newbyteorder(end)).tobytes()
    strips = channels if planar else 1
    kind = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    short, long = ("H", 2, 3), ("I", 4, 4)
    tags = {
        256: (long, [width]),
        257: (long, [height]),
        258: (short, [8 * values.dtype.itemsize] * channels),
        259: (short, [1]),
        262: (short, [photometric]),
        273: (long, [0] * strips),
        277: (short, [channels]),
        278: (long, [height]),
        279: (long, [len(data) // strips] * strips),
        284: (short, [2 if planar else 1]),
        **({} if extra is None else {338: (short, [extra])}),
        339: (short, [kind] * channels),
    }
    after = 8 + 2 + 12 * len(tags) + 4
    beside = sum(size * len(v) for (_, size, _), v in tags.values() if size * len(v) > 4)
    step = len(data) // strips
    tags[273] = (long, [after + beside + i * step for i in range(strips)])
    entries = extras = b""
    for tag, ((code, _, number), numbers) in sorted(tags.items()):
        packed = struct.pack(f"{end}{len(numbers)}{code}", *numbers)
        if len(packed) > 4:
            place = struct.pack(f"{end}I", after + len(extras))
            extras += packed
            packed = place
        entries += struct.pack(f"{end}HHI", tag, number, len(numbers)) + packed.ljust(4, b"\0")
    start = (b"MM\0*" if big else b"II*\0") + struct.pack(f"{end}IH", 8, len(tags))
    return start + entries + struct.pack(f"{end}I", 0) + extras + data


def pgm(values: np.ndarray, largest: int) -> bytes:
    """uint16 (h, w, c) of grey or RGB, with the largest value that the file states."""
    kind = {1: b"P5", 3: b"P6"}[values.shape[2]]
    return (
        kind + b"\n%d %d\n%d\n" % (values.shape[1], values.shape[0], largest) + values.astype(">u2").tobytes()
    )
