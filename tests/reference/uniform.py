"""Uniform numbers of a stream, one Philox slot after another."""

import numpy as np

from tests.reference.philox import philox4x32, uniform01


def uniform(seed: int, step: int, stream: int, first: int, n: int) -> np.ndarray:
    slots = range(first // 4, (first + n + 3) // 4)
    words = philox4x32(seed, (step << 8) | stream, np.array(slots, np.uint64)).reshape(-1)
    return uniform01(words)[first % 4 :][:n]
