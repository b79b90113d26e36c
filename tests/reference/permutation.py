"""The swap-or-not shuffle of Hoang, Morris and Rogaway (2012), one element at a time."""

import numpy as np

from tests.reference.exp3 import join64
from tests.reference.philox import random4

_MASK = 2**64 - 1


def permutation(seed: int, step: int, n: int, start: int, count: int) -> list[int]:
    rounds = 6 * (n - 1).bit_length() + 32
    pairing, hashes = join64(random4(seed, step, "permutation", np.arange(rounds)))
    result = []
    for x in range(start, start + count):
        for r in range(rounds):
            partner = ((pairing[r] * n >> 64) - x) % n
            bits = max(x, partner) ^ hashes[r]
            for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
                bits = (bits ^ (bits >> 33)) * factor & _MASK
            x = partner if bits >> 63 else x
        result.append(x)
    return result
