"""Accuracy over the radius of the attack, in every class: where a model gives way, not only whether it does
at one radius.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from cfol_fast.errors import InputError
from cfol_fast.evaluation.class_accuracy import ClassAccuracy
from cfol_fast.evaluation.evaluator import Progress, evaluate
from cfol_fast.evaluation.inputs import as_source
from cfol_fast.evaluation.result import Evaluation
from cfol_fast.plain_text import aligned, percent, radius_text
from cfol_fast.runs.metrics import METRICS


def evaluate_radii(
    model: nn.Module,
    x_or_source: Any,
    y: Tensor | None = None,
    *,
    radii: Sequence[float],
    attack: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    progress: Progress | None = None,
    **options: Any,
) -> Evaluation:
    """`evaluate` at each radius. attack: parameters without "eps"; several give the worst case at each
    radius.

    The result is that of the largest radius. Its `more["curve"]` is [{"eps": radius, "robust": figures}],
    radii rising; radius 0 is the clean accuracy. options: as for `evaluate`.
    """
    radii = sorted({float(eps) for eps in radii})
    if not radii or radii[-1] <= 0:
        raise InputError(f"a curve needs at least one radius above 0, got {radii}")
    kinds = [attack] if isinstance(attack, Mapping) else list(attack)
    attacked = [eps for eps in radii if eps > 0]
    curve: dict[float, ClassAccuracy] = {}
    warnings: dict[float, list[dict[str, Any]]] = {}
    # One source for all radii: a loader's remembers the images, and that they stay the same.
    source = as_source(x_or_source, y)
    for number, eps in enumerate(attacked):

        def passed(done: int, total: int, before: int = number) -> None:
            if progress is not None:
                progress(before * total + done, len(attacked) * total)

        report = evaluate(
            model, source, None, [{**one, "eps": eps} for one in kinds], progress=passed, **options
        )
        if radii[0] == 0:
            curve[0.0] = report.clean
        assert report.robust is not None
        curve[eps] = report.robust
        warnings[eps] = report.warnings
    for eps in attacked[:-1]:
        for one in warnings[eps]:
            # The clean images are the same at each radius.
            if one["attack"] is not None:
                report.warnings.append(
                    {**one, "eps": eps, "reason": f"at radius {radius_text(eps)}: {one['reason']}"}
                )
    report.more["curve"] = [{"eps": eps, "robust": curve[eps].to_json()} for eps in sorted(curve)]
    return report


def table(report: Evaluation) -> str:
    """The curve for the terminal: a line per class, the worst at the largest radius first, a column per
    radius.
    """
    curve = report.more["curve"]
    last = curve[-1]["robust"]["per_class"]
    classes = sorted(report.clean.classes, key=lambda name: 2.0 if last.get(name) is None else last[name])
    rows: list[list[str] | None] = [["eps", *(radius_text(at["eps"]) for at in curve)]]
    for name in classes:
        rows.append([name, *(_percent(at["robust"]["per_class"].get(name)) for at in curve)])
    rows.append(None)
    empty = any(last.get(name) is None for name in classes)
    for key, metric in METRICS.items():
        # With a class that was not looked at, the worst one is not known.
        if empty and metric.over_classes:
            continue
        title = metric.phrase(curve[-1]["robust"]["floor"])
        rows.append([title, *(metric.with_unit(at["robust"][key]) for at in curve)])
    return "\n".join(["accuracy over the radius", *aligned(rows)])


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{percent(value)} %"
