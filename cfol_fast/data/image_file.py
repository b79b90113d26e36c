"""One image file to pixels: only formats that we mean are opened, upright, as RGB with 8 bits.

No program is ever started for a file, and a header that claims too many pixels is refused before anything is
decoded.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
from PIL import Image, ImageFile

from cfol_fast.data import white_point
from cfol_fast.data.listing import Listing, shown
from cfol_fast.errors import InputError, one_line
from cfol_fast.out_of_memory import is_out_of_memory

R = TypeVar("R")


# All that is ever tried on a file, whatever its name says. Of Pillow's other formats one starts Ghostscript.
FORMATS = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP", "GIF")
# Pillow's name for a JPEG file with more than one picture in it is MPO; the first one is what everybody
# shows.
JPEG_FORMATS = ("JPEG", "MPO")
# A file may hold several pictures of these; an MPO file's others are for cameras.
SEVERAL_PICTURES = ("GIF", "PNG", "WEBP", "TIFF")
# What Pillow raises for a file that is not a whole image.
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
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
# Of one image, in its file and as it is stored: 200 MB. A file of a few bytes may claim to have billions.
MOST_PIXELS = 1 << 26


def check_is_file(path: Path) -> os.stat_result:
    """Refuses a pipe, which would be waited for, and a device, which may have no end."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is not a file")
    return status


def open_image(path: Path) -> ImageFile.ImageFile:
    """Its header; nothing is decoded yet. An image too large is refused."""
    if not check_is_file(path).st_size:
        raise OSError("the file is empty")
    return open_header(path)


def open_header(file: Path | IO[bytes]) -> ImageFile.ImageFile:
    """The same of a file that is known to be one, or of the bytes of one."""
    try:
        image = Image.open(file, formats=FORMATS)
    except Image.DecompressionBombError:
        raise ValueError(f"too many pixels, at most {MOST_PIXELS:,} are decoded") from None
    except Image.UnidentifiedImageError:
        raise ValueError(f"its content is none of {', '.join(FORMATS)}") from None
    if image.width * image.height > MOST_PIXELS or min(image.size) < 1:
        image.close()
        raise ValueError(f"{image.width}x{image.height} pixels, at most {MOST_PIXELS:,} are decoded")
    return image


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


def stored_size(width: int, height: int, size: int) -> tuple[int, int]:
    """(width, height) of an image that is stored with a short side of `size` pixels."""
    scale = size / min(width, height)
    return max(size, round(width * scale)), max(size, round(height * scale))


def has_several_pictures(image: Image.Image) -> bool:
    """An animation, or pages: the first picture is taken."""
    # Looking for a second one fails in many ways; the first may be whole.
    with contextlib.suppress(Exception):
        return image.format in SEVERAL_PICTURES and bool(getattr(image, "is_animated", False))
    return False


def read_image(path: Path, size: int | None, white: Callable[[], float]) -> np.ndarray:
    """uint8 (h, w, 3), upright; raises OSError or ValueError when the file is not a whole image.

    white: asked for the white point of the data set where the image has more than 8 bits.
    """
    with open_image(path) as file:
        return pixels_of(file, size, white)


def pixels_of(file: ImageFile.ImageFile, size: int | None, white: Callable[[], float]) -> np.ndarray:
    """The same of an open image."""
    image: Image.Image = file
    turn = TURNS.get(orientation(file))
    width, height = upright_size(image)
    if size is not None:
        width, height = stored_size(width, height, size)
    if width * height > MOST_PIXELS:
        raise ValueError(f"{width}x{height} pixels in memory, at most {MOST_PIXELS:,} are decoded")
    deep = white_point.deep(file)
    if deep is not None:
        image = deep.picture(white() if deep.white is None else deep.white)
    if turn is not None:
        image = image.transpose(turn)
    if image.mode == "La":
        image = image.convert("LA")
    elif image.mode == "P" and "transparency" in image.info:
        # The same colours; from a palette Pillow warns of what becomes of the transparency.
        image = image.convert("RGBA")
    image = image.convert("RGB")
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.array(image)


def tried(function: Callable[[str], R]) -> Callable[[str], R | Exception]:
    """The function with the exception of a file that is not a whole image as its result."""

    def result(path: str) -> R | Exception:
        try:
            return function(path)
        except InputError:
            # Not of this image, but of the whole data set.
            raise
        except UNREADABLE as error:
            if is_out_of_memory(error):
                # The file may be whole.
                raise
            return error

    return result


def refuse_unreadable(listing: Listing, path: str, error: Exception, skip_corrupt: bool) -> None:
    """Raises an error that names the file, unless such files are to be left out."""
    if not skip_corrupt or isinstance(error, PermissionError):
        raise InputError(
            f"{shown(str(listing.root / path))} cannot be decoded ({one_line(error)}): repair or remove it,"
            " or leave out such images with --skip-corrupt (in training: --set data.skip_corrupt=true)"
        ) from error
