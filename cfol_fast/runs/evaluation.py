"""The result of an evaluation, and its three forms: a table for the terminal, JSON with everything, CSV by class.

The JSON, format 1 (accuracies are numbers from 0 to 1, a class without examples has null):

    {"format": 1, "kind": "evaluation",
     "examples": N, "classes": [names],
     "clean": R, "robust": R or null,          the worst case over the attacks, example by example
     "attacks": [{"attack": {kind, norm, eps, steps, step, loss, seed, ...}, "robust": R}],
     "correct": {"clean": "1101...", "robust": "1001..."},    one digit an example, in the order of the data
     "settings": {"active_set", "batch_size", ...}, "notes": [sentences], "versions": {package: version}}

    R = {"average" (over examples), "class_average", "tail" (mean of the ceil(0.2 k) worst classes), "worst", "worst_class",
         "per_class": {name: accuracy}, "interval": {name: [low, high]} (95 % Wilson), "count": {name: n},
         "confusion": [[n]] (a row for each true class, a column for each prediction)}

A change that breaks a reader raises the format's number; new keys do not.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import torch

from cfol_fast._version import __version__
from cfol_fast.runs.accuracy import ClassAccuracy

FORMAT = 1


@dataclass
class Evaluation:
    """clean: without an attack; robust: correct under every attack (None without one); attacks: (description, accuracy) each."""

    clean: ClassAccuracy
    robust: ClassAccuracy | None
    attacks: list[tuple[dict[str, Any], ClassAccuracy]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """See the module's description of the format."""
        correct = {"clean": _digits(self.clean)}
        if self.robust is not None:
            correct["robust"] = _digits(self.robust)
        return {
            "format": FORMAT,
            "kind": "evaluation",
            "examples": len(self.clean.correct),
            "classes": self.clean.classes,
            "clean": self.clean.to_json(),
            "robust": None if self.robust is None else self.robust.to_json(),
            "attacks": [{"attack": what, "robust": accuracy.to_json()} for what, accuracy in self.attacks],
            "correct": correct,
            "settings": self.settings,
            "notes": self.notes,
            "versions": versions(),
        }

    def to_csv(self) -> str:
        """One row a class: class, count, clean, and robust with its interval."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(
            ["class", "count", "clean", "clean_low", "clean_high", "robust", "robust_low", "robust_high"]
        )
        for index, name in enumerate(self.clean.classes):
            row: list[Any] = [name, int(self.clean.counts[index])]
            for accuracy in (self.clean, self.robust):
                if accuracy is None or not accuracy.present[index]:
                    row += ["", "", ""]
                else:
                    row += [float(accuracy.per_class[index]), *accuracy.intervals[index].tolist()]
            writer.writerow(row)
        return text.getvalue()

    def table(self) -> str:
        """For the terminal: a line a class, worst first, then the summary."""
        shown = self.robust if self.robust is not None else self.clean
        order = shown.per_class.nan_to_num(nan=2.0).argsort(stable=True).tolist()
        width = max(len("class average"), *(len(name) for name in shown.classes))
        head = f"{'class':{width}}  {'count':>6}  {'clean':>7}" + (
            "" if self.robust is None else f"  {'robust':>7}"
        )
        lines = [head + f"  {'95 % interval':>16}"]
        for index in order:
            if not shown.present[index]:
                lines.append(f"{shown.classes[index]:{width}}  {0:6}  no examples")
                continue
            low, high = shown.intervals[index].tolist()
            line = f"{shown.classes[index]:{width}}  {int(shown.counts[index]):6}  {_percent(self.clean.per_class[index])}"
            if self.robust is not None:
                line += f"  {_percent(self.robust.per_class[index])}"
            lines.append(line + f"  {_percent(low)} -{_percent(high)}")
        lines.append("-" * len(lines[0]))
        for name, figure in _SUMMARY.items():
            line = f"{name:{width}}  {'':6}  {_percent(figure(self.clean))}"
            lines.append(line if self.robust is None else line + f"  {_percent(figure(self.robust))}")
        for what, accuracy in self.attacks if len(self.attacks) > 1 else []:
            lines.append(
                f"{what.get('kind')}: {_percent(accuracy.average).strip()} average, {describe(what)}"
            )
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


_SUMMARY = {
    "average": lambda a: a.average,
    "class average": lambda a: a.class_average,
    "20 % tail": lambda a: a.tail(),
    "worst class": lambda a: a.worst,
}


def describe(attack: Mapping[str, Any]) -> str:
    """An attack's parameters on one line."""
    return ", ".join(f"{key} {value}" for key, value in attack.items() if key != "kind")


def _percent(value: float | torch.Tensor) -> str:
    return f"{100 * float(value):5.1f} %"


def _digits(accuracy: ClassAccuracy) -> str:
    return "".join("1" if flag else "0" for flag in accuracy.correct.tolist())


def versions() -> dict[str, str]:
    """Of what a figure depends on."""
    found = {"cfol_fast": __version__, "torch": torch.__version__}
    for name in ("torchvision", "pyautoattack"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
