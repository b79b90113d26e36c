"""Masked gradients: is a model robust, or is the attack only blind?

Checked in every class, as Athalye et al. (2018) and Carlini et al. (2019) ask.

A class fails a check when chance does not explain it: the checks compare the same images, and share an error
of 5 % among all classes and checks.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from cfol_fast.errors import InputError
from cfol_fast.evaluation.autoattack import LEAST_CLASSES, AutoAttack
from cfol_fast.evaluation.evaluator import STEPS, evaluate
from cfol_fast.evaluation.inputs import as_source
from cfol_fast.evaluation.result import Evaluation
from cfol_fast.plain_text import aligned
from cfol_fast.runs.intervals import ERROR, binomial_tail

# Comparisons in each class: two directions of more steps, Square, and the large radius.
COMPARISONS = 4
MORE_STEPS, MORE_RESTARTS = 5, 4
# What more steps may take from a converged attack's figure: from PGD-20 to PGD-100 with restarts it is about
# 0.01 on CIFAR-10.
MARGIN = 0.03


@dataclass(frozen=True)
class Check:
    """failures: what was found, by class. skipped: why the check was not made."""

    name: str
    what: str
    failures: dict[str, str] = field(default_factory=dict)
    skipped: str = ""

    def to_json(self) -> dict[str, Any]:
        passed = None if self.skipped else not self.failures
        return {
            "check": self.name,
            "what": self.what,
            "passed": passed,
            "failures": self.failures,
            "skipped": self.skipped,
        }


def check_gradients(
    model: nn.Module, x_or_source: Any, y: Tensor | None = None, *, attack: Mapping[str, Any], **options: Any
) -> list[Check]:
    """attack: the parameters of the PGD whose figures are in question. options: as for `evaluate`, without
    the active set.
    """
    base = {"steps": STEPS, "restarts": 1, "norm": "linf", "seed": 0, **attack, "kind": "pgd"}
    if not base.get("eps"):
        raise InputError("the check for masked gradients needs a radius above 0")
    more = {**base, "steps": MORE_STEPS * base["steps"], "restarts": base["restarts"] + MORE_RESTARTS}
    source = as_source(x_or_source, y)
    size = math.prod(next(iter(source.batches(1)))[1].shape[1:])
    # From here every image can become a grey one, in which there is nothing to see.
    everything = 0.5 if base["norm"] == "linf" else 0.5 * math.sqrt(size)
    large = {**more, "eps": everything, "step": None, "restarts": 1}
    square, without = _square(model, base, options)
    report = evaluate(model, source, attack=[base, more, large, *square], **options)
    labels = source.labels.cpu()
    found = _Comparison(labels, report)
    weak, strong, blind = (accuracy.correct for _, accuracy in report.attacks[:3])
    steps = f"PGD-{base['steps']} against PGD-{more['steps']} with {more['restarts']} starts"
    checks = [
        Check("more steps and restarts", steps, found.more_steps(weak, strong)),
        Check("large radius", f"{more['steps']} steps at {everything:.3g}", found.above_chance(blind)),
    ]
    what = "a black-box attack against PGD"
    if square:
        # The white-box attack is all that was tried with gradients.
        failures = found.square(report.attacks[3][1].correct, weak & strong)
        checks.insert(1, Check("Square", what, failures))
    else:
        checks.insert(1, Check("Square", what, skipped=without))
    return checks


def _square(
    model: nn.Module, base: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[list[AutoAttack], str]:
    """The attack, or why there is none."""
    if importlib.util.find_spec("pyautoattack") is None:
        return [], "Square needs pyautoattack: pip install pyautoattack"
    if len(options.get("class_names") or range(LEAST_CLASSES)) < LEAST_CLASSES:
        return [], f"pyautoattack needs at least {LEAST_CLASSES} classes"
    return [AutoAttack(model, base["eps"], base["norm"], base["seed"], attacks=("square",))], ""


class _Comparison:
    """Compares which images are right, class by class. All tensors: (N,)."""

    def __init__(self, labels: Tensor, report: Evaluation) -> None:
        self.classes = {
            name: labels == c for c, name in enumerate(report.clean.classes) if report.clean.counts[c]
        }
        self.level = ERROR / (COMPARISONS * len(self.classes))

    def more_steps(self, weak: Tensor, strong: Tensor) -> dict[str, str]:
        failures = {}
        for name, (saved, lost) in self._changes(weak, strong).items():
            n = int(self.classes[name].sum())
            if self._more(saved, lost):
                failures[name] = f"{saved} images are right again under the stronger attack, {lost} are lost"
            elif self._more(lost, saved) and lost - saved > MARGIN * n:
                failures[name] = (
                    f"the stronger attack takes {lost - saved} more of {n} images: the weaker one had not"
                    " converged"
                )
        return failures

    def square(self, square: Tensor, white: Tensor) -> dict[str, str]:
        return {
            name: (
                f"Square fools {square_alone} images that PGD does not, PGD {white_alone} that Square"
                " does not"
            )
            for name, (white_alone, square_alone) in self._changes(white, square).items()
            if self._more(square_alone, white_alone)
        }

    def above_chance(self, correct: Tensor) -> dict[str, str]:
        chance, failures = 1 / len(self.classes), {}
        for name, members in self.classes.items():
            right, n = int((correct & members).sum()), int(members.sum())
            if binomial_tail(right, n, chance) < self.level:
                failures[name] = f"{right / n:.1%} are still right, chance is {chance:.1%}"
        return failures

    def _changes(self, first: Tensor, second: Tensor) -> dict[str, tuple[int, int]]:
        """By class: how many images are right under the second attack alone, and under the first alone."""
        return {
            name: (int((~first & second & members).sum()), int((first & ~second & members).sum()))
            for name, members in self.classes.items()
        }

    def _more(self, many: int, few: int) -> bool:
        """Whether chance does not explain that so many changed in one direction and so few in the other (sign
        test).
        """
        return many > few and binomial_tail(many, many + few, 0.5) < self.level


def _verdict(check: Check) -> str:
    return f"not checked: {check.skipped}" if check.skipped else "FAILED" if check.failures else "passed"


def describe(checks: list[Check], counts: Mapping[str, int]) -> str:
    """For the terminal: a line per check, and one per class that fails it. counts: images of each class."""
    rows = [[check.name, _verdict(check), check.what] for check in checks]
    lines = ["check for masked gradients"]
    for check, line in zip(checks, aligned(rows, left=range(3)), strict=True):
        lines.append(f"  {line}")
        lines += [f"    {name}: {why}" for name, why in check.failures.items()]
    fewest = min((n for n in counts.values() if n), default=0)
    needed = math.ceil(math.log2(COMPARISONS * len(counts) / ERROR))
    if fewest < 2 * needed:
        lines.append(
            f"  note: a difference of less than {needed} images is not told from chance, and a class has only"
            f" {fewest}"
        )
    return "\n".join(lines)
