"""Accuracy over the radius of the attack, from the curves that `cfol-fast eval RUN --eps 0,4/255,8/255 --json
FILE` saved.
"""

from __future__ import annotations

from cfol_fast.reporting.chart import Chart, Figure, LineChart
from cfol_fast.reporting.groups import Comparison, Group
from cfol_fast.reporting.training_charts import lines_of_classes
from cfol_fast.reporting.wording import attack_phrase
from cfol_fast.runs.records import RadiusCurve, Run


def radius_lines(comparison: Comparison) -> Figure | None:
    """Robust accuracy of each class over the radius, a panel per group."""
    charts: list[Chart] = [_panel(group, *found) for group in comparison.groups if (found := _longest(group))]
    if not charts:
        return None
    return Figure(
        "radius",
        "Accuracy over the radius",
        "Robust accuracy of the classes in percent, against the radius of the attack; the lowest at the"
        " largest radius in colour. A radius of 0 is no attack.",
        charts,
        pair=len(charts) > 1,
    )


def _longest(group: Group) -> tuple[Run, RadiusCurve] | None:
    """The curve with the most radii of the group's first run that has one."""
    for run in group.runs:
        if curves := [curve for curve in run.curves if len(curve.points) > 1]:
            return run, max(curves, key=lambda curve: len(curve.points))
    return None


def _panel(group: Group, run: Run, curve: RadiusCurve) -> LineChart:
    # Radii in linf are read as pixel values; those of other norms have no unit.
    pixels = curve.attack.get("norm", "linf") == "linf"
    radii = [255 * eps if pixels else eps for eps, _ in curve.points]
    courses = {
        name: (radii, [accuracy.per_class[name] for _, accuracy in curve.points])
        for name in curve.points[0][1].per_class
        if all(name in accuracy.per_class for _, accuracy in curve.points)
    }
    title = group.label if len(group.runs) == 1 else f"{group.label}, seed {run.seed}"
    label = "radius in 1/255" if pixels else f"radius in {curve.attack.get('norm')}"
    lines = lines_of_classes(courses, group.colour)
    return LineChart(title, lines, label, note=attack_phrase(curve.attack), limit=1.0, whole=radii[-1] >= 4)
