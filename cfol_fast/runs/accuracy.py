"""Accuracies of a classifier, class by class, as files hold them: averages, the tail, the worst class,
intervals.

An `Accuracy` comes from a confusion matrix (`from_confusion`) or from JSON (`from_json`) and goes to JSON
(`to_json`); the format is described in docs/evaluation-format.md. Also here: the little statistics that every
figure is made with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cfol_fast.errors import InputError
from cfol_fast.plain_text import named
from cfol_fast.runs import intervals
from cfol_fast.runs.json_files import check_shape
from cfol_fast.runs.metrics import FLOOR, METRICS, tail_mean

# What JSON may hold of an `Accuracy`, beside the shares, which are checked one by one.
SHAPE = {
    "count": {str: int},
    "interval": {str: ([float], None)},
    "limits": {str: ([float], None)},
    "confusion": [[int]],
    "worst_class": str,
}
# Of a class. Anybody may have edited a file, and an interval takes longer the more images it is for.
MOST_IMAGES = 10_000_000
# The 97.5 % quantile of the normal distribution, for two-sided 95 % intervals.
Z95 = 1.959963984540054


def wilson(share: float, count: int, z: float = Z95) -> tuple[float, float]:
    """The score interval of `share` observed on `count` examples (Wilson, 1927).

    It keeps its coverage at 0, at 1 and for few examples; without examples anything is possible.
    """
    if count <= 0:
        return 0.0, 1.0
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    # At the ends the formula gives exactly 0 and 1; floating point misses them by its last digit.
    return 0.0 if share <= 0 else max(0.0, centre - half), 1.0 if share >= 1 else min(1.0, centre + half)


@dataclass(frozen=True)
class Accuracy:
    """Accuracies from 0 to 1: `average` over the examples, `class_average` with equal weight for every class.

    A class without examples is in `classes` and `count` alone: it has no accuracy and cannot be the worst.
    floor: an accuracy below which a class counts as failing. Further figures are in `metrics.METRICS`.
    """

    classes: list[str]
    average: float
    class_average: float
    tail: float
    worst: float
    worst_class: str
    per_class: dict[str, float]
    interval: dict[str, tuple[float, float]]
    count: dict[str, int]
    confusion: list[list[int]] | None = None
    floor: float = FLOOR

    @classmethod
    def from_confusion(
        cls, classes: Sequence[str], confusion: list[list[int]], floor: float = FLOOR
    ) -> Accuracy:
        """confusion: a row per true class, a column per prediction."""
        count = dict(zip(classes, map(sum, confusion), strict=True))
        hits = {name: confusion[i][i] for i, name in enumerate(classes) if count[name]}
        per_class = {name: right / count[name] for name, right in hits.items()}
        worst_class = min(per_class, key=per_class.__getitem__)
        average = sum(hits.values()) / sum(count.values())
        # With equally many examples per class the two averages are one number, to the last digit: early
        # stopping compares them.
        balanced = len({count[name] for name in hits}) == 1
        return cls(
            classes=list(classes),
            average=average,
            class_average=average if balanced else math.fsum(per_class.values()) / len(per_class),
            tail=tail_mean(per_class.values()),
            worst=per_class[worst_class],
            worst_class=worst_class,
            per_class=per_class,
            interval={name: wilson(share, count[name]) for name, share in per_class.items()},
            count=count,
            confusion=confusion,
            floor=floor,
        )

    @classmethod
    def from_json(cls, value: Any, where: str, classes: Sequence[str] | None = None) -> Accuracy:
        """Checks and reads what `to_json` wrote; only `average` and `per_class` must be there.

        where: the file and the key, for the message. classes: the names that it must have, if they are known.
        """
        if not isinstance(value, dict):
            raise InputError(
                f"{where} must be an object with 'average' and 'per_class', got {type(value).__name__}"
            )
        for key in ("average", "per_class"):
            if key not in value:
                raise InputError(f"{where} has no {key!r}")
        names, per_class = _read_per_class(value["per_class"], f"{where}.per_class", classes)
        check_shape(value, SHAPE, where)
        count = {name: int(number) for name, number in (value.get("count") or {}).items()}
        interval = _read_intervals(value.get("interval") or {}, f"{where}.interval")
        confusion = value.get("confusion") or None
        if confusion is not None and (
            len(confusion) != len(names) or any(len(row) != len(names) for row in confusion)
        ):
            raise InputError(f"{where}.confusion must be {len(names)} rows of {len(names)} numbers")

        def given(key: str, otherwise: float) -> float:
            return otherwise if value.get(key) is None else _share(value[key], f"{where}.{key}")

        lowest = min(per_class, key=per_class.__getitem__)
        return cls(
            classes=names,
            average=_share(value["average"], f"{where}.average"),
            class_average=given("class_average", sum(per_class.values()) / len(per_class)),
            tail=given("tail", tail_mean(per_class.values())),
            worst=given("worst", per_class[lowest]),
            worst_class=str(value.get("worst_class") or lowest),
            per_class=per_class,
            interval=interval or {n: wilson(share, count[n]) for n, share in per_class.items() if n in count},
            count=count,
            confusion=confusion,
            floor=given("floor", FLOOR),
        )

    def in_order(self, classes: list[str]) -> Accuracy:
        """The same with its classes in this order."""
        if classes == self.classes:
            return self
        places = [self.classes.index(name) for name in classes]
        confusion = self.confusion and [[self.confusion[i][j] for j in places] for i in places]
        return replace(self, classes=classes, confusion=confusion)

    def to_json(self) -> dict[str, Any]:
        """Every class by name, null for one without examples; each of METRICS by its key."""
        return {
            **{key: metric.of(self) for key, metric in METRICS.items()},
            "floor": self.floor,
            "worst_class": self.worst_class,
            "per_class": {name: self.per_class.get(name) for name in self.classes},
            "interval": {
                name: list(self.interval[name]) if name in self.interval else None for name in self.classes
            },
            "limits": {key: list(pair) if (pair := self.limits(key)) else None for key in METRICS},
            "count": self.count,
            "confusion": self.confusion,
        }

    def metric(self, key: str) -> float:
        """One of METRICS by its key."""
        return float(METRICS[key].of(self))

    @property
    def lowest(self) -> list[str]:
        """All classes that share the lowest accuracy; the first of them is `worst_class`, unless a file says
        another.
        """
        return [name for name, share in self.per_class.items() if share == self.worst] or [self.worst_class]

    @property
    def hits(self) -> dict[str, int] | None:
        """How many images of each class are right; None where the numbers of images are not known, or cannot
        be.
        """
        if any(not 0 < self.count.get(name, 0) <= MOST_IMAGES for name in self.per_class):
            return None
        return {name: round(share * self.count[name]) for name, share in self.per_class.items()}

    @property
    def worst_in_words(self) -> str:
        """The name of the worst class, or how many classes share its accuracy."""
        return named(self.lowest)

    @property
    def class_limits(self) -> list[intervals.Interval] | None:
        """An interval of each class, all of them right together with 95 %; None where the numbers of images
        are not known.
        """
        hits = self.hits
        return list(intervals.simultaneous(hits, self.count).values()) if hits else None

    def limits(self, metric: str) -> intervals.Interval | None:
        """The 95 % interval of one of METRICS for these test images; None where it has none, and where the
        numbers of images are not known.

        The worst class and the tail are selected by the results, so their intervals hold for whichever
        classes they are.
        """
        limits = METRICS[metric].limits
        return None if limits is None else limits(self)

    @property
    def precision(self) -> dict[str, float]:
        """Of the images that were taken for a class, the share that are of it; without a class that none was
        taken for.
        """
        taken = {name: sum(row[i] for row in self.confusion or []) for i, name in enumerate(self.classes)}
        return {
            name: self.confusion[i][i] / taken[name]
            for i, name in enumerate(self.classes)
            if self.confusion and taken[name]
        }

    def false_alarms(self, name: str) -> int | None:
        """How many images of other classes were taken for this one."""
        if self.confusion is None:
            return None
        i = self.classes.index(name)
        return sum(row[i] for row in self.confusion) - self.confusion[i][i]


def _read_per_class(
    value: Any, where: str, classes: Sequence[str] | None
) -> tuple[list[str], dict[str, float]]:
    """The names of all classes, and the accuracies of those that have one."""
    if not isinstance(value, Mapping) or not value:
        raise InputError(f"{where} must be an object of class names and accuracies")
    names = list(classes) if classes else list(value)
    found = {name: _share(value[name], f"{where}[{name!r}]") for name in names if value.get(name) is not None}
    unknown = [name for name in value if name not in names]
    if unknown or not found:
        raise InputError(f"{where} has {unknown or 'no accuracies'}, but the classes are {names[:5]}...")
    return names, found


def _read_intervals(value: Mapping[str, Any], where: str) -> dict[str, tuple[float, float]]:
    wrong = [name for name, pair in value.items() if pair is not None and len(pair) != 2]
    if wrong:
        raise InputError(f"{where}[{wrong[0]!r}] must be two numbers, got {len(value[wrong[0]])}")
    return {
        name: (_share(pair[0], f"{where}[{name!r}]"), _share(pair[1], f"{where}[{name!r}]"))
        for name, pair in value.items()
        if pair is not None
    }


def _share(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InputError(f"{where} must be a number from 0 to 1, got {value!r}")
    return float(value)
