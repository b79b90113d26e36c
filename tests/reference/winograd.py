"""The slow twin of `winograd`: the transforms as sums, and one fused multiply-add at a time, in the order the
kernels promise.

A fused multiply-add of float32 is a product and a sum of float64 that are rounded once: the product is exact
there, and so is the sum but for a last bit that lies 29 places below float32's. (That it decides a float32's
rounding is possible in one case of 2^29.)
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

LANES = 16
HALF = np.float32(0.5)


def _inputs(tile: np.ndarray) -> np.ndarray:
    a, b, c, d = tile
    return np.stack([a - c, b + c, c - b, b - d])


def _products(tile: np.ndarray) -> np.ndarray:
    a, b, c, d = tile
    return np.stack([(a + b) + c, (b - c) - d])


def _taps(kernel: np.ndarray) -> np.ndarray:
    a, b, c = kernel
    return np.stack([a, HALF * ((a + c) + b), HALF * ((a + c) - b), c])


def _both(transform, values: np.ndarray) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Down the columns, then along the rows; values: (n, n, ...)."""
    return np.swapaxes(transform(np.swapaxes(transform(values), 0, 1)), 0, 1)


def winograd_taps(weight: Tensor, gradient: bool) -> np.ndarray:
    """(16, panels, channels, 16). weight: (O, C, 3, 3)."""
    kernels = weight.numpy().transpose(2, 3, 1, 0)
    if gradient:
        kernels = kernels[::-1, ::-1].swapaxes(2, 3)
    four = _both(_taps, np.ascontiguousarray(kernels)).reshape(16, kernels.shape[2], -1, LANES)
    return np.ascontiguousarray(four.transpose(0, 2, 1, 3))


def winograd(x: Tensor, taps: Tensor, bias: Tensor | None, relu: Tensor | None, rectify: bool) -> np.ndarray:
    """(B, O, H, W) float32. x, relu: (B, C, H, W); taps: as winograd_taps makes them."""
    given = x.numpy() if relu is None else np.where(relu.numpy() <= 0, np.float32(0), x.numpy())
    batch, channels, height, width = given.shape
    down, across = (height + 1) // 2, (width + 1) // 2
    padded = np.zeros((batch, channels, 2 * down + 2, 2 * across + 2), np.float32)
    padded[:, :, 1 : height + 1, 1 : width + 1] = given
    taps_of = taps.numpy().transpose(0, 2, 1, 3).reshape(4, 4, channels, -1)
    outputs = taps_of.shape[-1]
    result = np.zeros((batch, outputs, 2 * down, 2 * across), np.float32)
    for n, i, j in np.ndindex(batch, down, across):
        tile = padded[n, :, 2 * i : 2 * i + 4, 2 * j : 2 * j + 4].transpose(1, 2, 0)
        tile = _both(_inputs, tile)
        sums = np.zeros((4, 4, outputs), np.float32)
        for c in range(channels):
            product = tile[:, :, c, None].astype(np.float64) * taps_of[:, :, c].astype(np.float64)
            sums = (product + sums).astype(np.float32)
        four = _both(_products, sums)
        result[n, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2] = four.transpose(2, 0, 1)
    result = result[:, :, :height, :width]
    if bias is not None:
        result = result + bias.numpy()[:, None, None]
    return np.where(result <= 0, np.float32(0), result) if rectify else result
