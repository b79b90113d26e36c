"""Which charts a comparison has, as descriptions (chart.py) filled from the groups' final results: a new
chart goes here.

What is drawn over the epochs stands in training_charts.py, over the radius of the attack in radius_charts.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from cfol_fast.plain_text import percent
from cfol_fast.reporting import radius_charts, training_charts
from cfol_fast.reporting.chart import (
    BarChart,
    Chart,
    DotChart,
    Figure,
    Matrix,
    Point,
    Rule,
    ScatterChart,
    Series,
    on_one_scale,
)
from cfol_fast.reporting.groups import MANY, SPLITS, Comparison, Group, Stat, stat_of
from cfol_fast.runs.frame import Summary
from cfol_fast.runs.metrics import COUNT, SHARE, Metric, tail_size

# Classes with a name in the chart of training against test errors.
LABELLED = 15
# The largest confusion matrix whose cells can be read.
MATRIX = 20


def build(comparison: Comparison) -> list[Figure]:
    """Every figure the data allow, in the order of the page."""
    makers: list[Callable[[Comparison], Figure | None]] = [
        train_and_test,
        measures,
        class_bars,
        tail_bars,
        class_change,
        radius_charts.radius_lines,
        training_charts.accuracy_lines,
        training_charts.class_lines,
        distribution,
        training_charts.distribution_lines,
        confusion,
    ]
    made = [maker(comparison) for maker in makers]
    return [figure for figure in made if figure is not None]


def _series(name: str, colour: str, stats: Sequence[Stat | None], pale: bool = False) -> Series:
    return Series(
        name,
        colour,
        [stat.mean if stat else None for stat in stats],
        [stat.low if stat else None for stat in stats],
        [stat.high if stat else None for stat in stats],
        pale,
    )


def _robust_classes(groups: Sequence[Group], names: Sequence[str]) -> list[Series]:
    return [
        _series(group.label, group.colour, [group.class_stat("robust", name) for name in names])
        for group in groups
    ]


def class_rules(average: float, worst: float) -> list[Rule]:
    """The two lines of the paper's bar plots."""
    return [
        Rule(average, f"average {percent(average)}", "average"),
        Rule(worst, f"worst {percent(worst)}", "worst"),
    ]


def _legend(groups: Sequence[Group]) -> list[tuple[str, str | None, bool]]:
    return [(group.legend, group.colour, False) for group in groups]


SELECTED = "95 % interval (of the tail and the worst class: for whichever classes they are)"


def _whiskers(comparison: Comparison, interval: str = "95 % Wilson interval") -> str:
    """What the error bars are, for a caption. interval: of a single run's accuracies."""
    deviations = [
        stat
        for group in comparison.groups
        if (stat := group.stat("robust", "worst") or group.stat("clean", "worst"))
    ]
    several = any(stat.deviation is not None for stat in deviations)
    single = any(stat.deviation is None and stat.low is not None for stat in deviations)
    if several and single:
        return f"Error bars: one standard deviation over the seeds, or the {interval} of a single run."
    if single:
        return f"Error bars: the {interval}, for these test images."
    return "Error bars: one standard deviation over the seeds." if several else ""


def _shown(comparison: Comparison) -> list[Group]:
    return [group for group in comparison.groups if group.accuracies("robust") or group.accuracies("clean")]


def measures(comparison: Comparison) -> Figure | None:
    """The figures of every group on one scale; numbers of classes as shares of all."""
    groups = _shown(comparison)
    rows = [
        (split, metric)
        for split in SPLITS
        for metric in comparison.metrics
        if any(group.stat(split, metric.key) is not None for group in groups)
    ]
    if not rows:
        return None

    def stat(group: Group, split: str, metric: Metric) -> Stat | None:
        found = group.stat(split, metric.key)
        return found if metric.unit == SHARE or found is None else found.times(1 / len(comparison.classes))

    dots = [_series(group.label, group.colour, [stat(group, *row) for row in rows]) for group in groups]
    names = [f"{SPLITS[split]} {metric.phrase(comparison.floor)}" for split, metric in rows]
    return Figure(
        "measures",
        "Average, tail and worst class",
        "Accuracy in percent, without an attack (clean) and under it (robust). The 20 % tail is the mean"
        f" over the {comparison.tail_size} worst of {len(comparison.classes)} classes. "
        + ("Numbers of classes: in percent of all. " if any(m.unit == COUNT for _, m in rows) else "")
        + _whiskers(comparison, SELECTED),
        [DotChart("", names, dots)],
        _legend(groups),
    )


