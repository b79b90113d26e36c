"""The result of an evaluation, and its three forms: a table for the terminal, JSON with everything, CSV by
class.

The JSON is described in docs/evaluation-format.md and read by `runs.records`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from cfol_fast.evaluation.class_accuracy import ClassAccuracy
from cfol_fast.machine import versions
from cfol_fast.runs.accuracy import METRICS
from cfol_fast.runs.csv_text import csv_text
from cfol_fast.runs.predictions import pack

FORMAT = 1


@dataclass(repr=False)
class Evaluation:
    """clean: without an attack; robust: correct under every attack (None without one); attacks: (description,
    accuracy) each.

    more: what was found beside, as JSON has it: "curve", "requirements", "sanity". warnings: signs that the
    figures are not to be trusted, as JSON has them (`doubts.judge`). loss_raised: of how many images each
    attack raised the loss.
    """

    clean: ClassAccuracy
    robust: ClassAccuracy | None
    attacks: list[tuple[dict[str, Any], ClassAccuracy]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    loss_raised: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        kinds = " and ".join(str(what.get("kind")) for what, _ in self.attacks) or "no attack"
        robust = "" if self.robust is None else f", robust={self.robust!r}"
        return f"Evaluation({kinds}, clean={self.clean!r}{robust})"

    @property
    def kinds(self) -> dict[str, ClassAccuracy]:
        """ "clean" and, with an attack, "robust"."""
        return {"clean": self.clean, **({} if self.robust is None else {"robust": self.robust})}

    @property
    def predictions(self) -> dict[str, Tensor]:
        """(N,) int64 each, in the order of the images."""
        return {kind: accuracy.predictions for kind, accuracy in self.kinds.items()}

    def to_json(self) -> dict[str, Any]:
        """See docs/evaluation-format.md."""
        return {
            "format": FORMAT,
            "kind": "evaluation",
            "examples": len(self.clean.correct),
            "classes": self.clean.classes,
            "clean": self.clean.to_json(),
            "robust": None if self.robust is None else self.robust.to_json(),
            "attacks": [
                {"attack": what, "robust": accuracy.to_json(), "loss_raised": raised}
                for (what, accuracy), raised in itertools.zip_longest(self.attacks, self.loss_raised)
            ],
            "correct": {kind: _digits(accuracy) for kind, accuracy in self.kinds.items()},
            "labels": pack(self.clean.labels),
            "predicted": {kind: pack(predicted) for kind, predicted in self.predictions.items()},
            "settings": self.settings,
            "warnings": self.warnings,
            "notes": self.notes,
            "versions": versions(),
            **self.more,
        }

    def to_csv(self) -> str:
        """One row per class: class, count, clean and robust accuracy, each with its interval."""
        header = ["class", "count", "clean", "clean_low", "clean_high", "robust", "robust_low", "robust_high"]
        rows: list[list[str | float | None]] = [[*header]]
        for name in self.clean.classes:
            row: list[str | float | None] = [name, self.clean.record.count[name]]
            for accuracy in (self.clean, self.robust):
                if accuracy is None or name not in accuracy.record.per_class:
                    row += [None, None, None]
                else:
                    row += [accuracy.record.per_class[name], *accuracy.record.interval[name]]
            rows.append(row)
        return csv_text(rows)

    def table(self) -> str:
        """For the terminal: what is wrong with the figures; one line per class, worst first; then the
        summary.
        """
        clean = self.clean.record
        shown = clean if self.robust is None else self.robust.record
        width = max(len("class average"), *(len(name) for name in shown.classes))
        head = f"{'class':{width}}  {'count':>6}  {'clean':>7}" + (
            "" if self.robust is None else f"  {'robust':>7}"
        )
        lines = [head + f"  {'95 % interval':>16}"]
        # A class without examples comes last.
        for name in sorted(shown.classes, key=lambda name: shown.per_class.get(name, 2.0)):
            if name not in shown.per_class:
                lines.append(f"{name:{width}}  {0:6}  no examples")
                continue
            low, high = shown.interval[name]
            line = f"{name:{width}}  {shown.count[name]:6}  {_percent(clean.per_class[name])}"
            if self.robust is not None:
                line += f"  {_percent(shown.per_class[name])}"
            lines.append(line + f"  {_percent(low)} -{_percent(high)}")
        lines.append("-" * len(lines[0]))
        empty = len(shown.classes) - len(shown.per_class)
        for title, metric in SUMMARY.items():
            if empty and metric in ("tail", "worst"):
                continue
            line = f"{title:{width}}  {'':6}  {_percent(getattr(clean, metric))}"
            line += "" if self.robust is None else f"  {_percent(getattr(shown, metric))}"
            # Of the tail and the worst class: for whichever classes they are.
            limits = shown.limits(metric) if metric in METRICS else None
            lines.append(line + (f"  {_percent(limits[0])} -{_percent(limits[1])}" if limits else ""))
        if empty:
            lines.append(f"no worst class: {empty} of {len(shown.classes)} classes have no images")
        for what, accuracy in self.attacks if len(self.attacks) > 1 else []:
            lines.append(
                f"{what.get('kind')}: {_percent(accuracy.average).strip()} average, {describe(what)}"
            )
        warnings = [f"warning: {one['reason']}" for one in self.warnings]
        return "\n".join([*warnings, *lines, *(f"note: {note}" for note in self.notes)])


SUMMARY = {
    "average": "average",
    "class average": "class_average",
    "20 % tail": "tail",
    "worst class": "worst",
}


def describe(attack: Mapping[str, Any]) -> str:
    """An attack's parameters on one line."""
    return ", ".join(f"{key} {value}" for key, value in attack.items() if key != "kind")


def _percent(value: float) -> str:
    return f"{100 * value:5.1f} %"


def _digits(accuracy: ClassAccuracy) -> str:
    return "".join("1" if flag else "0" for flag in accuracy.correct.tolist())
