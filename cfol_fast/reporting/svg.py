"""Charts as inline SVG: classes for the style sheet instead of colours, so that light and dark are one drawing.

A chart is drawn for a width, not scaled to it: the page holds a wide and a narrow drawing and shows the one that fits, with
text of the same size in both. Hovering names the exact value (a `title` in each mark).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from cfol_fast.reporting.charts import (
    BarChart,
    Chart,
    DotChart,
    Line,
    LineChart,
    Matrix,
    share_ticks,
    spread,
    ticks,
)
from cfol_fast.reporting.wording import percent, points

TEXT = 12.5  # px, as in page.css
SMALL = 11.5
CHARACTER = 0.57  # mean width of a character in units of the text size; wide fonts need 0.6, most less

Scale = Callable[[float], float]  # from a value to a coordinate


def draw(chart: Chart, width: float, kind: str) -> str:
    """One drawing, `width` units wide. `kind` is "wide" or "narrow": which of the two drawings this is."""
    canvas = Canvas(width)
    if isinstance(chart, BarChart):
        (_columns if chart.columns else _rows)(canvas, chart)
    elif isinstance(chart, LineChart):
        _lines(canvas, chart)
    elif isinstance(chart, DotChart):
        _dots(canvas, chart)
    else:
        _matrix(canvas, chart)
    return canvas.svg(kind, chart.title or "chart")


def text_width(text: str, size: float = TEXT) -> float:
    return len(text) * size * CHARACTER


def shorten(text: str, room: float, size: float = TEXT) -> str:
    """`text`, cut with an ellipsis where it does not fit into `room`."""
    fits = max(2, int(room / (size * CHARACTER)))
    return text if len(text) <= fits else text[: fits - 1].rstrip() + "…"


class Canvas:
    """Collects SVG elements; coordinates are rounded to a tenth, which no eye sees and which halves the file."""

    def __init__(self, width: float) -> None:
        self.width = width
        self.height = 0.0
        self.parts: list[str] = []

    def open(self, colour: int | None = None, kind: str = "", title: str = "") -> None:
        style = f' style="--c:var(--s{colour})"' if colour is not None else ' style="--c:var(--faint)"'
        self.parts.append(f"<g{_class(kind)}{style}>{f'<title>{escape(title)}</title>' if title else ''}")

    def close(self) -> None:
        self.parts.append("</g>")

    def rect(
        self, x: float, y: float, w: float, h: float, kind: str, radius: float = 0, more: str = ""
    ) -> None:
        corner = f' rx="{radius:g}"' if radius else ""
        self.parts.append(
            f'<rect{_class(kind)} x="{x:.1f}" y="{y:.1f}" width="{max(w, 0):.1f}" height="{max(h, 0):.1f}"{corner}{more}/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self.parts.append(f'<line{_class(kind)} x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def path(self, points: Iterable[tuple[float, float]], kind: str, closed: bool = False) -> None:
        steps = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self.parts.append(f'<path{_class(kind)} d="M{steps}{"Z" if closed else ""}"/>')

    def circle(self, x: float, y: float, r: float, kind: str, title: str = "") -> None:
        inner = f"<title>{escape(title)}</title>" if title else ""
        self.parts.append(f'<circle{_class(kind)} cx="{x:.1f}" cy="{y:.1f}" r="{r:g}">{inner}</circle>')

    def text(
        self, x: float, y: float, text: str, kind: str = "", anchor: str = "start", more: str = ""
    ) -> None:
        where = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self.parts.append(f'<text{_class(kind)} x="{x:.1f}" y="{y:.1f}"{where}{more}>{escape(text)}</text>')

    def svg(self, kind: str, label: str) -> str:
        box = f"0 0 {self.width:g} {self.height:.0f}"
        return f'<svg class="chart {kind}" viewBox="{box}" role="img" aria-label="{escape(label)}">{"".join(self.parts)}</svg>'


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _value_title(
    where: str, name: str, value: float, low: float | None, high: float | None, digits: int = 1
) -> str:
    ends = ""
    if low is not None and high is not None:
        ends = f" ({percent(low, digits)} to {percent(high, digits)})"
    return f"{where}, {name}: {percent(value, digits)} %{ends}"


def _rules_above(canvas: Canvas, chart: BarChart, at: Sequence[float], left: float, right: float) -> float:
    """The labels of upright rules, one row each so that close rules keep readable labels; returns the height they take."""
    y = 0.0
    for rule, x in zip(chart.rules, at, strict=True):
        y += 15
        width = text_width(rule.label, TEXT)
        canvas.text(min(max(x, left + width / 2), right - width / 2), y - 3, rule.label, rule.kind, "middle")
    return y + 2


def _rows(canvas: Canvas, chart: BarChart) -> None:
    """Lying bars with the names of the categories before them."""
    label_room = min(max(text_width(name) for name in chart.categories) + 14, 0.40 * canvas.width)
    left = label_room
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
    for mark, label in share_ticks(top, 5):
        canvas.line(x_of(mark), start, x_of(mark), end, "grid")
        canvas.text(x_of(mark), end + 16, label, "axis", "middle")
    for place, name in enumerate(chart.categories):
        y = start + row * place
        canvas.text(left - 8, y + row / 2 + 4.2, shorten(name, label_room - 12), "", "end")
        number_kind = "value" if place in chart.marked else "value halo"  # the halo is the card's colour
        for bars in chart.bars:
            value = bars.values[place]
            if value is None:
                continue
            low, high = bars.low[place], bars.high[place]
            canvas.open(bars.colour, "item", _value_title(name, bars.name, value, low, high, chart.digits))
            if bars.pale:
                canvas.rect(left, y + 2.5, x_of(value) - left, row - 5, "pale", 2.5)
            else:
                place_in_row = front.index(bars)
                inset = (row - thick * len(front)) / 2
                at = y + inset + thick * place_in_row
                canvas.rect(left, at + 0.75, max(x_of(value) - left, 1), thick - 1.5, "bar", 2)
                _whisker(canvas, x_of, low, high, at + thick / 2)
                if chart.numbers:
                    after = x_of(max(value, high or 0)) + 5
                    canvas.text(after, at + thick / 2 + 3.9, percent(value, chart.digits), number_kind)
            canvas.close()
        if chart.changes:
            tone = "gain" if chart.changes[place] > 0 else "loss"
            canvas.text(canvas.width, y + row / 2 + 4.2, points(chart.changes[place]), tone, "end")
    canvas.line(left, start, left, end, "base")
    for rule in chart.rules:
        canvas.line(x_of(rule.value), start - 2, x_of(rule.value), end, rule.kind)
    canvas.height = end + 22


def _whisker(canvas: Canvas, x_of: Scale, low: float | None, high: float | None, y: float) -> None:
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
    for mark, label in share_ticks(top, 4):
        canvas.line(left, y_of(mark), right, y_of(mark), "grid")
        canvas.text(left - 7, y_of(mark) + 4, label, "axis", "end")
    gap = 0.8 if step > 4 else 0.25
    for place, name in enumerate(chart.categories):
        x = left + step * place
        titles = [
            _value_title(name, bars.name, value, bars.low[place], bars.high[place], chart.digits)
            for bars in chart.bars
            if (value := bars.values[place]) is not None
        ]
        canvas.open(chart.bars[-1].colour, "item", "\n".join(titles))
        for bars in chart.bars:
            value = bars.values[place]
            if value is None:
                continue
            kind = "pale" if bars.pale else "bar"
            canvas.rect(x + gap / 2, y_of(value), step - gap, end - y_of(value), kind)
            low, high = bars.low[place], bars.high[place]
            if step > 5 and low is not None and high is not None and high > low:
                canvas.line(x + step / 2, y_of(low), x + step / 2, y_of(high), "whisker thin")
        canvas.close()
    canvas.line(left, end, right, end, "base")
    heights = spread([y_of(rule.value) for rule in chart.rules], 15, start, end)
    for rule, y in zip(chart.rules, heights, strict=True):
        canvas.line(left, y_of(rule.value), right, y_of(rule.value), rule.kind)
        canvas.text(right + 6, y + 4, rule.label, rule.kind)
    canvas.text((left + right) / 2, end + 18, f"{len(chart.categories)} classes", "axis", "middle")
    canvas.height = end + 26


def _lines(canvas: Canvas, chart: LineChart) -> None:
    labelled = [line for line in chart.lines if line.label]
    labelled += [
        Line(rule.label, None, [chart.span()[1]], [rule.value], label=rule.label) for rule in chart.rules
    ]
    room = min(max((text_width(line.label, SMALL) for line in labelled), default=0) + 14, 0.36 * canvas.width)
    left, right = 32.0, canvas.width - max(room, 12)
    top = chart.top()
    start = 18.0 if chart.marks else 8.0
    height = max(190.0, min(300.0, canvas.width * 0.42), 13.5 * len(labelled))
    end = start + height
    first, last = chart.span()

    def x_of(value: float) -> float:
        return left + (right - left) * (value - first) / (last - first)

    def y_of(value: float) -> float:
        return end - height * min(value, top) / top

    for value, label in share_ticks(top, 5):
        canvas.line(left, y_of(value), right, y_of(value), "grid")
        canvas.text(left - 7, y_of(value) + 4, label, "axis", "end")
    for value in ticks(first, last, 6 if canvas.width > 500 else 4, whole=True):
        canvas.text(x_of(value), end + 17, f"{value:g}", "axis", "middle")
    canvas.line(left, end, right, end, "base")
    canvas.text((left + right) / 2, end + 33, chart.x_label, "axis", "middle")
    for at, label in chart.marks:
        canvas.line(x_of(at), start - 4, x_of(at), end, "reference")
        anchor = "end" if at > (first + last) / 2 else "start"
        canvas.text(x_of(at), start - 7, label, "axis", anchor)
    for rule in chart.rules:
        canvas.line(left, y_of(rule.value), right, y_of(rule.value), rule.kind)
    for line in chart.lines:
        _one_line(canvas, line, x_of, y_of, chart.x_label.split(",")[0], chart.digits)
    # A line that ends early keeps its label at its own end; the others share the margin.
    early = [line for line in labelled if line.x[-1] < last - 0.12 * (last - first)]
    labelled = [line for line in labelled if line not in early]
    for line in early:
        canvas.open(line.colour)
        canvas.circle(x_of(line.x[-1]), y_of(line.y[-1]), 3.5, "bar")
        style = f' style="fill:var(--c);font-size:{SMALL}px"'
        canvas.text(x_of(line.x[-1]) + 8, y_of(line.y[-1]) + 4, line.label, "halo", more=style)
        canvas.close()
    heights = spread([y_of(line.y[-1]) for line in labelled], 13.5, start, end)
    for line, y in zip(labelled, heights, strict=True):
        canvas.open(line.colour)
        colour = "var(--c)" if line.colour is not None else "var(--muted)"
        weight = ";font-weight:600" if line.strong else ""
        style = f' style="fill:{colour};font-size:{SMALL}px{weight}"'
        canvas.text(right + 8, y + 4, shorten(line.label, room - 6, SMALL), "", more=style)
        canvas.close()
    canvas.height = end + 38


def _one_line(canvas: Canvas, line: Line, x_of: Scale, y_of: Scale, where: str, digits: int) -> None:
    canvas.open(line.colour, "", f"{line.name}: {percent(line.y[-1], digits)} % at the end")
    if line.low and line.high:
        upper = [(x_of(x), y_of(y)) for x, y in zip(line.x, line.high, strict=True)]
        lower = [(x_of(x), y_of(y)) for x, y in zip(line.x, line.low, strict=True)]
        canvas.path([*upper, *reversed(lower)], "band", closed=True)
    many = line.colour is None and not line.low
    kind = (
        "line"
        + (" strong" if line.strong else "")
        + (" dashed" if line.dashed else "")
        + (" faint" if many else "")
    )
    canvas.path([(x_of(x), y_of(y)) for x, y in zip(line.x, line.y, strict=True)], kind)
    if len(line.x) <= 40:
        for x, y in zip(line.x, line.y, strict=True):
            canvas.circle(x_of(x), y_of(y), 5, "hit", f"{line.name}, {where} {x:g}: {percent(y, digits)} %")
    canvas.close()


def _dots(canvas: Canvas, chart: DotChart) -> None:
    label_room = min(max(text_width(name) for name in chart.rows) + 12, 0.40 * canvas.width)
    left, right = label_room + 30, canvas.width - 30
    row = 34.0
    end = row * len(chart.rows) + 4

    def x_of(value: float) -> float:
        return left + (right - left) * value / chart.limit

    for mark, label in share_ticks(chart.limit, 5):
        canvas.line(x_of(mark), 4, x_of(mark), end, "grid")
        canvas.text(x_of(mark), end + 16, label, "axis", "middle")
    for place, name in enumerate(chart.rows):
        y = 4 + row * (place + 0.5)
        canvas.text(label_room - 6, y + 4.2, shorten(name, label_room - 8), "", "end")
        found = [(value, dots) for dots in chart.dots if (value := dots.values[place]) is not None]
        if not found:
            continue
        lowest, highest = min(value for value, _ in found), max(value for value, _ in found)
        canvas.line(x_of(lowest), y, x_of(highest), y, "link")
        for value, dots in found:
            low, high = dots.low[place], dots.high[place]
            canvas.open(dots.colour, "item", _value_title(name, dots.name, value, low, high))
            _whisker(canvas, x_of, low, high, y)
            canvas.circle(x_of(value), y, 6.5, "dot")
            if len(chart.dots) <= 2:
                reach = max(8.5, x_of(high) - x_of(value) + 3) if high is not None else 8.5
                back = max(8.5, x_of(value) - x_of(low) + 3) if low is not None else 8.5
                upper = value == highest and (
                    len(found) == 1 or dots is max(found, key=lambda item: item[0])[1]
                )
                x, anchor = (x_of(value) + reach, "start") if upper else (x_of(value) - back, "end")
                canvas.text(x, y + 4, percent(value), "value halo", anchor)
            canvas.close()
    canvas.height = end + 22


def _matrix(canvas: Canvas, chart: Matrix) -> None:
    label_room = min(max(text_width(name, SMALL) for name in chart.rows) + 10, 0.30 * canvas.width)
    size = min((canvas.width - label_room - 2) / len(chart.columns), 44.0)
    tall = size if len(chart.rows) == len(chart.columns) else min(size * 1.4, 26.0)
    longest = max(text_width(name, SMALL) for name in chart.columns)
    start = min(longest, 96.0) + 12
    small = f' style="font-size:{SMALL}px"'
    for place, name in enumerate(chart.columns):
        x, y = label_room + size * (place + 0.5) + 4, start - 6
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})" style="font-size:{SMALL}px"'
        canvas.text(x, y, shorten(name, start - 8, SMALL), more=turn)
    figure = min(11.0, size * 0.42)
    for row, name in enumerate(chart.rows):
        y = start + tall * row
        canvas.text(label_room - 6, y + tall / 2 + 4, shorten(name, label_room - 8, SMALL), "", "end", small)
        for column, other in enumerate(chart.columns):
            share = chart.values[row][column]
            x = label_room + size * column
            right = chart.right[row] == column
            taken = "recognised" if right else f"taken for {other}"
            canvas.open(chart.colour, "item", f"{name} {taken}: {percent(share)} %")
            canvas.rect(x + 0.75, y + 0.75, size - 1.5, tall - 1.5, "cell", 2.5)
            # The square root keeps rare confusions visible beside the diagonal.
            strength = share**0.5 if share > 0 else 0.0
            if share >= 0.005:
                shade = f' fill-opacity="{max(strength, 0.06):.2f}"'
                canvas.rect(
                    x + 0.75, y + 0.75, size - 1.5, tall - 1.5, "right" if right else "wrong", 2.5, shade
                )
            if size >= 19 and share >= 0.005:
                style = f' style="font-size:{figure:.1f}px"'
                on = "on" if strength > 0.62 else ""
                canvas.text(
                    x + size / 2, y + tall / 2 + figure * 0.36, f"{100 * share:.0f}", on, "middle", style
                )
            canvas.close()
    canvas.height = start + tall * len(chart.rows) + 4
