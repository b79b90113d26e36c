"""What an accuracy must reach, as a user writes it for a pipeline: `worst>=0.3`, `clean.average>=0.9`,
`Shirt>=0.25`, `Shirt.lower>=0.25`, `classes below 0.05 <= 3`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cfol_fast.errors import InputError
from cfol_fast.evaluation.result import Evaluation
from cfol_fast.runs.accuracy import Accuracy
from cfol_fast.runs.metrics import METRICS, SHARE, below
from cfol_fast.user_input import did_you_mean, parse_number

EXAMPLES = "such as 'worst>=0.3', 'clean.average>=0.9', 'CLASS.lower>=0.25' or 'classes below 0.05 <= 3'"
# Fewer images than this say little of a class: the 95 % interval of a share of 0.5 is then 0.34 wide or more.
FEW = 30
PARTS = ("robust", "clean")
LOWER, UPPER = ".lower", ".upper"


@dataclass(frozen=True)
class Requirement:
    """part: "robust" or "clean"; what: one of METRICS by its key, or the name of a class; bound: from 0 to 1,
    or a number of classes.

    end: ".lower" or ".upper" for the end of its 95 % interval instead of the figure itself. below: of
    "classes below X" the X; `what` is "below_floor" then.
    """

    part: str
    what: str
    bound: float
    end: str = ""
    below: float | None = None

    @property
    def at_most(self) -> bool:
        """Whether the bound is the most that is allowed, as for a number of failing classes."""
        return self.what in METRICS and METRICS[self.what].least_is_best

    def __str__(self) -> str:
        name = self.what if self.below is None else f"classes below {self.below:g}"
        return f"{self.part} {name}{self.end} {'<=' if self.at_most else '>='} {self.bound:g}"

    def verdict(self, report: Evaluation) -> dict[str, Any]:
        """{"requirement", "value", "met", "reason", "note"}: value is null where it cannot be said.

        Then the requirement is not met, nor is any of a report with warnings. note: that few images stand
        behind it; empty otherwise.
        """
        accuracy = report.robust if self.part == "robust" else report.clean
        assert accuracy is not None
        record, value, reason = accuracy.record, None, ""
        empty = [name for name in record.classes if not record.count[name]]
        if self.what in METRICS and METRICS[self.what].over_classes and empty:
            reason = f"{len(empty)} of {len(record.classes)} classes have no images"
        elif self.what not in METRICS and self.what in empty:
            reason = "the class has no images"
        else:
            value = self._value(record)
            reason = f"it is {value:.4g}" + (f" ({record.worst_in_words})" if self.what == "worst" else "")
        met = value is not None and (value <= self.bound if self.at_most else value >= self.bound)
        if report.warnings:
            reason += f", and the figures are not to be trusted: {report.warnings[0]['reason']}"
            met = False
        note = self._note(record)
        return {"requirement": str(self), "value": value, "met": met, "reason": reason, "note": note}

    def _value(self, record: Accuracy) -> float:
        place = 0 if self.end == LOWER else 1
        if self.below is not None:
            return below(record, self.below)
        if self.what not in METRICS:
            return record.interval[self.what][place] if self.end else record.per_class[self.what]
        if not self.end:
            return record.metric(self.what)
        limits = record.limits(self.what)
        assert limits is not None
        return limits[place]

    def _note(self, record: Accuracy) -> str:
        """That fewer than FEW images stand behind it: of the class, or of the class with the fewest."""
        if self.what in METRICS and not METRICS[self.what].over_classes:
            images, whose = sum(record.count.values()), "it"
        elif self.what in METRICS:
            of_present = {name: record.count[name] for name in record.per_class}
            whose = min(of_present, key=of_present.__getitem__)
            images = of_present[whose]
        else:
            images, whose = record.count[self.what], self.what
        if not 0 < images < FEW:
            return ""
        return f"only {images} image{'' if images == 1 else 's'} of {whose} stand behind it"


def parse(text: str, classes: Sequence[str], attacked: bool) -> Requirement:
    """Reads one requirement. attacked: whether there will be robust figures, which are meant where a text
    does not say `clean.`
    """
    found = re.fullmatch(r"\s*(.+?)\s*(>=|<=)\s*([^<>=]+?)\s*(%?)\s*", text, flags=re.DOTALL)
    if found is None:
        raise InputError(f"--require {text!r} cannot be read: write FIGURE>=NUMBER, {EXAMPLES}")
    name, sign, number, percent = found.groups()
    part, what, end, floor = _figure(text, name, classes)
    if part == "robust" and not attacked:
        raise InputError(
            f"--require {text!r} needs an attack; without one write"
            f" 'clean.{what}{end}{sign}{number}{percent}'"
        )
    bound = parse_number(number) / (100 if percent else 1)
    required = Requirement(part, what, bound, end, floor)
    if required.at_most != (sign == "<="):
        wanted = "<= (fewer are better)" if required.at_most else ">="
        raise InputError(f"--require {text!r}: {name} is required with {wanted}, {EXAMPLES}")
    if what in METRICS and METRICS[what].unit != SHARE:
        if bound < 0 or bound != int(bound) or percent:
            raise InputError(f"--require {text!r}: a number of classes is whole, got {number}{percent}")
    elif not 0 <= bound <= 1:
        raise InputError(f"--require {text!r}: an accuracy is from 0 to 1, got {bound:g}; perhaps {number}%")
    return required


def _figure(text: str, name: str, classes: Sequence[str]) -> tuple[str, str, str, float | None]:
    """(part, what, end, below) of the left side of a requirement."""
    known = {*METRICS, *classes}
    part, end = "robust", ""
    # A class may have a dot in its name.
    if name not in known and name.partition(".")[0] in PARTS:
        part, _, name = name.partition(".")
    if name not in known and (counted := re.fullmatch(r"classes below\s+(\S+?)\s*(%?)", name)):
        floor = parse_number(counted[1]) / (100 if counted[2] else 1)
        if not 0 <= floor <= 1:
            raise InputError(f"--require {text!r}: an accuracy is from 0 to 1, got {floor:g}")
        return part, "below_floor", end, floor
    if name not in known and name.endswith((LOWER, UPPER)):
        name, end = name[: -len(LOWER)], name[-len(LOWER) :]
    if name not in known:
        raise InputError(
            f"--require {text!r}: there is no figure or class"
            f" {name!r}{did_you_mean(name, [*METRICS, *classes])}"
        )
    if end and name in METRICS:
        metric = METRICS[name]
        if metric.limits is None or (end == UPPER) != metric.least_is_best:
            able = [
                key + (UPPER if one.least_is_best else LOWER) for key, one in METRICS.items() if one.limits
            ]
            raise InputError(f"--require {text!r}: there is no {name}{end}; there are {', '.join(able)}")
    elif end == UPPER:
        raise InputError(f"--require {text!r}: of a class the lower limit is required, {name}{LOWER}")
    return part, name, end, None
