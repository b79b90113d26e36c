"""The bytes of an image file to pixels: `decode(bytes)`, by torchcodec where its pixels are Pillow's, else by
Pillow.

torchcodec (the extra [stream]) decodes JPEG, PNG and WebP faster than Pillow, without Python's lock. Its
pixels are Pillow's bit for bit, except for PNG with 16 bits, animations, and EXIF data that says in an
unusual way how the camera was held. Those, BMP, TIFF, PPM and GIF, and every file that torchcodec refuses go
to Pillow. So the pixels do not depend on whether torchcodec is installed.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFile

from cfol_fast.data.image_file import (
    JPEG_FORMATS,
    MOST_PIXELS,
    TURNS,
    has_several_pictures,
    open_header,
    orientation,
    pixels_of,
    stored_size,
    upright_size,
)
from cfol_fast.data.library_words import caught

INSTALL = "pip install 'torchcodec==0.17.*'"
# What becomes of a file: decoded whole, at the scale of JPEG's blocks that is next above the size, or by
# nvJPEG.
WHOLE, SCALED, NVJPEG = "whole", "scaled", "nvjpeg"
WAYS = (WHOLE, SCALED, NVJPEG)
# The number of the orientation in EXIF data, of either byte order; and the entry that all decoders read
# alike.
ORIENTATION = re.compile(rb"\x01\x12|\x12\x01")
USUAL_ORIENTATION = (b"\x01\x12\x00\x03\x00\x00\x00\x01", b"\x12\x01\x03\x00\x01\x00\x00\x00")
# Where a PNG says how many bits a sample has.
PNG_BITS = 24


@lru_cache
def torchcodec_functions() -> dict[str, Callable[..., Any]] | None:
    """Its decoders by Pillow's names of the formats; None where it cannot be imported."""
    try:
        from torchcodec.decoders import decode_jpeg, decode_png, decode_webp
    # A build for another version of torch fails in other ways than by an ImportError.
    except Exception:
        return None
    return {"JPEG": decode_jpeg, "MPO": decode_jpeg, "PNG": decode_png, "WEBP": decode_webp}


class Decoder:
    """`decode(bytes)`: uint8 (h, w, 3), upright; raises what `image_file.UNREADABLE` lists for bytes that are
    not a whole image. Safe to call from many threads.

    size: the short side to resize to, as the resident source does; None keeps the image's own.
    white: asked for the white point of the data set where an image has more than 8 bits.
    way: one of `WAYS`. `scaled` gives other pixels, faster; here `nvjpeg` is `whole`, as it decodes batches
    (`Nvjpeg`).
    """

    def __init__(self, size: int | None, white: Callable[[], float], way: str = WHOLE) -> None:
        self.size, self.white, self.way = size, white, way

    def __call__(self, data: bytes | bytearray) -> np.ndarray:
        # The header is read first: torchcodec has no limit of pixels.
        with open_header(io.BytesIO(data)) as image, caught():
            if self.way == SCALED and self.size is not None and image.format in JPEG_FORMATS:
                return self._scaled(image, self.size)
            pixels = self._by_torchcodec(image, data)
            return pixels_of(image, self.size, self.white) if pixels is None else pixels

    def _by_torchcodec(self, image: ImageFile.ImageFile, data: bytes | bytearray) -> np.ndarray | None:
        """None where Pillow is to decode."""
        functions = torchcodec_functions()
        if functions is None or not is_same_in_torchcodec(image, data):
            return None
        width, height = upright_size(image)
        stored = (width, height) if self.size is None else stored_size(width, height, self.size)
        if stored[0] * stored[1] > MOST_PIXELS:
            return None
        # Of bytes that cannot be written torch warns, and its way to keep quiet is not for several threads.
        encoded = torch.frombuffer(
            data if isinstance(data, bytearray) else bytearray(data), dtype=torch.uint8
        )
        try:
            found = functions[str(image.format)](encoded)
        except RuntimeError:
            return None
        if found.shape != (3, height, width):
            return None
        pixels = found.permute(1, 2, 0).numpy()
        return pixels if stored == (width, height) else _resized(Image.fromarray(pixels), stored)

    def _scaled(self, image: ImageFile.ImageFile, size: int) -> np.ndarray:
        width, height = stored_size(*upright_size(image), size)
        turn = TURNS.get(orientation(image))
        image.draft(None, stored_size(*image.size, size))
        scaled: Image.Image = image if turn is None else image.transpose(turn)
        return _resized(scaled.convert("RGB"), (width, height))


