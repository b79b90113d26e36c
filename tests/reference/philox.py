"""Philox4x32-10 in numpy, from the paper of Salmon et al. (2011)."""

import numpy as np

# csrc/philox.h: enum class Stream
STREAMS = {"class_draw": 1, "example_draw": 2, "permutation": 3, "attack_start": 4, "augment": 5}
_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox4x32(key: int, counter_low: int, counter_high) -> np.ndarray:
    """key and counter_low: 64-bit integers, counter_high: (n,) integers. Returns (n, 4) uint32."""
    high = np.atleast_1d(np.asarray(counter_high, dtype=np.uint64))
    c = [
        np.full(len(high), counter_low & 0xFFFFFFFF, np.uint64),
        np.full(len(high), counter_low >> 32, np.uint64),
    ]
    c += [high & _LOW, high >> _SHIFT]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (p1 >> _SHIFT) ^ c[1] ^ np.uint64(k0),
            p1 & _LOW,
            (p0 >> _SHIFT) ^ c[3] ^ np.uint64(k1),
            p0 & _LOW,
        ]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, 1).astype(np.uint32)


def random4(seed: int, step: int, stream: str, slots) -> np.ndarray:
    """The (n, 4) random words of the given slots."""
    return philox4x32(seed, (step << 8) | STREAMS[stream], slots)


def uniform01(words: np.ndarray) -> np.ndarray:
    return (words >> 8).astype(np.float32) / np.float32(2**24)
