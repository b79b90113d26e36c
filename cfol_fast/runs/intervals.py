"""Intervals and probabilities that every figure is made with: of one share, of the selected minimum over
classes, over seeds.

The worst class is a selected minimum: an interval for the class that happens to be worst, or a bootstrap,
misses it far too often. Here every class gets a Clopper-Pearson interval at a level that holds for all
classes together, and minima and means of the limits hold with them. All of it needs one function, the
incomplete beta function.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

# Intervals are of 95 % unless told.
ERROR = 0.05
Interval = tuple[float, float]


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function: P(X <= x) of a beta distribution with a, b > 0."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _lower_part(b, a, 1 - x)
    return _lower_part(a, b, x)


def _lower_part(a: float, b: float, x: float) -> float:
    """The continued fraction (Lentz's method), which converges quickly for x below the mean."""
    tiny, value, c, d = 1e-300, 1.0, 1.0, 0.0
    # It takes about sqrt(max(a, b)) terms; a limit that is never met keeps a wrong argument from hanging.
    for i in range(100_000):
        m = i // 2
        if i == 0:
            term = 1.0
        elif i % 2 == 0:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / ((1 + term * d) or tiny)
        c = (1 + term / c) or tiny
        value *= c * d
        if abs(1 - c * d) < 1e-15:
            break
    return math.exp(_log_density(a, b, x) + math.log(x) + math.log1p(-x)) / a * (value - 1)


def _log_density(a: float, b: float, x: float) -> float:
    gammas = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return gammas + (a - 1) * math.log(x) + (b - 1) * math.log1p(-x)


def beta_quantile(share: float, a: float, b: float) -> float:
    """The x with P(X <= x) = share: Newton's steps, and a halving wherever one would leave the bracket."""
    low, high, x = 0.0, 1.0, a / (a + b)
    for _ in range(200):
        excess = incomplete_beta(a, b, x) - share
        low, high = (low, x) if excess > 0 else (x, high)
        slope = math.exp(_log_density(a, b, x)) if 0 < x < 1 else 0.0
        step = x - excess / slope if slope > 0 else low
        following = step if low < step < high else (low + high) / 2
        if abs(following - x) <= 1e-14 * max(following, 1e-3):
            return following
        x = following
    return x


@lru_cache(maxsize=100_000)
def clopper_pearson(hits: int, count: int, error: float = ERROR) -> Interval:
    """The exact interval of a share: it misses the true one with probability `error` at most, also at 0, at 1
    and for few images.
    """
    if count <= 0:
        return 0.0, 1.0
    low = 0.0 if hits == 0 else beta_quantile(error / 2, hits, count - hits + 1)
    high = 1.0 if hits == count else beta_quantile(1 - error / 2, hits + 1, count - hits)
    return low, high


def simultaneous(
    hits: Mapping[str, int], count: Mapping[str, int], error: float = ERROR
) -> dict[str, Interval]:
    """An interval for each class in `hits`, all of them right together with probability 1 - `error`
    (Bonferroni).
    """
    return {name: clopper_pearson(right, count[name], error / len(hits)) for name, right in hits.items()}


def of_smallest(intervals: Sequence[Interval], number: int = 1) -> Interval:
    """Of the mean of the `number` smallest of several quantities, from simultaneous intervals of all of them.

    The mean of the smallest grows with each quantity, so it lies between that of the lower and that of the
    upper limits.
    """
    low, high = (math.fsum(sorted(limits)[:number]) / number for limits in zip(*intervals, strict=True))
    return low, high


def t_quantile(degrees: int, error: float = ERROR) -> float:
    """The t that |T| exceeds with probability `error`."""
    x = beta_quantile(error, degrees / 2, 0.5)
    return math.sqrt(degrees * (1 - x) / x)


def t_probability(t: float, degrees: int) -> float:
    """P(|T| >= |t|)."""
    return incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))


def t_interval(values: Sequence[float], error: float = ERROR) -> Interval | None:
    """Of the mean of what the values are drawn from.

    None for a single value, and for equal ones, which do not tell their spread.
    """
    spread = standard_error(values)
    if not spread:
        return None
    mean, half = math.fsum(values) / len(values), t_quantile(len(values) - 1, error) * spread
    return mean - half, mean + half


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean; None for a single value. Values that are equal but for rounding have none: 0."""
    n = len(values)
    if n < 2:
        return None
    mean = math.fsum(values) / n
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
    return 0.0 if error < 1e-12 else error


def binomial_tail(hits: int, n: int, p: float) -> float:
    """P(X >= hits) for X of n trials with probability p."""
    if hits <= 0:
        return 1.0
    return 0.0 if hits > n else incomplete_beta(hits, n - hits + 1, p)
