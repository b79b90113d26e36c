"""Results over seeds: means with their spread, and differences paired by seed.

The report, the recipes and the comparison of methods all count with these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from cfol_fast.runs.accuracy import Accuracy
from cfol_fast.runs.comparisons import Difference, paired
from cfol_fast.runs.intervals import Interval, t_interval

Seed = int | None
S = TypeVar("S", int, Seed)


@dataclass(frozen=True)
class Summary:
    """One number over seeds. limits: of a single run, its 95 % interval for the test images."""

    values: tuple[float, ...]
    limits: Interval | None = None

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    @property
    def deviation(self) -> float | None:
        """The sample deviation, which one value does not have."""
        if len(self.values) == 1:
            return None
        mean = self.mean
        return math.sqrt(math.fsum((one - mean) ** 2 for one in self.values) / (len(self.values) - 1))

    @property
    def interval(self) -> Interval | None:
        """The 95 % t-interval of the mean, which one seed and equal ones do not have."""
        return t_interval(self.values)


@dataclass(frozen=True)
class Result:
    """What one run reached. row: the method or column that it is of; split: "clean" or "robust"."""

    row: str
    seed: Seed
    split: str
    accuracy: Accuracy
    checkpoint: str = ""


class Frame:
    """Results, in the order they were given."""

    def __init__(self, results: Iterable[Result]) -> None:
        self.results = tuple(results)

    def where(self, **what: object) -> Frame:
        """Those whose fields have these values."""
        return Frame(
            one for one in self.results if all(getattr(one, name) == value for name, value in what.items())
        )

    @property
    def accuracies(self) -> list[Accuracy]:
        return [one.accuracy for one in self.results]

    def summary(self, metric: str) -> Summary | None:
        """One of METRICS by its key; None without results."""
        return self._summary(lambda one: one.metric(metric), lambda one: one.limits(metric))

    def of_class(self, name: str) -> Summary | None:
        """A class's accuracy, of the results that have images of it."""
        known = Frame(one for one in self.results if name in one.accuracy.per_class)
        return known._summary(lambda one: one.per_class[name], lambda one: one.interval.get(name))

    def precision_of(self, name: str) -> Summary | None:
        """Of the images that are taken for a class, the share that are of it."""
        known = Frame(one for one in self.results if name in one.accuracy.precision)
        return known._summary(lambda one: one.precision[name], lambda _: None)

    def limits(self, metric: str) -> list[Interval | None]:
        """The 95 % interval of each result, for its test images."""
        return [one.limits(metric) for one in self.accuracies]

    def by_seed(self, metric: str) -> dict[Seed, float]:
        return {one.seed: one.accuracy.metric(metric) for one in self.results}

    def above(self, other: Frame, metric: str) -> Difference | None:
        """How much better these results are, paired by the seeds that both have."""
        return paired_by_seed(self.by_seed(metric), other.by_seed(metric))

    def _summary(
        self, value: Callable[[Accuracy], float], limits: Callable[[Accuracy], Interval | None]
    ) -> Summary | None:
        found = self.accuracies
        if not found:
            return None
        return Summary(tuple(map(value, found)), limits(found[0]) if len(found) == 1 else None)


def shared_seeds(first: Iterable[S], second: Iterable[S]) -> list[S]:
    """Those that both were trained with, by which they are compared, in whichever order they stand."""
    return sorted(set(first) & set(second), key=lambda seed: (seed is None, seed or 0))


def paired_by_seed(first: Mapping[S, float], second: Mapping[S, float]) -> Difference | None:
    """How much better the first is, over the seeds that both have; None where they share none."""
    shared = shared_seeds(first, second)
    return paired([first[seed] for seed in shared], [second[seed] for seed in shared]) if shared else None
