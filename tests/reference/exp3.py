"""Exp3 over the classes and the tally of errors, in numpy and Python's integers."""

import numpy as np

from tests.reference.philox import random4


def join64(words: np.ndarray) -> tuple[list[int], list[int]]:
    """The two 64-bit numbers of each slot, as Python's integers, which do not overflow."""
    high, low = words[:, [0, 2]].astype(object), words[:, [1, 3]].astype(object)
    joined = (high << 32) | low
    return list(joined[:, 0]), list(joined[:, 1])


def exp3_distribution(w, base, gamma: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    w, base = np.asarray(w, np.float64), np.asarray(base, np.float64)
    units = np.floor(np.exp(w - w.max()) * 2.0**40).astype(np.int64)
    q = units / float(sum(int(u) for u in units))
    p = gamma * base + (1 - gamma) * q
    return p, q, np.cumsum(np.floor(p * 2.0**52).astype(np.int64))


def exp3_draw(cdf, offsets, members, seed: int, step: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(idx, y) of the classes that the integers of `cdf` decide."""
    first, second = join64(random4(seed, step, "class_draw", np.arange(n)))
    idx, y = np.empty(n, np.int64), np.empty(n, np.int64)
    for i in range(n):
        t = first[i] * int(cdf[-1]) >> 64
        y[i] = next(c for c in range(len(cdf)) if cdf[c] > t)
        begin, end = int(offsets[y[i]]), int(offsets[y[i] + 1])
        idx[i] = members[begin + (second[i] * (end - begin) >> 64)]
    return idx, y


def loss_units(loss) -> np.ndarray:
    return np.rint(np.asarray(loss, np.float64) * 2.0**30).astype(np.int64)


def exp3_update(w, p, y, loss, eta: float) -> np.ndarray:
    w, p, y, units = np.asarray(w).copy(), np.asarray(p), np.asarray(y), loss_units(loss)
    for c in range(len(w)):
        total = sum(int(u) for u in units[y == c])
        if total:
            w[c] += eta * (total / 2**30) / p[c]
    return w - w.max() if w.max() > 64 else w


def class_tally(tally, y, loss) -> np.ndarray:
    tally = np.asarray(tally).copy()
    for label, units in zip(np.asarray(y), loss_units(loss), strict=True):
        tally[label] += [1, units]
    return tally
