"""What a chart shows, without how it is drawn.

The page's SVG (svg.py) and the picture files (png.py) are both drawn from these descriptions, so they cannot disagree. All values
are shares from 0 to 1; colours are slots of theme.SERIES, None for the muted ink.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Rule:
    """A line across a chart: kind "average" (black), "worst" (red) as in the paper's plots, or "reference" (dashed)."""

    value: float
    label: str
    kind: str


@dataclass(frozen=True)
class Bars:
    """One value a category; None where there is none. `low`/`high`: the ends of its error bar."""

    name: str
    colour: int | None
    values: list[float | None]
    low: list[float | None]
    high: list[float | None]
    pale: bool = False  # drawn wide and pale behind the others: the clean accuracy behind the robust one


@dataclass(frozen=True)
class BarChart:
    title: str
    categories: list[str]
    bars: list[Bars]
    rules: list[Rule] = field(default_factory=list)
    marked: frozenset[int] = frozenset()  # categories with a tinted ground: the 20 % tail
    columns: bool = False  # thin upright bars without names, for many categories
    note: str = ""
    numbers: bool = False  # write the value at the end of each bar
    changes: list[float] = field(default_factory=list)  # differences by category, written at the right edge
    digits: int = 1  # decimals of percentages
    limit: float | None = None  # end of the scale; None: chosen from the values

    def top(self) -> float:
        if self.limit is not None:
            return self.limit
        values = [v for bars in self.bars for v in [*bars.values, *bars.high] if v is not None]
        return round_up(max([*values, *(rule.value for rule in self.rules), 1e-6]))


@dataclass(frozen=True)
class Line:
    name: str
    colour: int | None  # None: one of many, in the muted ink
    x: list[float]
    y: list[float]
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    strong: bool = False
    dashed: bool = False
    label: str = ""  # written at the line's end


@dataclass(frozen=True)
class LineChart:
    title: str
    lines: list[Line]
    x_label: str
    rules: list[Rule] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)  # upright dashed lines: (x, label)
    note: str = ""
    limit: float | None = None
    digits: int = 1

    def top(self) -> float:
        if self.limit is not None:
            return self.limit
        values = [v for line in self.lines for v in [*line.y, *line.high]]
        return round_up(max([*values, *(rule.value for rule in self.rules), 1e-6]))

    def span(self) -> tuple[float, float]:
        xs = [x for line in self.lines for x in line.x]
        low, high = min(xs), max(xs)
        return (low, high) if high > low else (low - 0.5, high + 0.5)


@dataclass(frozen=True)
class Dots:
    name: str
    colour: int | None
    values: list[float | None]
    low: list[float | None]
    high: list[float | None]


@dataclass(frozen=True)
class DotChart:
    """One row a measure, one dot a group, joined by a thin line: how far apart the groups are in each measure."""

    title: str
    rows: list[str]
    dots: list[Dots]
    note: str = ""
    limit: float = 1.0


@dataclass(frozen=True)
class Matrix:
    """Shares of each row's examples by column; `right[i]` is the column that is correct for row i."""

    title: str
    rows: list[str]
    columns: list[str]
    values: list[list[float]]
    right: list[int]
    colour: int
    note: str = ""


Chart = BarChart | LineChart | DotChart | Matrix


@dataclass(frozen=True)
class Figure:
    """Charts that belong together under one heading; one picture file. `pair`: two side by side where there is room."""

    key: str
    title: str
    caption: str
    charts: list[Chart]
    legend: list[tuple[str, int | None, bool]] = field(default_factory=list)  # (name, colour, pale)
    pair: bool = False


def on_one_scale(charts: Sequence[Chart]) -> list[Chart]:
    """The same scale in panels that are compared by eye."""
    scaled = [chart for chart in charts if isinstance(chart, (LineChart, BarChart))]
    top = max((chart.top() for chart in scaled), default=1.0)
    return [
        replace(chart, limit=top) if isinstance(chart, (LineChart, BarChart)) else chart for chart in charts
    ]


def round_up(value: float) -> float:
    """The next end of a scale at or above `value` (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8 times a power of ten), at most 1 for shares."""
    power = 10.0 ** math.floor(math.log10(value))
    for factor in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10):
        if factor * power >= value * (1 - 1e-9):
            return min(1.0, factor * power) if value <= 1 else factor * power
    return 10 * power


def ticks(low: float, high: float, about: int = 5, whole: bool = False) -> list[float]:
    """Round positions from low to high, roughly `about` of them; `whole`: integers only (epochs)."""
    raw = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    if whole:
        step = max(1.0, round(step))
    first = math.ceil(low / step - 1e-9)
    found = []
    while first * step <= high + step * 1e-6:
        found.append(first * step)
        first += 1
    return found


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions as near to the wanted ones as can be (least squares), at least `gap` apart, within [low, high] if they fit."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    # With i * gap taken off, "at least gap apart" means "not falling": neighbours that fall are pooled at their mean.
    pools: list[list[float]] = []  # (sum, count)
    for rank, i in enumerate(order):
        pools.append([wanted[i] - rank * gap, 1])
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] > pools[-1][0] / pools[-1][1]:
            total, count = pools.pop()
            pools[-1][0] += total
            pools[-1][1] += count
    levels = [total / count for total, count in pools for _ in range(int(count))]
    top = max(low, high - (len(wanted) - 1) * gap)
    placed = [0.0] * len(wanted)
    for rank, i in enumerate(order):
        placed[i] = min(max(levels[rank], low), top) + rank * gap
    return placed


def share_ticks(top: float, about: int = 5) -> list[tuple[float, str]]:
    """Ticks of a scale of shares, written in percent."""
    return [(value, f"{100 * value:g}".rstrip()) for value in (round(t, 10) for t in ticks(0, top, about))]
