"""The figures of an accuracy, in one list: files, tables, charts, cards, `--require`, logs and recipes take
them from it.

A new metric is one entry of METRICS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cfol_fast.errors import InputError
from cfol_fast.plain_text import percent, points, signed
from cfol_fast.runs import intervals
from cfol_fast.runs.intervals import Interval

if TYPE_CHECKING:
    from cfol_fast.runs.accuracy import Accuracy

TAIL = 0.2
# Classes below it count as failing, unless `--floor` says otherwise.
FLOOR = 0.1
# Of the smooth worst class: classes that err within it of the worst one weigh nearly as much as that.
TEMPERATURE = 0.1
# With more classes than this the worst one says little: the report leads with what does not saturate.
MANY_CLASSES = 30
# What a value is: a share from 0 to 1, shown in percent, or a number of classes.
SHARE, COUNT = "share", "count"


def tail_size(num_classes: int, fraction: float = TAIL) -> int:
    """The number of classes in the tail, rounded up as in the paper."""
    if not 0 < fraction <= 1:
        raise InputError(f"the tail's fraction must be in (0, 1], got {fraction}")
    # 0.2 * 15 is a little more than 3 in floating point.
    return math.ceil(fraction * num_classes - 1e-9)


def tail_mean(accuracies: Iterable[float], fraction: float = TAIL) -> float:
    """The mean of the worst `fraction` of the classes."""
    ranked = sorted(accuracies)
    size = tail_size(len(ranked), fraction)
    return sum(ranked[:size]) / size


def smooth_worst(accuracies: Iterable[float], temperature: float = TEMPERATURE) -> float:
    """1 - T log(mean over the classes of exp(error / T)).

    It lies between the worst class (T to 0) and the class average (T to infinity), and rises with every
    class: also where many classes are at 0.
    """
    errors = [1 - accuracy for accuracy in accuracies]
    largest = max(errors)
    mean = math.fsum(math.exp((error - largest) / temperature) for error in errors) / len(errors)
    return 1 - (largest + temperature * math.log(mean))


@dataclass(frozen=True)
class Metric:
    """A figure of an `Accuracy`.

    key: its name in files, in --require and in recipes. title: its heading; {floor} in it is the accuracy's
    floor in percent. of: its value. limits: its 95 % interval for the test images; None for a figure without
    one.
    unit: SHARE or COUNT. least_is_best: a smaller value is better. over_classes: unknown while a class has no
    images. paper: it stands in the paper's tables, and so in a recipe that names no metrics.
    tells: whether a report shows it for this accuracy: not where it repeats another figure.
    """

    key: str
    title: str
    of: Callable[[Accuracy], float]
    limits: Callable[[Accuracy], Interval | None] | None = None
    unit: str = SHARE
    least_is_best: bool = False
    over_classes: bool = True
    paper: bool = False
    tells: Callable[[Accuracy], bool] = lambda _: True

    def heading(self, floor: float = FLOOR) -> str:
        return self.title.format(floor=f"{100 * floor:g}")

    def phrase(self, floor: float = FLOOR) -> str:
        """The heading inside a sentence."""
        return self.heading(floor).lower()

    def text(self, value: float, digits: int = 1) -> str:
        """39.3 for a share, 18 for a number of classes: the unit stands elsewhere."""
        if self.unit == SHARE:
            return percent(value, digits)
        return f"{value:.{digits}f}".removesuffix(".0")

    def with_unit(self, value: float) -> str:
        return f"{self.text(value)} %" if self.unit == SHARE else self.text(value)

    def change(self, difference: float, digits: int = 1) -> str:
        """With its sign, in points or classes."""
        if self.unit == SHARE:
            return points(difference, digits)
        return signed(difference, digits).removesuffix(".0")

    def is_better(self, difference: float) -> bool:
        return difference < 0 if self.least_is_best else difference > 0

    def best(self, values: Iterable[float]) -> float:
        return min(values) if self.least_is_best else max(values)


def _smallest(number: Callable[[int], int]) -> Callable[[Accuracy], Interval | None]:
    """Of the mean of the `number` (of how many classes) smallest accuracies, whichever classes they are."""

    def limits(accuracy: Accuracy) -> Interval | None:
        found = accuracy.class_limits
        return intervals.of_smallest(found, number(len(found))) if found else None

    return limits


def _average_limits(accuracy: Accuracy) -> Interval | None:
    hits = accuracy.hits
    if not hits:
        return None
    return intervals.clopper_pearson(sum(hits.values()), sum(accuracy.count[name] for name in hits))


def _rising(figure: Callable[[list[float]], float]) -> Callable[[Accuracy], Interval | None]:
    """Of a figure that rises with every class: between that of all lower and that of all upper limits."""

    def limits(accuracy: Accuracy) -> Interval | None:
        if not (found := accuracy.class_limits):
            return None
        low, high = (figure(list(ends)) for ends in zip(*found, strict=True))
        return low, high

    return limits


def _below_limits(accuracy: Accuracy) -> Interval | None:
    """From the classes that are surely below the floor to those that may be."""
    if not (found := accuracy.class_limits):
        return None
    return (
        float(sum(high < accuracy.floor for _, high in found)),
        float(sum(low < accuracy.floor for low, _ in found)),
    )


def below(accuracy: Accuracy, limit: float) -> int:
    """How many classes have less than `limit`; at a limit of 0, how many have nothing right."""
    return sum(share < limit or share == limit == 0 for share in accuracy.per_class.values())


def _is_unbalanced(accuracy: Accuracy) -> bool:
    # Of a file's averages the last digits may differ.
    return abs(accuracy.class_average - accuracy.average) > 1e-9


def saturates(accuracy: Accuracy) -> bool:
    """Whether the worst class says little: of many classes, or where it is at 0."""
    return len(accuracy.per_class) > MANY_CLASSES or accuracy.worst == 0


_ALL: Sequence[Metric] = (
    Metric("average", "Average", lambda a: a.average, _average_limits, over_classes=False, paper=True),
    Metric(
        "class_average", "Class average", lambda a: a.class_average, over_classes=False, tells=_is_unbalanced
    ),
    Metric("tail", "20 % tail", lambda a: a.tail, _smallest(tail_size), paper=True),
    Metric("worst", "Worst class", lambda a: a.worst, _smallest(lambda _: 1), paper=True),
    Metric(
        "gap",
        "Best − worst",
        lambda a: max(a.per_class.values()) - a.worst,
        least_is_best=True,
        tells=lambda _: False,
    ),
    Metric(
        "smooth_worst",
        "Smooth worst class",
        lambda a: smooth_worst(a.per_class.values()),
        _rising(smooth_worst),
        tells=saturates,
    ),
    Metric(
        "zero", "Classes at 0 %", lambda a: below(a, 0.0), unit=COUNT, least_is_best=True, tells=saturates
    ),
    Metric(
        "below_floor",
        "Classes below {floor} %",
        lambda a: below(a, a.floor),
        _below_limits,
        COUNT,
        least_is_best=True,
        tells=saturates,
    ),
)
METRICS = {metric.key: metric for metric in _ALL}


# What is selected by its worst class is compared in this order, so that equal worst classes, as of many at 0,
# are no lottery.
SELECTION = ("worst", "tail", "class_average")


def telling(accuracies: Iterable[Accuracy]) -> list[Metric]:
    """What a report shows of these accuracies: each metric that tells something of one of them."""
    known = list(accuracies)
    return [metric for metric in METRICS.values() if any(metric.tells(one) for one in known)]
