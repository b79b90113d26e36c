"""A figure as one file to paste: the page's own drawings under a heading and a legend, in the light colours,
as SVG or PNG.

resvg makes the PNG. It renders text only in fonts that it is given, so one is shipped in fonts/.
"""

from __future__ import annotations

import textwrap
from html import escape
from pathlib import Path

from cfol_fast import atomic
from cfol_fast.errors import InputError
from cfol_fast.reporting import svg
from cfol_fast.reporting.chart import Figure
from cfol_fast.reporting.theme import chart_css, in_light_colours

# In px: the width of a chart that stands alone, of one of a pair, between the two, and the margin around
# everything.
WIDE, PAIR, GAP, MARGIN = 1010.0, 478.0, 54.0, 24.0
ZOOM = 2
FONTS = Path(__file__).with_name("fonts")
FONT = "DejaVu Sans Condensed"
# Characters from here on (Chinese, say) are not in the shipped font: those of the system are looked through
# for them.
BEYOND_FONT = 0x2270
FAMILIES = f"Inter,'Helvetica Neue','Segoe UI',Roboto,'Noto Sans','Liberation Sans','{FONT}',Arial,sans-serif"


def write(figure: Figure, path: Path, heading: str = "", note: str = "") -> Path:
    """The figure as PNG, or as SVG where the path ends in .svg; see `drawing`."""
    text = drawing(figure, heading, note)
    if path.suffix == ".svg":
        atomic.write_text(path, text)
    else:
        atomic.write_bytes(path, png(text))
    return path


def drawing(figure: Figure, heading: str = "", note: str = "") -> str:
    """The SVG file; `heading` stands above the charts (the figure's title when empty), `note` small
    below it.
    """
    sheet = svg.Canvas(WIDE)
    y = _paragraph(sheet, heading or figure.title, 22, "heading", 0)
    y = _paragraph(sheet, note, svg.TEXT, "muted", y + 4) if note else y
    y = _legend(sheet, figure, y + 8)
    across, width = (2, PAIR) if figure.pair else (1, WIDE)
    for start in range(0, len(figure.charts), across):
        drawn = [(chart, svg.draw(chart, width)) for chart in figure.charts[start : start + across]]
        titled = 24 if any(chart.title or chart.note for chart, _ in drawn) else 0
        for place, (chart, canvas) in enumerate(drawn):
            x = place * (PAIR + GAP)
            sheet.text(x, y + 15, chart.title, "title")
            sheet.text(x + svg.text_width(chart.title, 15) + 12, y + 15, chart.note, "muted")
            body = "".join(canvas.parts)
            sheet.parts.append(f'<g transform="translate({x:.1f} {y + titled:.1f})">{body}</g>')
        y += titled + max(canvas.height for _, canvas in drawn) + 16
    width, height = WIDE + 2 * MARGIN, y + 2 * MARGIN - 16
    return in_light_colours(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:.0f}" viewBox="0 0'
        f' {width:g} {height:.0f}"'
        f' font-family="{FAMILIES}"><title>{escape(figure.title)}</title><style>{chart_css()}.chart'
        " text.heading{font-size:22px;font-weight:600}.chart"
        ' text.title{font-size:15px;font-weight:600}</style><rect width="100%" height="100%"'
        f' fill="var(--card)"/><g class="chart" transform="translate({MARGIN:g}'
        f' {MARGIN:g})">{"".join(sheet.parts)}</g></svg>\n'
    )


def _paragraph(sheet: svg.Canvas, text: str, size: float, kind: str, y: float) -> float:
    for line in textwrap.wrap(text, int(sheet.width / (size * svg.CHARACTER))):
        y += size * 1.3
        sheet.text(0, y - size * 0.35, line, kind)
    return y


def _legend(sheet: svg.Canvas, figure: Figure, y: float) -> float:
    x = 0.0
    for name, colour, pale in figure.legend:
        room = 18 + svg.text_width(name) + 22
        if x and x + room > sheet.width:
            x, y = 0.0, y + 20
        with sheet.group(colour):
            sheet.rect(x, y, 11, 11, "pale" if pale else "bar", 3)
        sheet.text(x + 18, y + 10, name, "muted")
        x += room
    return y + 28 if figure.legend else y


def png(text: str) -> bytes:
    """An SVG file's text as a PNG file, twice its size so that it is sharp on any screen."""
    try:
        import resvg_py
    except ImportError:
        raise InputError(
            "a PNG needs resvg-py: pip install resvg-py, or name a file ending in .svg"
        ) from None
    return bytes(
        resvg_py.svg_to_bytes(
            svg_string=atomic.in_utf8(text).decode(),
            zoom=ZOOM,
            skip_system_fonts=all(ord(character) < BEYOND_FONT for character in text),
            font_files=[str(path) for path in sorted(FONTS.glob("*.ttf"))],
            sans_serif_family=FONT,
        )
    )
