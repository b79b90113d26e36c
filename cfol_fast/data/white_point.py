"""What is white in images with more than 8 bits?

Their files do not say: 16 bits hold 8, 10, 12, 14 or 16, a float holds anything.

It is decided once for a whole data set, training and test part together, from the largest value of every such
image, and refused where the values leave a doubt. Images with 8 bits and files that state their depth are not
concerned.
"""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageFile

from cfol_fast.errors import InputError

# The largest values of 8, 10, 12, 14 and 16 bits.
FULL = (255.0, 1023.0, 4095.0, 16383.0, 65535.0)
# An image that stays below this share of white is nearly black, and one that goes this often beyond it nearly
# white.
DARK, BRIGHT = 1 / 16, 2.0
# So many dark ones are taken for chance; with more, a few values too large may have decided. Of a white point
# that was given, most images are to be white before it is refused.
FEW, MOST = 0.1, 0.5
WHOLE, FRACTIONS = "whole numbers", "fractions"
MINISWHITE, BITS, PHOTOMETRIC, PLANAR = 0, 258, 262, 284
# PPM's own scaling; of 65535, which every program writes, nothing can be learned.
PPM_DECODERS = ("ppm", "ppm_plain")
# What unpacks the other byte of every sample.
OTHER_BYTE = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}


@dataclass(frozen=True)
class Deep:
    """The pixels of an image with more than 8 bits a channel: (h, w), or (h, w, c) of RGB or CMYK, without
    transparency.

    white: where the file states it. inverted: 0 is white.
    """

    values: np.ndarray
    white: float | None = None
    inverted: bool = False

    @property
    def fractional(self) -> bool:
        return self.values.dtype.kind == "f"

    def picture(self, white: float) -> Image.Image:
        """With 8 bits; what is above `white` is white."""
        values = self.values.astype(np.float64)
        if white in FULL and not self.fractional:
            # The upper bits, as everywhere: 4095 of 12 bits, and 4080 too, is 255.
            scaled = np.floor(values * (256 / (white + 1)))
        else:
            scaled = np.rint(values * (255 / white))
        grey = np.clip(scaled, 0, 255).astype(np.uint8)
        if self.inverted:
            grey = 255 - grey
        # Two dimensions are grey, three bytes a pixel RGB, four CMYK.
        return (
            Image.fromarray(grey)
            if grey.shape[2:] != (4,)
            else Image.frombytes("CMYK", grey.shape[1::-1], grey.tobytes())
        )


def deep(image: ImageFile.ImageFile) -> Deep | None:
    """The pixels of an open, not yet loaded image that has more than 8 bits a channel; None where it has 8 or
    fewer.
    """
    codec, rawmode, stated = _encoding(image)
    tags = getattr(image, "tag_v2", {})
    if tags.get(PLANAR) == 2 and max(tags.get(BITS, (8,))) > 8:
        # Pillow takes every byte of a plane for a pixel.
        raise ValueError("its colours lie apart with 16 bits each: store them together, or with 8 bits")
    if codec == "ppm" and stated == 65535 and image.mode == "RGB":
        return Deep(_ppm(image))
    if image.mode.startswith(("I", "F")):
        white = (
            65535.0 if codec in PPM_DECODERS and stated != 65535 else FULL[2] if rawmode == "I;12" else None
        )
        return _checked(Deep(np.asarray(image), white, tags.get(PHOTOMETRIC) == MINISWHITE))
    if ";16" not in rawmode:
        return None
    if rawmode.startswith("RGBa"):
        raise ValueError(
            "16 bits a colour, multiplied by their transparency: store them with 8 bits, or without"
        )
    return Deep(_colours(image, rawmode))


def is_deep(image: ImageFile.ImageFile) -> bool:
    """Whether an open image has more than 8 bits a channel, by its header alone."""
    codec, rawmode, stated = _encoding(image)
    if codec == "ppm" and stated == 65535 and image.mode == "RGB":
        return True
    return image.mode.startswith(("I", "F")) or ";16" in rawmode


def _encoding(image: ImageFile.ImageFile) -> tuple[str, str, int | None]:
    """Pillow's decoder, how the samples are packed, and the largest value that a PPM file states."""
    if not image.tile:
        return "", "", None
    codec, _, _, args = image.tile[0]
    parts = args if isinstance(args, tuple) else (args,)
    rawmode = parts[0] if parts and isinstance(parts[0], str) else ""
    return codec, rawmode, parts[1] if codec in PPM_DECODERS and len(parts) > 1 else None


def _checked(found: Deep) -> Deep:
    low, high = found.values.min(), found.values.max()
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError("its pixels are not all finite numbers: store them with 8 or 16 bits")
    if low < 0:
        raise ValueError(f"its pixels go from {low:g} to {high:g}: store them with numbers from 0 on")
    return found


