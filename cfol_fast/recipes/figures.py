"""The paper's figures from a recipe's table, as descriptions that the report draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cfol_fast.plain_text import percent
from cfol_fast.recipes.recipe import Figure as Wanted
from cfol_fast.reporting.chart import BarChart, Chart, Colour, Figure, Line, LineChart, Rule, Series
from cfol_fast.reporting.charts import class_rules
from cfol_fast.reporting.groups import MANY, method_colour
from cfol_fast.reporting.training_charts import lines_of_classes
from cfol_fast.runs.records import Run, load_run

# Of a model that no method of ours trained.
OTHER_COLOUR = "violet"


def build(figures: Sequence[Wanted], table: Mapping[str, Any], out: Path) -> list[Figure]:
    """One picture for each figure of the recipe, with a row of panels per block."""
    return [_figure(wanted, table, out) for wanted in figures]


def _figure(wanted: Wanted, table: Mapping[str, Any], out: Path) -> Figure:
    makers = {"bars": _bars, "sorted": _sorted, "distribution": _distribution, "epochs": _epochs}
    charts: list[Chart] = []
    blocks = _different(table["blocks"])
    for block in blocks:
        entries = {entry["name"]: entry for entry in block["entries"]}
        charts += makers[wanted.kind](wanted, block["title"] if len(blocks) > 1 else "", entries, out)
    seeds = max((len(e["seeds"]) for b in blocks for e in b["entries"]), default=1)
    spread = (
        "; error bars: one standard deviation over the seeds"
        if seeds > 1 and wanted.kind in ("bars", "distribution")
        else ""
    )
    caption = f"In percent{spread}." + (
        f" {table['paper']} of the paper: {table['caption']}" if table["caption"] else ""
    )
    return Figure(wanted.name, wanted.title, caption, charts, _legend(charts, wanted), pair=len(charts) > 1)


def _different(blocks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Blocks that show the same numbers (the mini scale's one data set for several of the paper's) are drawn
    once.
    """
    found: list[Mapping[str, Any]] = []
    for block in blocks:
        if not any(_numbers(block) == _numbers(other) for other in found):
            found.append(block)
    return found


def _numbers(block: Mapping[str, Any]) -> list[Any]:
    return [(entry["name"], entry["per_class"]) for entry in block["entries"]]


def _legend(charts: Sequence[Chart], wanted: Wanted) -> list[tuple[str, Colour, bool]]:
    if wanted.kind != "sorted":
        return []
    lines = [line for chart in charts if isinstance(chart, LineChart) for line in chart.lines]
    return list(dict.fromkeys((line.name, line.colour, False) for line in lines))


def _title(wanted: Wanted, place: str, entry: Mapping[str, Any], what: str) -> str:
    """Short, since the lines' labels stand beside it: what is shown is said only where panels differ
    in it.
    """
    mixed = len({kind for _, kind in wanted.panels}) > 1
    return " · ".join(part for part in (place, entry["title"], what if mixed else "") if part)


def _colour(entry: Mapping[str, Any]) -> str:
    return method_colour(entry["method"]) or OTHER_COLOUR


def _first_run(entry: Mapping[str, Any], out: Path) -> Run | None:
    """The run of the first seed: its metrics are drawn where the table has no mean over the seeds."""
    return load_run(out / "runs" / entry["runs"][0]) if entry["runs"] else None


def _bars(wanted: Wanted, place: str, entries: Mapping[str, Any], out: Path) -> list[Chart]:
    leader = entries[wanted.order or wanted.panels[0][0]]["per_class"][_kind(wanted, wanted.order)]
    names = list(leader or {})
    many = len(names) > MANY
    if wanted.order or many:
        names.sort(key=lambda name: leader[name][0])
    charts: list[Chart] = []
    for name, what in wanted.panels:
        entry = entries[name]
        classes = entry["per_class"][what]
        if not classes:
            continue
        values = [classes[c][0] for c in names]
        spread = [classes[c][1] for c in names]
        low = [None if d is None else max(0.0, v - d) for v, d in zip(values, spread, strict=True)]
        high = [None if d is None else min(1.0, v + d) for v, d in zip(values, spread, strict=True)]
        rules = class_rules(sum(values) / len(values), min(values))
        bars = [Series(what, _colour(entry), list(values), low, high)]
        charts.append(
            BarChart(_title(wanted, place, entry, what), names, bars, rules, columns=many, limit=1.0)
        )
    return charts


def _kind(wanted: Wanted, name: str | None) -> str:
    return next((what for entry, what in wanted.panels if entry == name), wanted.panels[0][1])


def _sorted(wanted: Wanted, place: str, entries: Mapping[str, Any], out: Path) -> list[Chart]:
    """Every model's class accuracies from its worst to its best class: where the curves cross, the
    gain ends.
    """
    lines = []
    for name, what in wanted.panels:
        entry = entries[name]
        values = sorted(value[0] for value in (entry["per_class"][what] or {}).values())
        if values:
            x = [float(i + 1) for i in range(len(values))]
            lines.append(Line(entry["title"], _colour(entry), x, values, strong=True, label=entry["title"]))
    return [LineChart(place, lines, "classes, worst first", limit=1.0)] if lines else []


def _distribution(wanted: Wanted, place: str, entries: Mapping[str, Any], out: Path) -> list[Chart]:
    charts: list[Chart] = []
    for name, what in wanted.panels:
        entry = entries[name]
        run = _first_run(entry, out)
        rows = [row["p"] for row in run.train if row.get("p")] if run else []
        if run is None or not rows:
            continue
        p = [float(value) for value in rows[-1]]
        nothing: list[float | None] = [None] * len(p)
        uniform = Rule(1 / len(p), f"uniform {percent(1 / len(p))}", "reference")
        bars = [Series("p", _colour(entry), list(p), nothing, nothing)]
        many = len(p) > MANY
        title = _title(wanted, place, entry, what)
        charts.append(BarChart(title, run.classes, bars, [uniform], columns=many, numbers=not many))
    return charts


def _epochs(wanted: Wanted, place: str, entries: Mapping[str, Any], out: Path) -> list[Chart]:
    """Up to the epoch of the kept checkpoint, as in the paper."""
    charts: list[Chart] = []
    for name, what in wanted.panels:
        entry = entries[name]
        run = _first_run(entry, out)
        if run is None:
            continue
        last = run.checkpoints.get("best-average", {}).get("epoch") or float("inf")
        rows = [row for row in run.validation if row[what] and row["epoch"] <= last]
        if rows:
            x = [float(row["epoch"]) for row in rows]
            courses = {c: (x, [row[what].per_class[c] for row in rows]) for c in run.classes}
            lines = lines_of_classes(courses, _colour(entry))
            charts.append(LineChart(_title(wanted, place, entry, what), lines, "epoch", limit=1.0))
    return charts
