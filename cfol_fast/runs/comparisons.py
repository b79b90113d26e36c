"""Is one method better than another?

Paired differences over seeds, with verdicts that one seed alone never earns.

Comparisons that are declared beforehand are judged together (Holm); an ordering that was not is descriptive:
it has its own interval, and whoever looks at many of them has to expect one in twenty to be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cfol_fast.errors import InputError
from cfol_fast.runs.intervals import ERROR, Interval, binomial_tail, standard_error, t_interval, t_probability

SHOWN, NOT_SHOWN, CONTRADICTED = "shown", "not shown", "contradicted"
# What McNemar's test may be asked about, beside a class that was named before the results were seen.
AVERAGE = "average"


@dataclass(frozen=True)
class Difference:
    """How much better the first of two is, over seeds that both were trained with.

    interval: of the mean difference (t), None for one seed and for equal differences, which do not tell their
    spread.
    probability: two-sided, of a difference at least as large if there is none; 1 where there is no interval.
    """

    values: tuple[float, ...]
    mean: float
    interval: Interval | None
    probability: float

    @property
    def verdict(self) -> str:
        """Of this one comparison, when it is the only one."""
        return _verdict(self, self.probability)

    def to_json(self) -> dict[str, Any]:
        return {
            "values": [round(value, 6) for value in self.values],
            "mean": round(self.mean, 6),
            "interval": None if self.interval is None else [round(limit, 6) for limit in self.interval],
            "probability": float(f"{self.probability:.3g}"),
        }


def paired(first: Sequence[float], second: Sequence[float], error: float = ERROR) -> Difference:
    """first, second: one value for each seed, in the same order of seeds."""
    if len(first) != len(second) or not first:
        raise InputError(
            f"a paired comparison needs the same seeds on both sides, got {len(first)} and {len(second)}"
        )
    values = tuple(a - b for a, b in zip(first, second, strict=True))
    mean, spread = math.fsum(values) / len(values), standard_error(values)
    probability = t_probability(mean / spread, len(values) - 1) if spread else 1.0
    return Difference(values, mean, t_interval(values, error), probability)


def holm(probabilities: Sequence[float]) -> list[float]:
    """Adjusted so that each may be compared with the error that all together may have (Holm, 1979)."""
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__)
    adjusted, highest = [1.0] * len(probabilities), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * probabilities[i]))
        adjusted[i] = highest
    return adjusted


def judge(declared: Sequence[Difference]) -> list[tuple[str, float]]:
    """The verdict and the adjusted probability of each comparison that was declared beforehand."""
    adjusted = holm([difference.probability for difference in declared])
    return [(_verdict(d, p), p) for d, p in zip(declared, adjusted, strict=True)]


def _verdict(difference: Difference, probability: float) -> str:
    if difference.interval is None or probability > ERROR:
        return NOT_SHOWN
    return SHOWN if difference.mean > 0 else CONTRADICTED


def mcnemar(
    first_right: Sequence[bool], second_right: Sequence[bool], of: str, classes: Sequence[str]
) -> float:
    """The exact two-sided probability that two models are right on as unequal sets of images if both are
    equally good.

    of: "average", or a class fixed before the results were seen, whose images alone are then given. The worst
    class is selected by the results themselves, and the test does not hold for it.
    """
    if of != AVERAGE and of not in classes:
        raise InputError(f"McNemar's test is for the average or a class named beforehand, got {of!r}")
    if len(first_right) != len(second_right):
        raise InputError(f"the models were tested on {len(first_right)} and {len(second_right)} images")
    gained = sum(a and not b for a, b in zip(first_right, second_right, strict=True))
    lost = sum(b and not a for a, b in zip(first_right, second_right, strict=True))
    return min(1.0, 2 * binomial_tail(max(gained, lost), gained + lost, 0.5)) if gained != lost else 1.0