def is_same_in_torchcodec(image: ImageFile.ImageFile, data: bytes | bytearray) -> bool:
    """Whether torchcodec gives Pillow's pixels for these bytes, of which `image` is the header."""
    if image.format not in (torchcodec_functions() or {}):
        return False
    if image.format == "PNG" and data[PNG_BITS] > 8:
        return False
    if has_several_pictures(image):
        return False
    exif = image.info.get("exif", b"")
    return len(ORIENTATION.findall(exif)) == sum(exif.count(entry) for entry in USUAL_ORIENTATION) <= 1


def _resized(image: Image.Image, size: tuple[int, int]) -> np.ndarray:
    if image.size != size:
        image = image.resize(size, Image.Resampling.BILINEAR)
    return np.array(image)


def description() -> str:
    """What decodes, in words."""
    if torchcodec_functions() is None:
        return f"Pillow (torchcodec gives the same pixels faster: {INSTALL})"
    from torchcodec import __version__

    return f"torchcodec {__version__}"


class Nvjpeg:
    """Decodes the JPEG files of a batch together on a GPU by nvJPEG, and resizes them there.

    Its pixels are not those of the CPU's decoders, so it is part of a run's identity. It was never run on a
    GPU: under test another function takes the place of torchcodec's `decode_jpeg`.
    """

    def __init__(self, decoder: Decoder, device: torch.device) -> None:
        self.decoder, self.device = decoder, device

    def __call__(self, batch: list[bytearray]) -> list[torch.Tensor]:
        """uint8 (h, w, 3) of each image, on the device; what is no plain JPEG comes from the CPU."""
        sizes = [self._size_on_device(data) for data in batch]
        chosen = [i for i, size in enumerate(sizes) if size is not None]
        decoded = self._decode([batch[i] for i in chosen]) if chosen else []
        found: list[Any] = [None] * len(batch)
        for i, image in zip(chosen, decoded, strict=True):
            found[i] = _resized_on_device(image, sizes[i])
        for i, size in enumerate(sizes):
            if size is None:
                found[i] = torch.from_numpy(self.decoder(batch[i])).to(self.device)
        return found

    def _decode(self, batch: list[bytearray]) -> list[torch.Tensor]:
        from torchcodec.decoders import decode_jpeg

        encoded = [torch.frombuffer(data, dtype=torch.uint8) for data in batch]
        found = decode_jpeg(encoded, device=self.device)
        assert isinstance(found, list)
        return found

    def _size_on_device(self, data: bytearray) -> tuple[int, int] | None:
        """(width, height) to resize to; None for what the CPU is to decode."""
        with open_header(io.BytesIO(data)) as image:
            if image.format not in JPEG_FORMATS or image.mode == "CMYK" or image.info.get("exif"):
                return None
            return image.size if self.decoder.size is None else stored_size(*image.size, self.decoder.size)


def _resized_on_device(image: torch.Tensor, size: tuple[int, int] | None) -> torch.Tensor:
    """image: uint8 (3, h, w); the result uint8 (h, w, 3)."""
    assert size is not None
    if tuple(image.shape[1:]) != size[::-1]:
        floats = torch.nn.functional.interpolate(
            image[None].float(), size[::-1], mode="bilinear", antialias=True, align_corners=False
        )
        image = floats[0].round_().clamp_(0, 255).to(torch.uint8)
    return image.permute(1, 2, 0).contiguous()
