"""What an accuracy must reach, as a user writes it for a pipeline: `worst>=0.3`, `clean.average>=0.9`,
`Shirt>=0.25`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cfol_fast.errors import InputError
from cfol_fast.evaluation.result import Evaluation
from cfol_fast.user_input import did_you_mean, parse_number

FIGURES = ("worst", "average", "class_average", "tail")
EXAMPLES = "such as 'worst>=0.3', 'clean.average>=0.9' or 'CLASS>=0.25'"


@dataclass(frozen=True)
class Requirement:
    """part: "robust" or "clean"; what: one of `FIGURES`, or the name of a class; least: from 0 to 1."""

    part: str
    what: str
    least: float

    def __str__(self) -> str:
        return f"{self.part} {self.what} >= {self.least:g}"

    def verdict(self, report: Evaluation) -> dict[str, Any]:
        """{"requirement", "value", "met", "reason"}: value is null where it cannot be said.

        Then the requirement is not met, nor is any of a report with warnings.
        """
        accuracy = report.robust if self.part == "robust" else report.clean
        assert accuracy is not None
        record, value, reason = accuracy.record, None, ""
        empty = [name for name in record.classes if not record.count[name]]
        if self.what in ("worst", "tail") and empty:
            reason = f"{len(empty)} of {len(record.classes)} classes have no images"
        elif self.what not in FIGURES and self.what in empty:
            reason = "the class has no images"
        else:
            value = getattr(record, self.what) if self.what in FIGURES else record.per_class[self.what]
            reason = f"it is {value:.4g}" + (f" ({record.worst_class})" if self.what == "worst" else "")
        met = value is not None and value >= self.least and not report.warnings
        if report.warnings:
            reason += f", and the figures are not to be trusted: {report.warnings[0]['reason']}"
        return {"requirement": str(self), "value": value, "met": met, "reason": reason}


def parse(text: str, classes: Sequence[str], attacked: bool) -> Requirement:
    """Reads one requirement. attacked: whether there will be robust figures, which are meant where a text
    does not say `clean.`
    """
    found = re.fullmatch(r"\s*(.+?)\s*>=\s*([^<>=]+?)\s*(%?)\s*", text, flags=re.DOTALL)
    if found is None:
        raise InputError(f"--require {text!r} cannot be read: write FIGURE>=NUMBER, {EXAMPLES}")
    name, number, percent = found.groups()
    least = parse_number(number) / (100 if percent else 1)
    if not 0 <= least <= 1:
        raise InputError(f"--require {text!r}: an accuracy is from 0 to 1, got {least:g}; perhaps {number}%")
    part = "robust"
    known = {*FIGURES, *classes}
    # A class may have a dot in its name.
    if name not in known and name.partition(".")[0] in ("robust", "clean"):
        part, _, name = name.partition(".")
    if part == "robust" and not attacked:
        raise InputError(
            f"--require {text!r} needs an attack; without one write 'clean.{name}>={number}{percent}'"
        )
    if name not in known:
        raise InputError(
            f"--require {text!r}: there is no figure or class"
            f" {name!r}{did_you_mean(name, [*FIGURES, *classes])}"
        )
    return Requirement(part, name, least)
