"""Gather and augment: data set indices in, a batch of pixels in [0, 1] out, in one op without intermediate
batches.

An image goes through crop, flip, colour jitter (brightness, contrast, saturation) and rotation, in that
order; each is torchvision's function on float tensors. The random parameters of an image depend only on the
random state and on its position in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cfol_fast.ops.native import call, fake, library
from cfol_fast.ops.resized_crop import finer_for, resample, window_numbers, windows

_gather_augment = library.gather_augment.default
_augment_parameters = library.augment_parameters.default
_DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Augment:
    """What happens to a training image at random.

    pad: black pixels on each side before the random crop. crop: a window of the output's size at a random
    place (else the centre). flip: mirrored with probability 1/2. brightness, contrast, saturation: factors
    uniform in [max(0, 1 - b), 1 + b].
    degrees: rotation uniform in [-d, d], nearest pixel, black corners. scale: above 0, the crop is a window
    of at least this share of the image's area, with sides of at most `ratio` to 1, resampled to the output's
    size (random-resized).
    """

    pad: int = 0
    crop: bool = True
    flip: bool = False
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    degrees: float = 0.0
    scale: float = 0.0
    ratio: float = 4 / 3

    def __post_init__(self) -> None:
        if self.scale and (self.crop or self.pad):
            raise ValueError("scale needs crop=False and pad=0: one window is drawn, got two ways to do it")
        if not (0 <= self.scale <= 1 and 1 <= self.ratio <= 100):
            raise ValueError(
                f"scale must be in [0, 1] and ratio in [1, 100], got scale={self.scale} and"
                f" ratio={self.ratio}"
            )
        if self.pad and not self.crop:
            raise ValueError(
                f"pad needs crop=True, since only a random crop uses the padding; got pad={self.pad}"
            )

    def __str__(self) -> str:
        """What is done and, of a flip, what is not: "crop with padding 2, no flip"."""
        named = ("brightness", "contrast", "saturation")
        jitter = [f"{name} by {getattr(self, name):.0%}" for name in named if getattr(self, name)]
        crop = f"crop with padding {self.pad}" if self.pad else "crop"
        if self.scale:
            crop = f"random-resized crop of {self.scale:.0%} to 100% of the area"
        parts = [
            *([crop] if self.crop or self.scale else []),
            "flip" if self.flip else "no flip",
            *jitter,
            *([f"rotation by up to {self.degrees:g} degrees"] if self.degrees else []),
        ]
        return ", ".join(parts)


_NOTHING = Augment()


def gather_augment(
    images: Tensor,
    idx: Tensor,
    rng: Tensor | None,
    *,
    size: tuple[int, int] | None = None,
    augment: Augment | None = None,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
    table: Tensor | None = None,
    channels: int | None = None,
    first: int = 0,
    fault: Tensor | None = None,
) -> Tensor:
    """The images at `idx`: (B, C, h, w) in [0, 1], float32 or bfloat16.

    images: uint8 (N, H, W, C) with 1 or 3 channels; or uint8 (bytes,) with `table` int64 (N, 3) of (byte
    offset, height, width) and `channels`, for images of different sizes. idx: int64 (B,). size: (h, w), by
    default the images' own.
    augment: None is the centre crop, where `rng` does not advance and may be None; otherwise `rng` advances
    by one step. An image smaller than the window is centred on black. first: the position of idx[0] in the
    global batch, of which a rank takes a slice.
    """
    if augment is not None and rng is None:
        raise ValueError("augment needs rng, the random state that its parameters are drawn from, got None")
    if augment is not None and rng is not None and augment.scale:
        images = _resized(
            images, idx, rng, augment, table, _frame(images, table, channels, size), first, fault
        )
        idx, table = torch.arange(len(idx), device=idx.device), None
    ranges = _ranges(augment or _NOTHING)
    state = None if augment is None else rng
    frame = _frame(images, table, channels, size)
    layout = (_is_bfloat16(dtype), channels_last)
    return call(_gather_augment, images, table, idx, state, None, *frame, *ranges, first, *layout, fault)


def augment_with(
    images: Tensor,
    idx: Tensor,
    parameters: Tensor,
    *,
    size: tuple[int, int] | None = None,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
    table: Tensor | None = None,
    channels: int | None = None,
    fault: Tensor | None = None,
) -> Tensor:
    """`gather_augment` with given parameters.

    parameters: float32 (B, 8), a row (top, left, flip, brightness, contrast, saturation, angle, unused) for
    each image: the window's corner in the image (outside of it is black), 0 or 1, three factors (1 changes
    nothing), degrees counter-clockwise.
    """
    frame = _frame(images, table, channels, size)
    layout = (_is_bfloat16(dtype), channels_last)
    return call(
        _gather_augment, images, table, idx, None, parameters, *frame, *_ranges(_NOTHING), 0, *layout, fault
    )


def augment_parameters(
    images: Tensor,
    idx: Tensor,
    rng: Tensor,
    *,
    size: tuple[int, int] | None = None,
    augment: Augment,
    table: Tensor | None = None,
    channels: int | None = None,
    first: int = 0,
    fault: Tensor | None = None,
) -> Tensor:
    """The parameters `gather_augment` would draw from this random state, as `augment_with` takes them; `rng`
    does not advance.

    Those of a random-resized crop are not among them.
    """
    frame = _frame(images, table, channels, size)
    return call(_augment_parameters, images, table, idx, rng, *frame, *_ranges(augment), first, fault)


def _resized(
    images: Tensor,
    idx: Tensor,
    rng: Tensor,
    augment: Augment,
    table: Tensor | None,
    frame: tuple[int, int, int],
    first: int,
    fault: Tensor | None,
) -> Tensor:
    """The random-resized crops of the images at `idx`: uint8 (B, h, w, C)."""
    channels, size = frame[0], frame[1:]
    # For its checks of the images, the indices and the table; the parameters are drawn again when the crops
    # are augmented.
    augment_parameters(
        images,
        idx,
        rng,
        size=size,
        augment=_NOTHING,
        table=table,
        channels=channels,
        first=first,
        fault=fault,
    )
    numbers = window_numbers(rng, first, len(idx))
    count = images.shape[0] if table is None else table.shape[0]
    idx = idx.clamp(0, count - 1)
    if table is None:
        height, width = images.shape[1], images.shape[2]
        starts = idx * (height * width)
        heights, widths = torch.full_like(idx, height), torch.full_like(idx, width)
    else:
        starts, heights, widths = table.index_select(0, idx).unbind(1)
        starts = starts // channels
    pixels = images.view(-1)
    pixels = pixels[: len(pixels) // channels * channels].view(-1, channels)
    window = windows(numbers, heights, widths, augment.scale, augment.ratio)
    return resample(pixels, starts, widths, window, size, finer_for(images, table, size))


def _ranges(augment: Augment) -> tuple[int, bool, bool, float, float, float, float]:
    jitter = (augment.brightness, augment.contrast, augment.saturation)
    return (augment.pad, augment.crop, augment.flip, *jitter, augment.degrees)


def _frame(
    images: Tensor, table: Tensor | None, channels: int | None, size: tuple[int, int] | None
) -> tuple[int, int, int]:
    """Channels, height and width of the output."""
    own = images.dim() == 4 and table is None
    if channels is None:
        if not own:
            raise ValueError("channels must be given where images is not (N, H, W, C): 1 or 3, got None")
        channels = images.shape[3]
    if size is None:
        if not own:
            raise ValueError("size=(height, width) must be given where images is not (N, H, W, C), got None")
        size = (images.shape[1], images.shape[2])
    return (channels, *size)


def _is_bfloat16(dtype: torch.dtype) -> bool:
    if dtype not in _DTYPES:
        raise TypeError(f"dtype must be float32 or bfloat16, got {dtype}")
    return dtype == torch.bfloat16


@fake("gather_augment")
def _(images, table, idx, rng, parameters, channels, height, width, *rest) -> Tensor:
    bfloat16, channels_last = rest[-3:-1]
    return torch.empty(
        (idx.shape[0], channels, height, width),
        dtype=torch.bfloat16 if bfloat16 else torch.float32,
        device=images.device,
        memory_format=torch.channels_last if channels_last else torch.contiguous_format,
    )


@fake("augment_parameters")
def _(images, table, idx, *rest) -> Tensor:
    return images.new_empty((idx.shape[0], 8), dtype=torch.float32)
