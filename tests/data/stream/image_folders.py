"""Folders of small images in every format that a folder may hold."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    """Colours that differ everywhere, with some noise: another picture however it is turned."""
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack([(y * 3 + seed * 20) % 256, x * 2 % 256, (x + y) % 256], 2).astype(np.uint8)
    return Image.fromarray(pixels ^ np.random.default_rng(seed).integers(0, 32, pixels.shape, np.uint8))


def deep(height: int, width: int, seed: int = 0) -> Image.Image:
    """Grey with 16 bits."""
    values = np.random.default_rng(seed).integers(0, 65536, (height, width)).astype(np.uint16)
    values[0, 0] = 65535
    return Image.fromarray(values)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


KINDS: dict[str, dict[str, Any]] = {
    "jpg": {"kind": "JPEG"},
    "png": {"kind": "PNG"},
    "webp": {"kind": "WEBP"},
    "bmp": {"kind": "BMP"},
    "gif": {"kind": "GIF"},
    "tif": {"kind": "TIFF"},
    "ppm": {"kind": "PPM"},
}


def write(root: Path, per_class: int = 7, test: bool = True, side: int | None = None) -> Path:
    """train/ and test/ with two classes; without `side` the images have different sizes."""
    for split in ("train", "test")[: 1 + test]:
        for number, name in enumerate(("ant", "bee")):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(per_class):
                ending = list(KINDS)[i % len(KINDS)]
                height, width = (side, side) if side else (30 + 3 * i, 45 - 2 * i)
                image = picture(height, width, 10 * i + number + 100 * (split == "test"))
                (folder / f"{i}.{ending}").write_bytes(encoded(image, **KINDS[ending]))
    return root