def class_bars(comparison: Comparison) -> Figure | None:
    """The paper's bar plots: a panel per group, the classes in the same order."""
    groups = _shown(comparison)
    order = comparison.order()
    many = len(order) > MANY
    charts: list[Chart] = []
    for group in groups:
        main = "robust" if group.accuracies("robust") else "clean"
        average, worst = group.stat(main, "average"), group.stat(main, "worst")
        if average is None or worst is None:
            continue
        bars = [_series(main, group.colour, [group.class_stat(main, name) for name in order])]
        if main == "robust" and group.accuracies("clean"):
            stats = [group.class_stat("clean", name) for name in order]
            if many:
                # In thin columns a second error bar would hide the bar itself.
                stats = [Stat(stat.mean) if stat else None for stat in stats]
            bars.insert(0, _series("clean", group.colour, stats, pale=True))
        rules = class_rules(average.mean, worst.mean)
        tail = _tail_of(group, order, main)
        charts.append(BarChart(group.heading, order, bars, rules, tail, many, group.note, limit=1.0))
    if not charts:
        return None
    ordered = (
        "The classes are sorted by the baseline's robust accuracy, in every panel alike. " if many else ""
    )
    return Figure(
        "classes",
        "Accuracy by class",
        "Robust accuracy (solid) before clean accuracy (pale), in percent. The black line is the average and"
        " the red one the worst class, both robust; the tinted classes are the 20 % tail."
        f" {ordered}{_whiskers(comparison)}",
        charts,
        [("robust", None, False), ("clean", None, True)],
        pair=not many and len(charts) > 1,
    )


def _tail_of(group: Group, order: Sequence[str], split: str) -> frozenset[int]:
    """Positions of the classes in the group's own tail."""
    stats = [
        (stat.mean, place) for place, name in enumerate(order) if (stat := group.class_stat(split, name))
    ]
    return frozenset(place for _, place in sorted(stats)[: tail_size(len(stats))])


def train_and_test(comparison: Comparison) -> Figure | None:
    """Where the worst class says little: the training error of each class against its test error."""
    if comparison.leading.key == "worst":
        return None
    charts: list[ScatterChart] = []
    for group in _shown(comparison):
        errors = _class_errors(group, comparison.classes)
        tested = [name for name in comparison.ranked() if group.class_stat("robust", name) and name in errors]
        points = []
        for name in tested:
            stat = group.class_stat("robust", name)
            assert stat is not None
            points.append(Point(name, group.colour, errors[name], 1 - stat.mean))
        lowest = {one.name for one in sorted(points, key=lambda one: -one.y)[:LABELLED]}
        points = [replace(one, labelled=one.name in lowest) for one in points]
        if points:
            charts.append(
                ScatterChart(
                    group.heading,
                    points,
                    "training error of the last epoch, %",
                    "test error under attack, %",
                    group.note,
                    "training error",
                    "test error",
                )
            )
    if not charts:
        return None
    every = [point for chart in charts for point in chart.points]
    ends = _ends([point.x for point in every]), _ends([point.y for point in every])
    return Figure(
        "train-test",
        "Training against test error, class by class",
        "A dot for each class: how much of its training images was wrong under attack in the last epoch, and"
        f" how much of its test images is; the {LABELLED} with the highest test error by name. A class to the"
        " left and high up is memorised: its training error, which the bandit hears, no longer shows how weak"
        " it is.",
        [replace(chart, ends=ends) for chart in charts],
        pair=len(charts) > 1,
    )


def _ends(shares: Sequence[float]) -> tuple[float, float]:
    """Of an axis that all groups share."""
    margin = max(0.05 * (max(shares) - min(shares)), 0.005)
    return max(0.0, min(shares) - margin), min(1.0, max(shares) + margin)


def _class_errors(group: Group, classes: Sequence[str]) -> dict[str, float]:
    """The training errors of the classes in the last epoch, means over the seeds; without classes that a run
    has none of.
    """
    rows = [
        run.train[-1]["class_error"]
        for run in group.counted
        if run.train and run.train[-1].get("class_error")
    ]
    rows = [row for row in rows if len(row) == len(classes)]
    columns = dict(zip(classes, zip(*rows, strict=True), strict=True)) if rows else {}
    return {
        name: sum(errors) / len(errors)
        for name, errors in columns.items()
        if all(e is not None for e in errors)
    }


