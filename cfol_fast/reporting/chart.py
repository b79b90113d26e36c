"""What a chart shows, without how it is drawn: a new kind of chart begins here.

The page and the picture files are both drawn from these descriptions by svg.py. All values are shares from 0
to 1; colours are names of theme.SERIES, None for the muted ink.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

Colour = str | None


@dataclass(frozen=True)
class Rule:
    """A line across a chart: kind "average" (black), "worst" (red) as in the paper's plots, or "reference"
    (dashed).
    """

    value: float
    label: str
    kind: str


@dataclass(frozen=True)
class Series:
    """One value per category, as bars or dots; None where there is none.

    `low` and `high` are the ends of its error bar.

    pale: drawn wide and pale behind the others, as the clean accuracy is behind the robust one.
    """

    name: str
    colour: Colour
    values: list[float | None]
    low: list[float | None]
    high: list[float | None]
    pale: bool = False


@dataclass(frozen=True)
class BarChart:
    """marked: the categories with a tinted ground (the 20 % tail). columns: thin upright bars without names,
    for many categories.
    numbers: write the value at the end of each bar. changes: differences by category, written at the right
    edge. digits: decimals of percentages. limit: the end of the scale, chosen from the values where it is
    None.
    """

    title: str
    categories: list[str]
    bars: list[Series]
    rules: list[Rule] = field(default_factory=list)
    marked: frozenset[int] = frozenset()
    columns: bool = False
    note: str = ""
    numbers: bool = False
    changes: list[float] = field(default_factory=list)
    digits: int = 1
    limit: float | None = None

    def top(self) -> float:
        return self.limit or _top((v for bars in self.bars for v in [*bars.values, *bars.high]), self.rules)


@dataclass(frozen=True)
class Line:
    """colour None: one of many lines, in the muted ink. label: written at the line's end. low, high: a band
    around it.
    """

    name: str
    colour: Colour
    x: list[float]
    y: list[float]
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    strong: bool = False
    dashed: bool = False
    label: str = ""


@dataclass(frozen=True)
class LineChart:
    """marks: upright dashed lines, (x, label). whole: x counts something, such as epochs."""

    title: str
    lines: list[Line]
    x_label: str
    rules: list[Rule] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    note: str = ""
    limit: float | None = None
    digits: int = 1
    whole: bool = True

    def top(self) -> float:
        return self.limit or _top((v for line in self.lines for v in [*line.y, *line.high]), self.rules)

    def span(self) -> tuple[float, float]:
        xs = [x for line in self.lines for x in line.x]
        low, high = min(xs), max(xs)
        return (low, high) if high > low else (low - 0.5, high + 0.5)


@dataclass(frozen=True)
class DotChart:
    """One row per measure, one dot per group, joined by a thin line: how far apart the groups are in each
    measure.
    """

    title: str
    rows: list[str]
    dots: list[Series]
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
    colour: Colour
    note: str = ""


@dataclass(frozen=True)
class Point:
    """One method (or class): its two values and, where they are known, the intervals of both.

    labelled: its name stands in the margin; it shows on hovering in any case.
    """

    name: str
    colour: Colour
    x: float
    y: float
    x_interval: tuple[float, float] | None = None
    y_interval: tuple[float, float] | None = None
    strong: bool = False
    labelled: bool = True


@dataclass(frozen=True)
class ScatterChart:
    """Two measures against each other, a cross of intervals around each point; names stand in the margin,
    with a thin line. ends: of the two axes, where several charts share them.
    """

    title: str
    points: list[Point]
    x_label: str
    y_label: str
    note: str = ""
    x_name: str = "average"
    y_name: str = "worst class"
    ends: tuple[tuple[float, float], tuple[float, float]] | None = None


Chart = BarChart | LineChart | DotChart | Matrix | ScatterChart


@dataclass(frozen=True)
class Figure:
    """Charts that belong together under one heading; one picture file.

    legend: (name, colour, pale). pair: two charts side by side where there is room.
    """

    key: str
    title: str
    caption: str
    charts: list[Chart]
    legend: list[tuple[str, Colour, bool]] = field(default_factory=list)
    pair: bool = False


def _top(values: Iterable[float | None], rules: Sequence[Rule]) -> float:
    known = [value for value in values if value is not None]
    return round_up(max([*known, *(rule.value for rule in rules), 1e-6]))


def on_one_scale(charts: Sequence[BarChart] | Sequence[LineChart]) -> list[Chart]:
    """The same scale in panels that are compared by eye."""
    top = max((chart.top() for chart in charts), default=1.0)
    return [replace(chart, limit=top) for chart in charts]


def round_up(value: float) -> float:
    """The next end of a scale at or above `value` (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8 times a power of ten),
    at most 1 for shares.
    """
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
    """Positions as near to the wanted ones as can be (least squares), at least `gap` apart, within [low,
    high] if they fit.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    # With i * gap taken off, "at least gap apart" means "not falling": neighbours that fall are pooled at
    # their mean. A pool is [sum, count].
    pools: list[list[float]] = []
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
    return [(value, f"{100 * value:g}") for value in (round(t, 10) for t in ticks(0, top, about))]
