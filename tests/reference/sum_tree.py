"""Exp3 over the examples without a tree: one flat list of weights, searched from its beginning."""

import numpy as np

from tests.reference.exp3 import join64
from tests.reference.philox import random4

UNIT = 2.0**-36


def leaf_bits(n: int) -> int:
    return min(40, 54 - (n - 1).bit_length())


def leaves(w) -> np.ndarray:
    """The integer weights of the examples, from w in units of 2^-36."""
    return np.floor(np.exp(np.asarray(w) * UNIT) * 2.0 ** leaf_bits(len(w))).astype(np.int64)


def draw(weights, gamma: float, seed: int, step: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(idx, p) from the examples' integer weights."""
    count, cdf = len(weights), np.cumsum(np.asarray(weights))
    coin, position = join64(random4(seed, step, "example_draw", np.arange(n)))
    idx = np.empty(n, np.int64)
    for i in range(n):
        if coin[i] >> 11 < int(gamma * 2**53):
            idx[i] = position[i] * count >> 64
        else:
            idx[i] = np.searchsorted(cdf, position[i] * int(cdf[-1]) >> 64, side="right")
    return idx, gamma / count + (1 - gamma) * (np.asarray(weights)[idx] / float(cdf[-1]))


def update(w, idx, loss, p, eta: float) -> tuple[np.ndarray, int]:
    """(w, shift): the weights after the batch, and by how much all were shifted."""
    w = np.asarray(w).copy()
    for i, value, chance in zip(np.asarray(idx), np.asarray(loss, np.float64), np.asarray(p), strict=True):
        w[i] += int(min(np.rint(eta * value / chance * 2.0**36), 64 * 2.0**36))
    largest = max((int(w[i]) for i in np.asarray(idx)), default=0)
    shift = largest if largest > 5.5 * 2**36 else 0
    return np.maximum(w - shift, -(2**58)), shift
