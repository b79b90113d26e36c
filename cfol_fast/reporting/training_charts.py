"""Charts over the epochs: accuracies from the validations, the class distribution from the training rows of
metrics.jsonl.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cfol_fast.plain_text import percent
from cfol_fast.reporting.chart import Figure, Line, LineChart, Rule, on_one_scale
from cfol_fast.reporting.groups import MANY, Comparison, Group, known_stat
from cfol_fast.runs.frame import Summary
from cfol_fast.runs.metrics import METRICS, tail_size

# Classes drawn as lines of their own when there are many.
FOLLOWED = 5

# A number of a row of metrics.jsonl.
Pick = Callable[[dict[str, Any]], float | None]


def _over_epochs(group: Group, pick: Pick, rows: str) -> tuple[list[float], list[list[float]]]:
    """Epochs that every run of the group has, and the picked value of each run there."""
    tables = []
    for run in group.counted:
        table = {}
        for row in getattr(run, rows):
            value = pick(row)
            if value is not None:
                table[float(row.get("epoch", 0))] = value
        if table:
            tables.append(table)
    if not tables:
        return [], []
    epochs = sorted(set.intersection(*(set(table) for table in tables)))
    return epochs, [[table[epoch] for epoch in epochs] for table in tables]


def _mean_line(series: list[list[float]]) -> tuple[list[float], list[float], list[float]]:
    """Mean over the runs at each epoch, and one deviation below and above it where there are several runs."""
    stats = [known_stat(Summary(tuple(values))) for values in zip(*series, strict=True)]
    low = [stat.low for stat in stats if stat.low is not None]
    high = [stat.high for stat in stats if stat.high is not None]
    return [stat.mean for stat in stats], low, high


def _kept(group: Group) -> list[tuple[float, str]]:
    """The epoch of the checkpoint that was tested, when the group is a single run and it was not the last."""
    if len(group.runs) == 1:
        run = group.runs[0]
        if run.tested_epoch is not None and run.tested_epoch < run.epochs[0]:
            return [(float(run.tested_epoch), "tested")]
    return []


def _source(comparison: Comparison) -> tuple[str, str]:
    """Where accuracies over the epochs come from: the validations, or without a hold-out the training rows;
    and its name.
    """
    rows = [row for group in comparison.groups for run in group.runs for row in run.validation]
    if not rows:
        return "train", "training images as the attack met them"
    return "validation", "test set" if {str(row.get("split")) for row in rows} == {"test"} else "hold-out"


def _measure(metric: str) -> Pick:
    """The average or the worst class of a row of either kind."""

    def pick(row: dict[str, Any]) -> float | None:
        if row["kind"] == "validation":
            return row["robust"].metric(metric) if row["robust"] else None
        # Over classes, not over the examples seen: a method that draws hard classes more often would look
        # worse than it is.
        right = [1 - float(error) for error in row.get("class_error") or [] if error is not None]
        if not right:
            return None
        return min(right) if metric == "worst" else sum(right) / len(right)

    return pick


def _class_accuracy(name: str, place: int) -> Pick:
    """The robust accuracy of one class in a row of either kind."""

    def pick(row: dict[str, Any]) -> float | None:
        if row["kind"] == "validation":
            return row["robust"].per_class.get(name) if row["robust"] else None
        errors = row.get("class_error") or []
        return 1 - float(errors[place]) if place < len(errors) and errors[place] is not None else None

    return pick


def accuracy_lines(comparison: Comparison) -> Figure | None:
    """Average and worst class over the epochs, all groups together."""
    rows, where = _source(comparison)
    lines = []
    for group in comparison.groups:
        for metric, dashed in (("average", False), ("worst", True)):
            epochs, series = _over_epochs(group, _measure(metric), rows)
            if len(epochs) > 1:
                mean, low, high = _mean_line(series)
                name = f"{group.label}, {METRICS[metric].phrase()}"
                short = f"{METRICS[metric].heading().split()[0].lower()} {percent(mean[-1])}"
                lines.append(Line(name, group.colour, epochs, mean, low, high, not dashed, dashed, short))
    if not lines:
        return None
    return Figure(
        "training",
        "Average and worst class over training",
        f"Robust accuracy on the {where} in percent: the average (solid) and the worst class (dashed).",
        [LineChart("", lines, "epoch")],
        [(group.legend, group.colour, False) for group in comparison.groups],
    )


def class_lines(comparison: Comparison) -> Figure | None:
    """Robust accuracy of each class over the epochs, a panel per group."""
    rows, where = _source(comparison)
    charts = _class_panels(comparison, _class_accuracy, rows, lowest=True)
    if not charts:
        return None
    return Figure(
        "class-training",
        "Class accuracies over training",
        f"Robust accuracy of the classes on the {where} in percent; {_coloured(comparison)} lowest at the end"
        " in colour.",
        on_one_scale(charts),
        pair=len(charts) > 1,
    )


def _coloured(comparison: Comparison) -> str:
    k = len(comparison.classes)
    if k > MANY:
        return f"the band holds all {k} classes, the {FOLLOWED}"
    return f"the {comparison.tail_size}" if comparison.tail_size > 1 else "the"


def _class_panels(
    comparison: Comparison,
    pick: Callable[[str, int], Pick],
    rows: str,
    lowest: bool,
    rules: Sequence[Rule] = (),
    digits: int = 1,
) -> list[LineChart]:
    """A panel per group with the lines of its classes; `pick` gives a class's number by the class's name and
    place.
    """
    charts = []
    for group in comparison.groups:
        courses = {}
        for place, name in enumerate(comparison.classes):
            epochs, series = _over_epochs(group, pick(name, place), rows)
            if len(epochs) > 1:
                courses[name] = (epochs, _mean_line(series)[0])
        if courses:
            lines = lines_of_classes(courses, group.colour, lowest, digits)
            marks = _kept(group)
            charts.append(
                LineChart(group.heading, lines, "epoch", list(rules), marks, group.note, digits=digits)
            )
    return charts


def lines_of_classes(
    courses: Mapping[str, tuple[list[float], list[float]]],
    colour: str | None,
    lowest: bool = True,
    digits: int = 1,
) -> list[Line]:
    """Lines of all classes, the lowest (or highest) at the end in colour; many classes are a band with those
    few lines in it.

    courses: class -> (epochs, values).
    """
    ranked = sorted(courses, key=lambda name: courses[name][1][-1], reverse=not lowest)
    many = len(courses) > MANY
    stressed = ranked[: FOLLOWED if many else tail_size(len(courses))]
    lines = []
    if many:
        epochs = sorted(set.intersection(*(set(e) for e, _ in courses.values())))
        by_epoch = [dict(zip(e, y, strict=True)) for e, y in courses.values()]
        ranked_values = [sorted(values[epoch] for values in by_epoch) for epoch in epochs]
        low, high = [v[0] for v in ranked_values], [v[-1] for v in ranked_values]
        middle = [v[len(v) // 2] for v in ranked_values]
        label = f"median {percent(middle[-1], digits)}"
        lines.append(Line("median class", None, epochs, middle, low, high, label=label))
    else:
        rest = ranked[len(stressed) :]
        # More names than these would not fit beside the chart.
        named = len(rest) <= 8
        lines += [Line(name, None, *courses[name], label=name if named else "") for name in reversed(rest)]
    for name in reversed(stressed):
        label = f"{name} {percent(courses[name][1][-1], digits)}"
        lines.append(Line(name, colour, *courses[name], strong=True, label=label))
    return lines


def p_digits(comparison: Comparison) -> int:
    """Decimals that tell probabilities around 1/k apart when they are written in percent."""
    return 1 if len(comparison.classes) <= MANY else 2


def _probability(name: str, place: int) -> Pick:
    return lambda row: float(row["p"][place]) if row.get("p") and place < len(row["p"]) else None


def distribution_lines(comparison: Comparison) -> Figure | None:
    """How p moved over the run."""
    uniform = Rule(1 / max(1, len(comparison.classes)), "uniform", "reference")
    charts = _class_panels(comparison, _probability, "train", False, [uniform], p_digits(comparison))
    if not charts:
        return None
    return Figure(
        "distribution-training",
        "How the distribution moved",
        f"Probability p of each class over the epochs, in percent; {_coloured(comparison)} highest at the end"
        " in colour.",
        on_one_scale(charts),
        pair=len(charts) > 1,
    )