def _ppm(image: ImageFile.ImageFile) -> np.ndarray:
    width, height = image.size
    file = image.fp
    assert file is not None
    file.seek(image.tile[0].offset)
    data = file.read(6 * width * height)
    if len(data) < 6 * width * height:
        raise ValueError("image file is truncated")
    return np.frombuffer(data, ">u2").reshape(height, width, 3)


def _colours(image: ImageFile.ImageFile, rawmode: str) -> np.ndarray:
    """16 bits a sample: Pillow keeps one byte of each, so it is asked for both."""
    file = image.fp
    assert file is not None
    file.seek(0)
    data = file.read()

    def unpacked(rawmode: str) -> np.ndarray:
        with Image.open(io.BytesIO(data), formats=[str(image.format)]) as again:
            again.tile = [
                tile._replace(args=(rawmode, *tile.args[1:]) if isinstance(tile.args, tuple) else rawmode)
                for tile in again.tile
            ]
            return np.asarray(again)

    if rawmode.startswith("LA;"):
        return np.ascontiguousarray(unpacked("RGBA")).view(">u2")[..., 0]
    upper, lower = unpacked(rawmode), unpacked(rawmode[:-1] + OTHER_BYTE[rawmode[-1]])
    both = upper.astype(np.uint16) << 8 | lower
    return both if rawmode.startswith("CMYK") else both[..., :3]


@dataclass
class Levels:
    """The largest value of every image with more than 8 bits: of whole numbers, and of fractions."""

    whole: list[float] = field(default_factory=list)
    fractional: list[float] = field(default_factory=list)

    def add(self, found: Deep) -> None:
        (self.fractional if found.fractional else self.whole).append(float(found.values.max()))

    def __len__(self) -> int:
        return len(self.whole) + len(self.fractional)

    @property
    def top(self) -> float:
        return max(self.whole + self.fractional, default=0.0)


def full_scale(top: float, fractional: bool) -> float | None:
    """The white point of a data set whose largest value this is; None where it may be more than one."""
    if fractional and top <= 1:
        return 1.0 if top > 0.5 else None
    white = next((full for full in FULL if top <= full), None)
    if white is None:
        return None
    # With the upper half of 8 bits in use it is not less than 8, and of 16 bits there is no more; between
    # them only what is nearly full.
    least = 0.5 if white in (FULL[0], FULL[-1]) else 15 / 16
    return white if top > least * white else None


def decided(levels: Levels, where: str) -> float:
    """The white point by the values alone, or an error that names the largest."""
    if not levels.top:
        return FULL[-1]
    kinds = [
        (max(tops), name)
        for tops, name in ((levels.whole, WHOLE), (levels.fractional, FRACTIONS))
        if any(tops)
    ]
    if len(kinds) > 1:
        shown = " and others ".join(f"{name} up to {top:g}" for top, name in kinds)
        raise InputError(f"{where}: some images with more than 8 bits have {shown}. {_way_out(kinds[0][0])}")
    ((top, name),) = kinds
    what = f"{where}: the largest value of its images with more than 8 bits is {top:g}"
    white = full_scale(top, name == FRACTIONS)
    if white is None:
        above = [full for full in ((1.0, *FULL[::4]) if name == FRACTIONS else FULL) if full >= top] or [top]
        *most, last = [f"{full:g}" for full in above]
        shown = f"{', '.join(most)} or {last}" if most else f"{last} or more"
        raise InputError(f"{what}, so white may be {shown}. {_way_out(above[0])}")
    dark = sum(0 < top < DARK * white for top in levels.whole + levels.fractional)
    if dark > FEW * len(levels):
        raise InputError(
            f"{what}, but {dark:,} of {len(levels):,} stay below a sixteenth of it. {_way_out(4095)}"
        )
    return white


def _way_out(white: float) -> str:
    return (
        f"Give the value of white with --set data.white={white:g} (outside of training: --white {white:g})."
    )


def checked_against(levels: Levels, white: float, where: str) -> None:
    """Refuses a white point that was given, by the user or by the run, where it makes the images white."""
    bright = sum(top > BRIGHT * white for top in levels.whole + levels.fractional)
    if bright > MOST * len(levels):
        raise InputError(
            f"{where}: {bright:,} of {len(levels):,} images with more than 8 bits go far beyond"
            f" white={white:g}, up to {levels.top:g}: give another data.white, or images of the same depth"
        )


def note(levels: Levels, white: float, given: bool) -> str:
    """What is said of it."""
    clipped = sum(top > white for top in levels.whole + levels.fractional)
    more = f"; {clipped:,} of them have larger values, which are white" if clipped else ""
    more += "; they are nearly black" if levels.top < DARK * white else ""
    source = "as given" if given else "by the largest value"
    return (
        f"{len(levels):,} images with more than 8 bits, up to {levels.top:g}: white is {white:g}, {source} "
        f"(data.white){more}"
    )
