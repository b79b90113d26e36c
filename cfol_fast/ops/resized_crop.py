"""Random-resized crops: a window of random area, shape and place, resampled to the size of the batch.

What ImageNet training does.

Windows are drawn as torchvision's RandomResizedCrop draws them, from random numbers that belong to the
image's slot in the global batch. Everything after the random numbers is integers, or arithmetic that IEEE
rounds in one way only: a batch has the same bits in one piece, in slices, on any number of threads, and on a
CPU and a GPU.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from cfol_fast.ops.uniform import AUGMENT, uniform

# Windows that are tried before the whole image is taken, or as much of it as the ratio allows: torchvision's
# number.
TRIES = 10
# A window has 16 numbers of the stream and uses four of them, 3, 4, 5 and 11: runs of earlier versions drew
# those.
NUMBERS_EACH = 16
# Crops draw with a seed of their own, so that they do not go with colour and rotation, which use the same
# stream.
KEY = 0x5E7C0FFEE
# Logarithms and powers are not the same on every processor: the shapes come from a table.
SHAPES = 1 << 12
# Values that are resampled at a time: bounds the memory, not the result.
AT_ONCE = 1 << 22
# The weights of all samples of a pixel add up to two to this many bits, along each side: 255 times that,
# squared, is a whole number that a float32 holds.
BITS = 8
HALF = 1 << (2 * BITS - 1)


def window_numbers(rng: Tensor, first: int, count: int) -> Tensor:
    """The random numbers of the slots first .. first+count-1, as `windows` takes them; `rng` does not
    advance.
    """
    each = TRIES * NUMBERS_EACH
    keyed = torch.stack([rng[0] ^ KEY, rng[1]])
    numbers = uniform(keyed, AUGMENT, first * each, count * each).view(count, TRIES, NUMBERS_EACH)
    return torch.cat([numbers[..., 3:6], numbers[..., 11:12]], 2).double()


def windows(
    numbers: Tensor, heights: Tensor, widths: Tensor, scale: float, ratio: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(top, left, height, width) of each window, int64 (B,).

    numbers: float64 (B, TRIES, 4) in [0, 1). heights, widths: int64 (B,), of the images. scale: the smallest
    share of an image's area;
    ratio: the largest of width to height and of height to width.
    """
    high, wide = heights.unsqueeze(1), widths.unsqueeze(1)
    side = ((high * wide).double() * (scale + numbers[..., 0] * (1.0 - scale))).sqrt()
    shape = _shapes(ratio, numbers.device)[(numbers[..., 1] * SHAPES).long()]
    w, h = (side * shape).round().long(), (side / shape).round().long()
    fits = (w >= 1) & (h >= 1) & (w <= wide) & (h <= high)
    chosen = fits.long().argmax(1, keepdim=True)
    found = fits.any(1)
    w, h = w.gather(1, chosen).squeeze(1), h.gather(1, chosen).squeeze(1)
    w = torch.where(found, w, torch.minimum(widths, (heights.double() * ratio).round().long()))
    h = torch.where(found, h, torch.minimum(heights, (widths.double() * ratio).round().long()))
    places = numbers[..., 2:].gather(1, chosen.unsqueeze(2).expand(-1, 1, 2)).squeeze(1)
    top, left = heights - h, widths - w
    top = torch.where(found, (places[:, 0] * (top + 1)).long(), top // 2)
    left = torch.where(found, (places[:, 1] * (left + 1)).long(), left // 2)
    return top, left, h, w


@lru_cache
def _shapes(ratio: float, device: torch.device) -> Tensor:
    """The square roots of SHAPES ratios of width to height, their logarithms evenly spaced."""
    steps = ((2 * i + 1) / SHAPES - 1 for i in range(SHAPES))
    return torch.tensor([math.exp(0.5 * step * math.log(ratio)) for step in steps], dtype=torch.float64).to(
        device
    )


def resample(
    pixels: Tensor,
    starts: Tensor,
    widths: Tensor,
    window: tuple[Tensor, Tensor, Tensor, Tensor],
    size: tuple[int, int],
    finer: int,
) -> Tensor:
    """The windows at `size`: uint8 (B, h, w, C), bilinear.

    pixels: uint8 (P, C), those of all images in rows. starts: int64 (B,), the first pixel of each image.
    widths: int64 (B,), of the images. finer: 1, 2 or 4; each pixel is the mean of finer x finer samples, so
    that a window of up to `finer` times the size is made smaller without leaving pixels out. The sums are
    whole numbers, so both ways to them lead to the same bits.
    """
    way = _image_by_image if pixels.device.type == "cpu" else _all_at_once
    return way(pixels, starts, widths, window, size, finer)


def _image_by_image(
    pixels: Tensor,
    starts: Tensor,
    widths: Tensor,
    window: tuple[Tensor, Tensor, Tensor, Tensor],
    size: tuple[int, int],
    finer: int,
) -> Tensor:
    """On a CPU: first over the rows of a window, then over its columns, so that whole rows are added up and
    no single pixels.
    """
    top, left, height, width = window
    channels = pixels.shape[1]
    (rows, row_weights), (columns, column_weights) = (
        _taps(length, side, finer) for length, side in zip((height, width), size, strict=True)
    )
    # Every channel of a column is a row of its own, after the turn.
    columns = (columns.unsqueeze(2) * channels + torch.arange(channels).view(-1, 1)).flatten(1, 2)
    column_weights = column_weights.repeat_interleave(channels, dim=1)
    first = (starts + top * widths + left) * channels + int(pixels.storage_offset())
    out = pixels.new_empty((len(starts), size[0], size[1] * channels))
    corners = zip(*(each.tolist() for each in (first, widths, height, width)), strict=True)
    for i, (at, stride, h, w) in enumerate(corners):
        part = pixels.as_strided((h, w * channels), (stride * channels, 1), at).float()
        narrowed = F.embedding_bag(rows[i], part, mode="sum", per_sample_weights=row_weights[i])
        turned = narrowed.t().contiguous()
        total = F.embedding_bag(columns[i], turned, mode="sum", per_sample_weights=column_weights[i])
        out[i] = total.add_(HALF).mul_(0.5 / HALF).to(torch.uint8).t()
    return out.view(-1, *size, channels)


def _taps(lengths: Tensor, count: int, finer: int) -> tuple[Tensor, Tensor]:
    """For each of `count` pixels along a length: those that it is made of, int64 (B, count, 2 finer), and
    their weights, float32.
    """
    before, after, before_weight, after_weight = _places(lengths, count, finer)
    pixels, weights = torch.stack([before, after], 2), torch.stack([before_weight, after_weight], 2)
    return pixels.view(len(lengths), count, -1), weights.view(len(lengths), count, -1).float()


def _all_at_once(
    pixels: Tensor,
    starts: Tensor,
    widths: Tensor,
    window: tuple[Tensor, Tensor, Tensor, Tensor],
    size: tuple[int, int],
    finer: int,
) -> Tensor:
    """On a GPU: few operations, whatever the batch, and nothing is read back."""
    top, left, height, width = window
    rows, columns = _places(height, size[0], finer), _places(width, size[1], finer)
    count, channels = len(starts), pixels.shape[1]
    out = pixels.new_empty((count, *size, channels))
    some = max(1, AT_ONCE // (size[0] * size[1] * finer * finer * channels))
    for at in range(0, count, some):
        part = slice(at, at + some)
        first = (starts[part] + top[part] * widths[part] + left[part]).view(-1, 1, 1)
        total = torch.zeros((), dtype=torch.int32, device=pixels.device)
        for y, y_weight in ((rows[0], rows[2]), (rows[1], rows[3])):
            for x, x_weight in ((columns[0], columns[2]), (columns[1], columns[3])):
                line = first + (y[part] * widths[part].unsqueeze(1)).unsqueeze(2)
                taken = pixels.index_select(0, (line + x[part].unsqueeze(1)).view(-1))
                weight = y_weight[part].unsqueeze(2) * x_weight[part].unsqueeze(1)
                total = total + taken.view(*weight.shape, channels) * weight.unsqueeze(3)
        total = total.view(-1, size[0], finer, size[1], finer, channels).sum((2, 4), dtype=torch.int32)
        out[part] = ((total + HALF) >> 2 * BITS).to(torch.uint8)
    return out


def _places(lengths: Tensor, count: int, finer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For `finer` samples of each of `count` pixels along a length: the two pixels around each sample, int64
    (B, count * finer), and their weights, int32.
    """
    bits = BITS - (finer.bit_length() - 1)
    one, samples = 1 << bits, count * finer
    lengths = lengths.unsqueeze(1)
    middles = 2 * torch.arange(samples, device=lengths.device) + 1
    places = torch.div(middles * lengths * one, 2 * samples, rounding_mode="floor") - one // 2
    places = torch.minimum(places.clamp_min(0), (lengths - 1) * one)
    before, part = places >> bits, (places & (one - 1)).int()
    return before, torch.minimum(before + 1, lengths - 1), one - part, part


def finer_for(images: Tensor, table: Tensor | None, size: tuple[int, int]) -> int:
    """How much finer than the batch images are sampled.

    Those with a table are stored near the size of the batch.
    """
    if table is not None:
        return 2
    most = max(-(-images.shape[1] // size[0]), -(-images.shape[2] // size[1]))
    return 1 if most <= 1 else 2 if most <= 2 else 4
