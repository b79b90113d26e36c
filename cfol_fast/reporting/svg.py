"""Charts as SVG: classes for the style sheet (chart.css) instead of colours, so that light and dark are one
drawing.

A chart is drawn for a width, not scaled to it: the page holds a wide and a narrow drawing and shows the one
that fits, with text of the same size in both. Hovering names the exact value (a `title` in each mark).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape

from cfol_fast.plain_text import percent, points
from cfol_fast.reporting.chart import (
    BarChart,
    Chart,
    Colour,
    DotChart,
    Line,
    LineChart,
    Matrix,
    ScatterChart,
    Series,
    share_ticks,
    spread,
    ticks,
)
from cfol_fast.reporting.theme import ink_on, variable

# Text sizes in px, as in chart.css, and the mean width of a character in units of them; wide fonts need 0.6,
# most less.
TEXT, SMALL, CHARACTER = 12.5, 11.5, 0.57

# From a value to a coordinate.
Scale = Callable[[float], float]


def draw(chart: Chart, width: float) -> Canvas:
    canvas = Canvas(width)
    if isinstance(chart, BarChart):
        (_columns if chart.columns else _rows)(canvas, chart)
    elif isinstance(chart, LineChart):
        _lines(canvas, chart)
    elif isinstance(chart, DotChart):
        _dots(canvas, chart)
    elif isinstance(chart, ScatterChart):
        _scatter(canvas, chart)
    else:
        _matrix(canvas, chart)
    return canvas


def text_width(text: str, size: float = TEXT) -> float:
    return len(text) * size * CHARACTER


def shorten(text: str, room: float, size: float = TEXT) -> str:
    """`text`, cut with an ellipsis where it does not fit into `room`."""
    fits = max(2, int(room / (size * CHARACTER)))
    return text if len(text) <= fits else text[: fits - 1].rstrip() + "…"


class Canvas:
    """Collects SVG elements; coordinates are rounded to a tenth, which no eye sees and which halves
    the file.
    """

    def __init__(self, width: float) -> None:
        self.width = width
        self.height = 0.0
        self.parts: list[str] = []

    @contextmanager
    def group(self, colour: Colour = None, kind: str = "", title: str = "") -> Iterator[None]:
        """Elements that belong to one series: they take its colour, and hovering over them shows the
        title.
        """
        self.parts.append(f'<g{_class(kind)} style="color:{variable(colour)}">{_title(title)}')
        yield
        self.parts.append("</g>")

    def rect(
        self, x: float, y: float, w: float, h: float, kind: str, radius: float = 0, more: str = ""
    ) -> None:
        corner = f' rx="{radius:g}"' if radius else ""
        size = f'width="{max(w, 0):.1f}" height="{max(h, 0):.1f}"'
        self.parts.append(f'<rect{_class(kind)} x="{x:.1f}" y="{y:.1f}" {size}{corner}{more}/>')

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self.parts.append(f'<line{_class(kind)} x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def path(self, points: Iterable[tuple[float, float]], kind: str, closed: bool = False) -> None:
        steps = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self.parts.append(f'<path{_class(kind)} d="M{steps}{"Z" if closed else ""}"/>')

    def circle(self, x: float, y: float, r: float, kind: str, title: str = "") -> None:
        self.parts.append(
            f'<circle{_class(kind)} cx="{x:.1f}" cy="{y:.1f}" r="{r:g}">{_title(title)}</circle>'
        )

    def text(
        self, x: float, y: float, text: str, kind: str = "", anchor: str = "start", more: str = ""
    ) -> None:
        where = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self.parts.append(f'<text{_class(kind)} x="{x:.1f}" y="{y:.1f}"{where}{more}>{escape(text)}</text>')

    def svg(self, kind: str, label: str) -> str:
        """The drawing as an element of a page."""
        box = f"0 0 {self.width:g} {self.height:.0f}"
        return (
            f'<svg class="chart {kind}" viewBox="{box}" role="img"'
            f' aria-label="{escape(label)}">{"".join(self.parts)}</svg>'
        )


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""


def _value_title(category: str, series: Series, place: int, digits: int = 1) -> str:
    low, high = series.low[place], series.high[place]
    ends = (
        f" ({percent(low, digits)} to {percent(high, digits)})"
        if low is not None and high is not None
        else ""
    )
    return f"{category}, {series.name}: {percent(series.values[place] or 0.0, digits)} %{ends}"


def _axis_of_shares(
    canvas: Canvas, top: float, scale: Scale, start: float, end: float, about: int = 5, upright: bool = False
) -> None:
    """Grid lines and their labels in percent: below the chart, or left of it when the axis is upright."""
    for mark, label in share_ticks(top, about):
        position = scale(mark)
        if upright:
            canvas.line(start, position, end, position, "grid")
            canvas.text(start - 7, position + 4, label, "axis", "end")
        else:
            canvas.line(position, start, position, end, "grid")
            canvas.text(position, end + 16, label, "axis", "middle")


def _rules_above(
    canvas: Canvas, chart: BarChart, places: Sequence[float], left: float, right: float
) -> float:
    """The labels of upright rules, one row each so that close rules keep readable labels; returns the height
    they take.
    """
    y = 0.0
    for rule, x in zip(chart.rules, places, strict=True):
        y += 15
        width = text_width(rule.label, TEXT)
        canvas.text(min(max(x, left + width / 2), right - width / 2), y - 3, rule.label, rule.kind, "middle")
    return y + 2


def _rows(canvas: Canvas, chart: BarChart) -> None:
    """Lying bars with the names of the categories before them."""
    left = label_room = min(max(text_width(name) for name in chart.categories) + 14, 0.40 * canvas.width)
    right = canvas.width - (30 if chart.numbers else 12) - (46 if chart.changes else 0)
    top = chart.top()

    def x_of(value: float) -> float:
        return left + (right - left) * min(value, top) / top

    front = [bars for bars in chart.bars if not bars.pale]
    thick = 13.0 if len(front) == 1 else 12.0 if len(front) == 2 else 8.0
    row = thick * len(front) + (11 if len(front) > 1 else 13)
    start = _rules_above(canvas, chart, [x_of(rule.value) for rule in chart.rules], left, canvas.width)
    end = start + row * len(chart.categories)
    for place in chart.marked:
        canvas.rect(0, start + row * place + 1, canvas.width, row - 2, "tail", 4)
    _axis_of_shares(canvas, top, x_of, start, end)
    for place, name in enumerate(chart.categories):
        y = start + row * place
        canvas.text(left - 8, y + row / 2 + 4.2, shorten(name, label_room - 12), "", "end")
        # The halo has the card's colour, which would show on a tinted ground.
        number_kind = "value" if place in chart.marked else "value halo"
        for bars in chart.bars:
            value = bars.values[place]
            if value is None:
                continue
            with canvas.group(bars.colour, "item", _value_title(name, bars, place, chart.digits)):
                if bars.pale:
                    canvas.rect(left, y + 2.5, x_of(value) - left, row - 5, "pale", 2.5)
                    continue
                upper = y + (row - thick * len(front)) / 2 + thick * front.index(bars)
                canvas.rect(left, upper + 0.75, max(x_of(value) - left, 1), thick - 1.5, "bar", 2)
                _whisker(canvas, x_of, bars, place, upper + thick / 2)
                if chart.numbers:
                    after = x_of(max(value, bars.high[place] or 0)) + 5
                    number = percent(value, chart.digits)
                    canvas.text(after, upper + thick / 2 + 3.9, number, number_kind)
        if chart.changes:
            tone = "gain" if chart.changes[place] > 0 else "loss"
            canvas.text(canvas.width, y + row / 2 + 4.2, points(chart.changes[place]), tone, "end")
    canvas.line(left, start, left, end, "base")
    for rule in chart.rules:
        canvas.line(x_of(rule.value), start - 2, x_of(rule.value), end, rule.kind)
    canvas.height = end + 22


def _whisker(canvas: Canvas, x_of: Scale, series: Series, place: int, y: float) -> None:
    low, high = series.low[place], series.high[place]
    if low is None or high is None or high <= low:
        return
    canvas.line(x_of(low), y, x_of(high), y, "whisker")
    for end in (low, high):
        canvas.line(x_of(end), y - 2.5, x_of(end), y + 2.5, "whisker")


def _columns(canvas: Canvas, chart: BarChart) -> None:
    """Thin upright bars for many categories; names on hover, the tail tinted."""
    room = max((text_width(rule.label) for rule in chart.rules), default=0)
    left, right = 32.0, canvas.width - room - 8
    top = chart.top()
    start, height = 8.0, 190.0
    end = start + height

    def y_of(value: float) -> float:
        return end - height * min(value, top) / top

    step = (right - left) / len(chart.categories)
    for place in chart.marked:
        canvas.rect(left + step * place, start, step + 0.3, height, "tail")
    _axis_of_shares(canvas, top, y_of, left, right, 4, upright=True)
    gap = 0.8 if step > 4 else 0.25
    for place, name in enumerate(chart.categories):
        x = left + step * place
        shown = [(bars, value) for bars in chart.bars if (value := bars.values[place]) is not None]
        title = "\n".join(_value_title(name, bars, place, chart.digits) for bars, _ in shown)
        with canvas.group(chart.bars[-1].colour, "item", title):
            for bars, value in shown:
                kind = "pale" if bars.pale else "bar"
                canvas.rect(x + gap / 2, y_of(value), step - gap, end - y_of(value), kind)
                low, high = bars.low[place], bars.high[place]
                if step > 5 and low is not None and high is not None and high > low:
                    canvas.line(x + step / 2, y_of(low), x + step / 2, y_of(high), "whisker thin")
    canvas.line(left, end, right, end, "base")
    heights = spread([y_of(rule.value) for rule in chart.rules], 15, start, end)
    for rule, y in zip(chart.rules, heights, strict=True):
        canvas.line(left, y_of(rule.value), right, y_of(rule.value), rule.kind)
        canvas.text(right + 6, y + 4, rule.label, rule.kind)
    canvas.text((left + right) / 2, end + 18, f"{len(chart.categories)} classes", "axis", "middle")
    canvas.height = end + 26


def _lines(canvas: Canvas, chart: LineChart) -> None:
    first, last = chart.span()
    labelled = [line for line in chart.lines if line.label]
    labelled += [Line(rule.label, None, [last], [rule.value], label=rule.label) for rule in chart.rules]
    room = min(max((text_width(line.label, SMALL) for line in labelled), default=0) + 14, 0.36 * canvas.width)
    left, right = 32.0, canvas.width - max(room, 12)
    top = chart.top()
    start = 18.0 if chart.marks else 8.0
    height = max(190.0, min(300.0, canvas.width * 0.42), 13.5 * len(labelled))
    end = start + height

    def x_of(value: float) -> float:
        return left + (right - left) * (value - first) / (last - first)

    def y_of(value: float) -> float:
        return end - height * min(value, top) / top

    _axis_of_shares(canvas, top, y_of, left, right, upright=True)
    for value in ticks(first, last, 6 if canvas.width > 500 else 4, chart.whole):
        canvas.text(x_of(value), end + 17, f"{value:g}", "axis", "middle")
    canvas.line(left, end, right, end, "base")
    canvas.text((left + right) / 2, end + 33, chart.x_label, "axis", "middle")
    for x, label in chart.marks:
        canvas.line(x_of(x), start - 4, x_of(x), end, "reference")
        canvas.text(x_of(x), start - 7, label, "axis", "end" if x > (first + last) / 2 else "start")
    for rule in chart.rules:
        canvas.line(left, y_of(rule.value), right, y_of(rule.value), rule.kind)
    for line in chart.lines:
        _one_line(canvas, line, x_of, y_of, chart.x_label.split(",")[0], chart.digits)
    # A line that ends early keeps its label at its own end; the others share the margin.
    early = [line for line in labelled if line.x[-1] < last - 0.12 * (last - first)]
    for line in early:
        x, y = x_of(line.x[-1]), y_of(line.y[-1])
        with canvas.group(line.colour):
            canvas.circle(x, y, 3.5, "bar")
            canvas.text(x + 8, y + 4, line.label, "small own halo")
    labelled = [line for line in labelled if line not in early]
    heights = spread([y_of(line.y[-1]) for line in labelled], 13.5, start, end)
    for line, y in zip(labelled, heights, strict=True):
        kind = "small " + ("muted" if line.colour is None else "own") + " bold" * line.strong
        with canvas.group(line.colour):
            canvas.text(right + 8, y + 4, shorten(line.label, room - 6, SMALL), kind)
    canvas.height = end + 38


def _one_line(canvas: Canvas, line: Line, x_of: Scale, y_of: Scale, x_name: str, digits: int) -> None:
    with canvas.group(line.colour, "", f"{line.name}: {percent(line.y[-1], digits)} % at the end"):
        if line.low and line.high:
            upper = [(x_of(x), y_of(y)) for x, y in zip(line.x, line.high, strict=True)]
            lower = [(x_of(x), y_of(y)) for x, y in zip(line.x, line.low, strict=True)]
            canvas.path([*upper, *reversed(lower)], "band", closed=True)
        one_of_many = line.colour is None and not line.low
        kind = "line" + " strong" * line.strong + " dashed" * line.dashed + " faint" * one_of_many
        canvas.path([(x_of(x), y_of(y)) for x, y in zip(line.x, line.y, strict=True)], kind)
        if len(line.x) <= 40:
            for x, y in zip(line.x, line.y, strict=True):
                title = f"{line.name}, {x_name} {x:g}: {percent(y, digits)} %"
                canvas.circle(x_of(x), y_of(y), 5, "hit", title)


def _dots(canvas: Canvas, chart: DotChart) -> None:
    label_room = min(max(text_width(name) for name in chart.rows) + 12, 0.40 * canvas.width)
    left, right = label_room + 30, canvas.width - 30
    row = 34.0
    end = row * len(chart.rows) + 4

    def x_of(value: float) -> float:
        return left + (right - left) * value / chart.limit

    _axis_of_shares(canvas, chart.limit, x_of, 4, end)
    for place, name in enumerate(chart.rows):
        y = 4 + row * (place + 0.5)
        canvas.text(label_room - 6, y + 4.2, shorten(name, label_room - 8), "", "end")
        found = [(value, dots) for dots in chart.dots if (value := dots.values[place]) is not None]
        if not found:
            continue
        highest = max(found, key=lambda item: item[0])
        canvas.line(x_of(min(value for value, _ in found)), y, x_of(highest[0]), y, "link")
        for value, dots in found:
            with canvas.group(dots.colour, "item", _value_title(name, dots, place)):
                _whisker(canvas, x_of, dots, place, y)
                canvas.circle(x_of(value), y, 6.5, "dot")
                # The numbers of two dots stand outside them; those of more would cover each other.
                if len(chart.dots) > 2:
                    continue
                low, high = dots.low[place], dots.high[place]
                if dots is highest[1]:
                    x, anchor = max(x_of(value) + 8.5, x_of(high or value) + 3), "start"
                else:
                    x, anchor = min(x_of(value) - 8.5, x_of(value if low is None else low) - 3), "end"
                canvas.text(x, y + 4, percent(value), "value halo", anchor)
    canvas.height = end + 22


def _matrix(canvas: Canvas, chart: Matrix) -> None:
    label_room = min(max(text_width(name, SMALL) for name in chart.rows) + 10, 0.30 * canvas.width)
    size = min((canvas.width - label_room - 2) / len(chart.columns), 44.0)
    tall = size if len(chart.rows) == len(chart.columns) else min(size * 1.4, 26.0)
    start = min(max(text_width(name, SMALL) for name in chart.columns), 96.0) + 12
    for place, name in enumerate(chart.columns):
        x, y = label_room + size * (place + 0.5) + 4, start - 6
        turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"'
        canvas.text(x, y, shorten(name, start - 8, SMALL), "small", more=turned)
    number_size = min(11.0, size * 0.42)
    for row, name in enumerate(chart.rows):
        y = start + tall * row
        canvas.text(label_room - 6, y + tall / 2 + 4, shorten(name, label_room - 8, SMALL), "small", "end")
        for column, other in enumerate(chart.columns):
            share = chart.values[row][column]
            x = label_room + size * column
            right = chart.right[row] == column
            taken = "recognised" if right else f"taken for {other}"
            with canvas.group(chart.colour, "item", f"{name} {taken}: {percent(share)} %"):
                box = (x + 0.75, y + 0.75, size - 1.5, tall - 1.5)
                canvas.rect(*box, "cell", 2.5)
                if share < 0.005:
                    continue
                # The square root keeps rare confusions visible beside the diagonal.
                strength = share**0.5
                shade = f' fill-opacity="{max(strength, 0.06):.2f}"'
                canvas.rect(*box, "right" if right else "wrong", 2.5, shade)
                if size >= 19:
                    ink = ink_on(chart.colour if right else "worst", max(strength, 0.06))
                    style = f' style="font-size:{number_size:.1f}px;fill:{ink}"'
                    middle = y + tall / 2 + number_size * 0.36
                    canvas.text(x + size / 2, middle, f"{100 * share:.0f}", "number", "middle", style)
    canvas.height = start + tall * len(chart.rows) + 4


def _scatter(canvas: Canvas, chart: ScatterChart) -> None:
    def ends(axis: str) -> tuple[float, float]:
        known = [getattr(point, axis) for point in chart.points]
        known += [end for point in chart.points for end in getattr(point, f"{axis}_interval") or ()]
        low, high = min(known), max(known)
        margin = max(0.08 * (high - low), 0.005)
        return max(0.0, low - margin), min(1.0, high + margin)

    (x_low, x_high), (y_low, y_high) = chart.ends or (ends("x"), ends("y"))
    named = [point for point in chart.points if point.labelled]
    widths = [text_width(point.name, SMALL) for point in named]
    room = min(max(widths, default=0.0) + 30, 0.48 * canvas.width)
    left, right, start = 32.0, canvas.width - room, 22.0
    end = start + max(260.0, min(420.0, canvas.width * 0.5), 13.5 * len(named))

    def x_of(value: float) -> float:
        return left + (right - left) * (min(max(value, x_low), x_high) - x_low) / (x_high - x_low)

    def y_of(value: float) -> float:
        return end - (end - start) * (min(max(value, y_low), y_high) - y_low) / (y_high - y_low)

    canvas.text(0, 12, chart.y_label, "axis")
    for value in ticks(y_low, y_high, 6):
        canvas.line(left, y_of(value), right, y_of(value), "grid")
        canvas.text(left - 7, y_of(value) + 4, f"{100 * value:g}", "axis", "end")
    for value in ticks(x_low, x_high, 6 if canvas.width > 500 else 3):
        canvas.line(x_of(value), start, x_of(value), end, "grid")
        canvas.text(x_of(value), end + 16, f"{100 * value:g}", "axis", "middle")
    canvas.text((left + right) / 2, end + 33, chart.x_label, "axis", "middle")
    heights = iter(spread([y_of(point.y) for point in named], 13.5, start, end))
    for point in chart.points:
        x, y = x_of(point.x), y_of(point.y)
        height = next(heights) if point.labelled else y
        title = f"{point.name}: {chart.x_name} {percent(point.x)} %, {chart.y_name} {percent(point.y)} %"
        if point.labelled:
            canvas.path([(x, y), (right + 4, height), (right + 14, height)], "leader")
        with canvas.group(point.colour, "item", title):
            if point.x_interval is not None:
                canvas.line(x_of(point.x_interval[0]), y, x_of(point.x_interval[1]), y, "cross")
            if point.y_interval is not None:
                canvas.line(x, y_of(point.y_interval[0]), x, y_of(point.y_interval[1]), "cross")
            canvas.circle(x, y, 6.5 if point.strong else 5, "dot")
            kind = "small own" + " bold" * point.strong
            if point.labelled:
                canvas.text(right + 18, height + 4, shorten(point.name, room - 20, SMALL), kind)
    canvas.height = end + 38
