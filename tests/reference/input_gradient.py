"""The slow twin of `input_gradient`: one multiplication and one addition at a time, in the order the kernels
promise.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

LANES = 16


def input_gradient(grad: Tensor, weight: Tensor, relu: Tensor | None, pad_h: int, pad_w: int) -> np.ndarray:
    """(B, C, H, W) float32. grad, relu: (B, O, h, w); weight: (O, C, a, b)."""
    g, taps = grad.numpy(), weight.numpy()
    if relu is not None:
        g = np.where(relu.numpy() <= 0, np.float32(0), g)
    batch, outputs, h, w = g.shape
    _, channels, a, b = taps.shape
    result = np.zeros((batch, channels, h + a - 1 - 2 * pad_h, w + b - 1 - 2 * pad_w), np.float32)
    for n, c, y, x in np.ndindex(*result.shape):
        lanes = np.zeros(LANES, np.float32)
        for i, j in np.ndindex(a, b):
            row, column = y + i - (a - 1 - pad_h), x + j - (b - 1 - pad_w)
            if 0 <= row < h and 0 <= column < w:
                for o in range(outputs):
                    lanes[o % LANES] += taps[o, c, a - 1 - i, b - 1 - j] * g[n, o, row, column]
        while len(lanes) > 1:
            lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
        result[n, c, y, x] = lanes[0]
    return result
