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
from cfol_fast.plain_text import aligned, percent, radius_text
from cfol_fast.runs.csv_text import csv_text
from cfol_fast.runs.metrics import METRICS
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
        """For the terminal: what is wrong with the figures; what was measured; one line per class, worst
        first; then the summary.
        """
        clean = self.clean.record
        shown = clean if self.robust is None else self.robust.record
        both = [clean] if self.robust is None else [clean, shown]
        columns = (
            ["clean", "95 % interval"] if self.robust is None else ["clean", "robust", "robust 95 % interval"]
        )
        rows: list[list[str] | None] = [["class", "count", *columns]]
        # A class without examples comes last.
        for name in sorted(shown.classes, key=lambda name: shown.per_class.get(name, 2.0)):
            if name not in shown.per_class:
                rows.append([name, "0", *["–"] * len(both), "no examples"])
                continue
            figures = [_percent(accuracy.per_class[name]) for accuracy in both]
            rows.append([name, str(shown.count[name]), *figures, _interval(shown.interval[name])])
        rows.append(None)
        empty = len(shown.classes) - len(shown.per_class)
        for key, metric in METRICS.items():
            if empty and metric.over_classes:
                continue
            figures = [metric.with_unit(metric.of(accuracy)) for accuracy in both]
            # Of the tail and the worst class: for whichever classes they are.
            limits = shown.limits(key)
            text = "" if limits is None else " - ".join(metric.with_unit(limit) for limit in limits)
            rows.append([metric.phrase(shown.floor), "", *figures, text])
        lines = aligned(rows)
        if empty:
            lines.append(f"no worst class: {empty} of {len(shown.classes)} classes have no images")
        elif len(shown.lowest) > 1:
            lines.append(f"{len(shown.lowest)} classes are the worst, all at {_percent(shown.worst)}")
        for what, accuracy in self.attacks if len(self.attacks) > 1 else []:
            lines.append(f"{what.get('kind')}: {_percent(accuracy.average)} average, {describe(what)}")
        kinds = [str(what.get("kind")) for what, _ in self.attacks]
        if kinds and "autoattack" not in kinds:
            names = " and ".join(kind.upper() for kind in kinds)
            lines.append(
                f"robust: upper bounds, by {names}; a stronger attack finds more (--attack autoattack)"
            )
        warnings = [f"warning: {one['reason']}" for one in self.warnings]
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join([*warnings, *self.measured(), *lines, *notes])

    def measured(self) -> list[str]:
        """What the figures were measured with, so that a table says it wherever it is pasted."""
        attacks = "; ".join(_in_words(what) for what, _ in self.attacks) or "none"
        known = self.settings
        images = f"{len(self.clean.correct):,} images"
        data = [known["dataset"], known.get("data")] if known.get("dataset") else []
        where = " in ".join(str(part) for part in data if part)
        return [
            f"attack: {attacks}" + (", active set" if known.get("active_set") else ""),
            *([f"checkpoint: {known['checkpoint']}"] if known.get("checkpoint") else []),
            f"data: {where}, {images}" if where else f"data: {images}",
            *([f"device: {known['device']}"] if known.get("device") else []),
        ]


def describe(attack: Mapping[str, Any]) -> str:
    """An attack's parameters on one line."""
    return ", ".join(f"{key} {value}" for key, value in attack.items() if key != "kind")


def _in_words(attack: Mapping[str, Any]) -> str:
    """What decides how strong an attack is: "pgd, linf radius 8/255, 20 steps of 1/255, 2 restarts"."""
    parts = [str(attack.get("kind"))]
    if isinstance(eps := attack.get("eps"), int | float):
        parts.append(f"{attack.get('norm', '')} radius {radius_text(eps)}".strip())
    if count := attack.get("steps"):
        size = attack.get("step")
        parts.append(f"{count} step{'s' * (count > 1)}" + (f" of {radius_text(size)}" if size else ""))
    if (restarts := attack.get("restarts") or 1) > 1:
        parts.append(f"{restarts} restarts")
    if (loss := attack.get("loss")) not in (None, "ce"):
        parts.append(f"loss {loss}")
    return ", ".join(parts)


def _percent(value: float) -> str:
    return f"{percent(value)} %"


def _interval(pair: tuple[float, float]) -> str:
    return " - ".join(map(_percent, pair))


def _digits(accuracy: ClassAccuracy) -> str:
    return "".join("1" if flag else "0" for flag in accuracy.correct.tolist())