def tail_bars(comparison: Comparison) -> Figure | None:
    """For many classes: the baseline's 20 % tail by name, all groups together."""
    groups = [group for group in _shown(comparison) if group.accuracies("robust")]
    if len(comparison.classes) <= MANY or not groups:
        return None
    names = comparison.ranked()[: comparison.tail_size]
    return Figure(
        "tail",
        f"The {len(names)} weakest classes of {groups[0].label}",
        f"Robust accuracy in percent of the 20 % tail. {_whiskers(comparison)}",
        [BarChart("", names, _robust_classes(groups, names))],
        _legend(groups),
    )


def class_change(comparison: Comparison) -> Figure | None:
    """All groups in one panel, class by class, where the classes can be named."""
    groups = [group for group in _shown(comparison) if group.accuracies("robust") and group.tested]
    if len(groups) < 2 or len(comparison.classes) > MANY:
        return None
    order = [
        name for name in comparison.ranked() if any(group.class_stat("robust", name) for group in groups)
    ]
    base, focus = comparison.baseline, comparison.focus
    changes = []
    if len(groups) == 2 and focus is not None and base.tested:
        for name in order:
            before, after = base.class_stat("robust", name), focus.class_stat("robust", name)
            changes.append(after.mean - before.mean if before and after else 0.0)
    caption = f"Robust accuracy in percent, the weakest class of {base.label} on top"
    caption += ", with the change in points at the right. " if changes else ". "
    return Figure(
        "change",
        "Who gains, who pays",
        caption + _whiskers(comparison),
        [BarChart("", order, _robust_classes(groups, order), numbers=len(groups) <= 2, changes=changes)],
        _legend(groups),
    )


def distribution(comparison: Comparison) -> Figure | None:
    """The class distribution at the end of training, of the groups that learn one."""
    order = comparison.order()
    many = len(order) > MANY
    digits = training_charts.p_digits(comparison)
    charts = []
    for group in comparison.groups:
        last = [run.train[-1]["p"] for run in group.counted if run.train and run.train[-1].get("p")]
        last = [p for p in last if len(p) == len(comparison.classes)]
        if not last:
            continue
        by_class = dict(zip(comparison.classes, zip(*last, strict=True), strict=True))
        bars = _series(
            "p", group.colour, [stat_of(Summary(tuple(float(p) for p in by_class[name]))) for name in order]
        )
        uniform = Rule(1 / len(order), f"uniform {percent(1 / len(order), digits)}", "reference")
        tail = _tail_of(group, order, "robust")
        charts.append(
            BarChart(group.heading, order, [bars], [uniform], tail, many, group.note, not many, digits=digits)
        )
    if not charts:
        return None
    return Figure(
        "distribution",
        "The learned class distribution",
        "Probability p of drawing a class at the end of training, in percent. The tinted classes are the"
        " group's own 20 % tail under attack.",
        on_one_scale(charts),
        pair=not many and len(charts) > 1,
    )


def confusion(comparison: Comparison) -> Figure | None:
    """What the attacked images of a class were taken for; of many classes, the weakest ones and their most
    frequent confusions.
    """
    k = len(comparison.classes)
    charts: list[Chart] = []
    for group in comparison.groups:
        found = [accuracy.confusion for accuracy in group.accuracies("robust") if accuracy.confusion]
        if not found:
            continue
        shares = []
        for row in range(k):
            counts = [sum(matrix[row][column] for matrix in found) for column in range(k)]
            shares.append([count / max(1, sum(counts)) for count in counts])
        rows = list(range(k))
        columns = rows
        if k > MATRIX:
            rows = [comparison.classes.index(name) for name in comparison.ranked()[: MATRIX // 2]]
            extra = sorted(
                (c for c in range(k) if c not in rows), key=lambda c: -max(shares[row][c] for row in rows)
            )
            columns = rows + extra[: MATRIX - len(rows)]
        names = comparison.classes
        charts.append(
            Matrix(
                group.heading,
                [names[r] for r in rows],
                [names[c] for c in columns],
                [[shares[r][c] for c in columns] for r in rows],
                [columns.index(r) for r in rows],
                group.colour,
                group.note,
            )
        )
    if not charts:
        return None
    selected = (
        f" Shown are the {MATRIX // 2} weakest of {k} classes and what they are most often taken for."
        if k > MATRIX
        else ""
    )
    return Figure(
        "confusion",
        "Confusions under attack",
        "Share of each class's attacked test images (rows) by what the model takes them for (columns), in"
        f" percent. On the diagonal it is right; red is wrong.{selected}",
        charts,
        pair=len(charts) > 1,
    )
