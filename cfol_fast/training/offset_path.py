"""Class offsets without a network: the rounds of a fit, and which of them is taken.

Each round moves the offset of a class by how much more than the mean it errs. The worst class of the hold-out
is soon as good as its noise lets it be, while the average falls on: so of the rounds whose worst class is
within one standard error of the best, the one with the best average is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# A rate falling as 1 / (1 + t / 4) was compared on the embedded images (12 rounds, same rule, one run each
# of ERM and CFOL): test worst class -1.0 and -0.7 points, average +0.7 and +2.7. That is not better for all.
ROUNDS, RATE = 20, 1.0


@dataclass(frozen=True)
class Round:
    """offsets: (k,) float64. worst, average: of the classes, on the attacked hold-out with these offsets."""

    offsets: Tensor
    worst: float
    average: float


def rounds_of(
    errors_with: Callable[[Tensor], Tensor],
    start: Tensor,
    rounds: int = ROUNDS,
    rate: Callable[[int], float] = lambda _: RATE,
) -> Iterator[Round]:
    """The round without a change, and `rounds` after it.

    errors_with: offsets (k,) -> errors (k,) under attack, NaN for a class without images, which keeps its
    offset. rate: of a round, from 0.
    """
    offsets = start.to(torch.float64)
    for number in range(rounds + 1):
        errors = errors_with(offsets).to(torch.float64)
        present = errors[~errors.isnan()]
        yield Round(offsets, 1 - float(present.max()), 1 - float(present.mean()))
        offsets = offsets + rate(number) * (errors - present.mean()).nan_to_num(0.0)


def standard_error(worst: float, images: int) -> float:
    """Of the accuracy of a class with so many images."""
    return math.sqrt(max(0.0, worst * (1 - worst)) / images)


def taken(path: Sequence[Round], images: int, allowed: Sequence[int] | None = None) -> int:
    """The round with the best average among those whose worst class is within one standard error of the best;
    of equal ones the first.

    images: the smallest number of hold-out images of a class. allowed: the rounds to choose from (all).
    """
    among = range(len(path)) if allowed is None else allowed
    best = max(path[number].worst for number in among)
    least = best - standard_error(best, images)
    # A round exactly at the limit is within it, whatever the last digit says.
    near = [number for number in among if path[number].worst >= least - 1e-12]
    return max(near, key=lambda number: (path[number].average, -number))


def keeping_average(path: Sequence[Round], loss: float) -> list[int]:
    """The rounds whose average is at most `loss` below that without offsets: the first is always one."""
    return [number for number, one in enumerate(path) if one.average >= path[0].average - loss - 1e-12]
