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


PSEUDO, MEMORY, ONE = 8, 1024, 2**30


def baselines(seen) -> list[int]:
    """In units of 2^-30: the mean loss of each row and of 8 more draws with the mean of all, at first 1/2."""
    rows = [(int(draws), int(losses)) for draws, losses in np.asarray(seen)]
    draws, losses = (sum(row[i] for row in rows) for i in (0, 1))
    mean = (losses + PSEUDO * ONE // 2) // (draws + PSEUDO)
    if len(rows) == 1:
        return [mean]
    return [(losses + PSEUDO * mean) // (draws + PSEUDO) for draws, losses in rows]


def remembered(seen, drawn) -> np.ndarray:
    """The rows after a batch of (draws, losses) rows; halved until they have fewer than 1,024 draws."""
    result = np.asarray(seen) + np.asarray(drawn)
    for row in result:
        while row[0] >= MEMORY:
            row[:] = [row[0] - row[0] // 2, row[1] // 2]
    return result


def exp3_learn(w, p, tally, seen, eta: float) -> tuple[np.ndarray, np.ndarray]:
    """(w, seen) after w[y] += eta * (n b[y] + sum over the draws of y of (loss - b[y]) / p[y])."""
    w, p, tally, seen = (np.asarray(each).copy() for each in (w, p, tally, seen))
    b, n, one = baselines(seen), int(tally[:, 0].sum()), len(seen) == 1
    for c in range(len(w)):
        draws, losses = (int(v) for v in tally[c])
        own = b[0] if one else b[c]
        w[c] += 0.0 if one else eta * (n * (own / 2**30))
        if draws:
            w[c] += eta * ((losses - draws * own) / 2**30) / p[c]
    w = w - w.max() if w.max() > 64 else w
    return w, remembered(seen, tally.sum(axis=0, keepdims=True) if one else tally)


def class_tally(tally, y, loss) -> np.ndarray:
    tally = np.asarray(tally).copy()
    for label, units in zip(np.asarray(y), loss_units(loss), strict=True):
        tally[label] += [1, units]
    return tally
