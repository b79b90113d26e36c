"""The same charts as picture files, drawn with matplotlib from the same descriptions (charts.py), on paper white."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cfol_fast import atomic
from cfol_fast.errors import InputError
from cfol_fast.reporting.charts import (
    BarChart,
    DotChart,
    Figure,
    Line,
    LineChart,
    Matrix,
    share_ticks,
    spread,
    ticks,
)
from cfol_fast.reporting.svg import shorten
from cfol_fast.reporting.theme import INK, SERIES
from cfol_fast.reporting.wording import percent, points

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOTS_PER_INCH = 160
_INK = {name: pair[0] for name, pair in INK.items()}
_RULE = {"average": _INK["text"], "worst": _INK["worst"], "reference": _INK["faint"]}
_STYLE: Any = {
    "font.size": 9.5,
    "font.family": ["sans-serif"],
    "axes.edgecolor": _INK["faint"],
    "axes.labelcolor": _INK["muted"],
    "text.color": _INK["text"],
    "xtick.color": _INK["muted"],
    "ytick.color": _INK["muted"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": _INK["grid"],
    "svg.fonttype": "none",
}


def available() -> bool:
    """Whether matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def write(figure: Figure, path: Path, heading: str = "", note: str = "") -> Path:
    """Write one figure as a PNG; `heading` stands above it (the figure's title when empty), `note` small below that."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Picture
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise InputError("pictures need matplotlib: pip install matplotlib") from None
    with matplotlib.rc_context(_STYLE):
        across = 2 if figure.pair else 1
        down = -(-len(figure.charts) // across)
        heights = [_height(chart) for chart in figure.charts]
        tall = [max(heights[row * across : (row + 1) * across]) for row in range(down)]
        top = 0.5 + 0.26 * bool(figure.legend) + 0.22 * bool(note)
        size = (10.0, sum(tall) + top + 0.1)
        layout = ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - top / size[1]), wspace=0.04, hspace=0.05)
        picture = Picture(figsize=size, dpi=DOTS_PER_INCH, layout=layout, facecolor="white")
        FigureCanvasAgg(picture)
        inch = 1 / size[1]
        picture.text(
            0.012, 1 - 0.16 * inch, heading or figure.title, fontsize=13, fontweight="bold", va="top"
        )
        if note:
            picture.text(0.012, 1 - 0.46 * inch, note, fontsize=9, va="top", color=_INK["muted"])
        _legend(picture, figure, 1 - (0.66 if note else 0.44) * inch)
        grid = picture.subplots(down, across, squeeze=False, gridspec_kw={"height_ratios": tall})
        for place, axes in enumerate(grid.flat):
            if place < len(figure.charts):
                _draw(axes, figure.charts[place])
            else:
                axes.set_axis_off()
        buffer = io.BytesIO()
        picture.savefig(buffer, format="png")
    atomic.write_bytes(path, buffer.getvalue())
    return path


def _colour(slot: int | None) -> str:
    return _INK["faint"] if slot is None else SERIES[slot][0]


def _legend(picture: Any, figure: Figure, y: float) -> None:
    from matplotlib.patches import Patch

    if figure.legend:
        handles = [
            Patch(color=_colour(colour), alpha=0.3 if pale else 1, label=name)
            for name, colour, pale in figure.legend
        ]
        picture.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(0.006, y), ncols=min(5, len(handles)), frameon=False,
            borderaxespad=0, handlelength=0.9, handleheight=0.9, columnspacing=1.4, labelcolor=_INK["muted"],
        )  # fmt: skip


def _height(chart: Any) -> float:
    """Inches that a chart needs."""
    if isinstance(chart, BarChart):
        if chart.columns:
            return 2.6
        front = sum(not bars.pale for bars in chart.bars)
        return 0.8 + len(chart.categories) * (0.17 * front + 0.13)
    if isinstance(chart, DotChart):
        return 0.4 + 0.36 * len(chart.rows)
    if isinstance(chart, Matrix):
        return 4.6 if len(chart.rows) == len(chart.columns) else 3.6
    return 3.3


def _draw(axes: Axes, chart: Any) -> None:
    title = chart.title + (f"\n{chart.note}" if chart.note else "")
    above = "\n" if isinstance(chart, BarChart) and chart.rules and not chart.columns else ""
    if title:
        axes.set_title(title + above, loc="left", fontsize=10.5, fontweight="bold")
    if isinstance(chart, BarChart):
        (_columns if chart.columns else _rows)(axes, chart)
    elif isinstance(chart, LineChart):
        _lines(axes, chart)
    elif isinstance(chart, DotChart):
        _dots(axes, chart)
    else:
        _matrix(axes, chart)
    axes.tick_params(length=0)


def _share_axis(axis: Any, top: float) -> None:
    marks = share_ticks(top)
    axis.set_ticks([value for value, _ in marks], [label for _, label in marks])


def _error(low: float | None, high: float | None, value: float) -> list[list[float]] | None:
    if low is None or high is None:
        return None
    return [[max(0.0, value - low)], [max(0.0, high - value)]]


_WHISKER: dict[str, Any] = {
    "ecolor": _INK["text"],
    "elinewidth": 0.9,
    "capsize": 1.8,
    "capthick": 0.9,
    "fmt": "none",
    "alpha": 0.7,
}


def _rows(axes: Axes, chart: BarChart) -> None:
    top = chart.top()
    front = [bars for bars in chart.bars if not bars.pale]
    thick = 0.46 if len(front) == 1 else 0.76 / len(front)
    for place in chart.marked:
        axes.axhspan(place - 0.47, place + 0.47, color=_INK["tail"], zorder=0)
    for bars in chart.bars:
        for place, value in enumerate(bars.values):
            if value is None:
                continue
            if bars.pale:
                axes.barh(place, value, 0.8, color=_colour(bars.colour), alpha=0.25, zorder=2)
                continue
            at = place + (front.index(bars) - (len(front) - 1) / 2) * thick
            axes.barh(at, value, thick * 0.9, color=_colour(bars.colour), zorder=3)
            error = _error(bars.low[place], bars.high[place], value)
            if error:
                axes.errorbar(value, at, xerr=error, zorder=4, **_WHISKER)
            if chart.numbers:
                end = max(value, bars.high[place] or 0) + 0.01 * top
                axes.text(end, at, percent(value, chart.digits), va="center", fontsize=8, color=_INK["muted"])
    for place, change in enumerate(chart.changes):
        tone = _INK["good" if change > 0 else "bad"]
        axes.annotate(
            points(change),
            (1.045, place),
            xycoords=("axes fraction", "data"),
            va="center",
            ha="right",
            color=tone,
        )
    for row, rule in enumerate(reversed(chart.rules)):
        axes.axvline(
            rule.value, color=_RULE[rule.kind], lw=1.3, ls="--" if rule.kind == "reference" else "-", zorder=5
        )
        axes.annotate(
            rule.label, (min(rule.value, top * 0.93), 1), (0, 2 + 11 * row), xycoords=("data", "axes fraction"),
            textcoords="offset points", ha="center", fontsize=8.5, color=_RULE[rule.kind], fontweight="bold",
        )  # fmt: skip
    axes.set(xlim=(0, top * 1.0001), ylim=(len(chart.categories) - 0.5, -0.5))
    axes.set_yticks(
        range(len(chart.categories)), [shorten(name, 190) for name in chart.categories], color=_INK["text"]
    )
    _share_axis(axes.xaxis, top)
    axes.grid(axis="x")


def _columns(axes: Axes, chart: BarChart) -> None:
    top = chart.top()
    places = range(len(chart.categories))
    for place in chart.marked:
        axes.axvspan(place - 0.5, place + 0.5, color=_INK["tail"], lw=0, zorder=0)
    for bars in chart.bars:
        heights = [value or 0.0 for value in bars.values]
        axes.bar(
            places,
            heights,
            0.86,
            color=_colour(bars.colour),
            alpha=0.25 if bars.pale else 1,
            zorder=2 + (not bars.pale),
        )
        for place, value in enumerate(bars.values):
            if value is None or len(chart.categories) > 120:
                continue
            error = _error(bars.low[place], bars.high[place], value)
            if error:
                thin = {**_WHISKER, "capsize": 0, "elinewidth": 0.7}
                axes.errorbar(place, value, yerr=error, zorder=4, **thin)
    for rule in chart.rules:
        axes.axhline(
            rule.value, color=_RULE[rule.kind], lw=1.3, ls="--" if rule.kind == "reference" else "-", zorder=5
        )
    heights = spread([rule.value for rule in chart.rules], top * 0.075, 0, top)
    for rule, y in zip(chart.rules, heights, strict=True):
        axes.annotate(
            rule.label, (1, y), (5, 0), xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
            fontsize=8.5, color=_RULE[rule.kind], fontweight="bold", annotation_clip=False,
        )  # fmt: skip
    axes.set(
        xlim=(-0.6, len(chart.categories) - 0.4),
        ylim=(0, top),
        xticks=[],
        xlabel=f"{len(chart.categories)} classes",
    )
    _share_axis(axes.yaxis, top)
    axes.grid(axis="y")


def _lines(axes: Axes, chart: LineChart) -> None:
    top = chart.top()
    first, last = chart.span()
    for line in chart.lines:
        faint = line.colour is None and not line.low
        colour = _colour(line.colour)
        if line.low and line.high:
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.16, lw=0)
        axes.plot(
            line.x, line.y, color=colour, lw=2.1 if line.strong else 1.0 if faint else 1.5, ls="--" if line.dashed else "-",
            alpha=0.6 if faint else 1,
        )  # fmt: skip
    labelled = [line for line in chart.lines if line.label]
    labelled += [Line(rule.label, None, [last], [rule.value], label=rule.label) for rule in chart.rules]
    heights = spread([line.y[-1] for line in labelled], top * 0.052, 0, top)
    for line, y in zip(labelled, heights, strict=True):
        colour = _INK["muted"] if line.colour is None else _colour(line.colour)
        axes.annotate(
            line.label, (last, y), (5, 0), textcoords="offset points", va="center", fontsize=8.5, color=colour,
            fontweight="bold" if line.strong else "normal", annotation_clip=False,
        )  # fmt: skip
    for rule in chart.rules:
        axes.axhline(rule.value, color=_RULE[rule.kind], lw=1.1, ls="--")
    for at, label in chart.marks:
        axes.axvline(at, color=_INK["faint"], lw=1, ls=":")
        axes.annotate(
            label,
            (at, top),
            (-3, -9),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color=_INK["muted"],
        )
    axes.set(xlim=(first, last), ylim=(0, top), xlabel=chart.x_label)
    axes.set_xticks(ticks(first, last, 6, whole=True))
    _share_axis(axes.yaxis, top)
    axes.grid(axis="y")


def _dots(axes: Axes, chart: DotChart) -> None:
    for place in range(len(chart.rows)):
        found = [value for dots in chart.dots if (value := dots.values[place]) is not None]
        if found:
            axes.plot(
                [min(found), max(found)], [place, place], color=_INK["faint"], lw=1.6, alpha=0.5, zorder=2
            )
        for dots in chart.dots:
            value = dots.values[place]
            if value is None:
                continue
            low, high = dots.low[place], dots.high[place]
            error = _error(low, high, value)
            if error:
                axes.errorbar(value, place, xerr=error, zorder=3, **_WHISKER)
            axes.plot([value], [place], "o", color=_colour(dots.colour), ms=8, mec="white", mew=1.2, zorder=4)
            if len(chart.dots) <= 2:
                upper = value == max(found)
                at = (high or value) + 0.012 if upper else (low if low is not None else value) - 0.012
                axes.text(
                    at,
                    place,
                    percent(value),
                    va="center",
                    ha="left" if upper else "right",
                    fontsize=8,
                    color=_INK["muted"],
                )
    axes.set(xlim=(0, chart.limit), ylim=(len(chart.rows) - 0.5, -0.5))
    axes.set_yticks(range(len(chart.rows)), chart.rows, color=_INK["text"])
    _share_axis(axes.xaxis, chart.limit)
    axes.grid(axis="x")


def _matrix(axes: Axes, chart: Matrix) -> None:
    from matplotlib.colors import to_rgb

    picture = []
    for row, values in enumerate(chart.values):
        line = []
        for column, share in enumerate(values):
            tint = to_rgb(_colour(chart.colour) if chart.right[row] == column else _INK["worst"])
            strength = share**0.5 if share >= 0.005 else 0.0
            line.append(
                [1 - strength * (1 - channel) for channel in tint] if strength else list(to_rgb("#f7f6f3"))
            )
            if share >= 0.005:
                colour = "white" if strength > 0.62 else _INK["text"]
                axes.text(
                    column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=7, color=colour
                )
        picture.append(line)
    axes.imshow(picture, aspect="auto" if len(chart.rows) != len(chart.columns) else "equal")
    axes.set_xticks(
        range(len(chart.columns)), [shorten(name, 120) for name in chart.columns], rotation=90, fontsize=8
    )
    axes.set_yticks(range(len(chart.rows)), [shorten(name, 120) for name in chart.rows], fontsize=8)
    axes.xaxis.tick_top()
    for spine in axes.spines.values():
        spine.set_visible(False)
