"""Colours and style sheets. The page gets the colours as CSS variables, light and dark; a picture file has the light ones in place."""

from __future__ import annotations

import re
from pathlib import Path

# The colours of the series, light and dark. A method's row says which is its own: ERM is the quiet baseline, CFOL the accent.
SERIES = {
    "slate": ("#7d8797", "#98a3b5"),
    "indigo": ("#3d4fd1", "#8f9dff"),
    "amber": ("#c77700", "#f0ae4b"),
    "teal": ("#0b8f7a", "#3fc9b0"),
    "violet": ("#a34fb8", "#d194e4"),
    "rose": ("#c2436b", "#f288ab"),
    "green": ("#5d8a1d", "#a2cc62"),
    "blue": ("#2f86b7", "#74bfe8"),
}
# The nearest colours of a terminal, as its escape codes number them.
TERMINAL = dict(zip(SERIES, (90, 94, 33, 36, 35, 95, 32, 34), strict=True))
INK = {
    "page": ("#fcfbf9", "#13151b"),
    "card": ("#ffffff", "#1b1e26"),
    "text": ("#1b1d24", "#eceef3"),
    "muted": ("#626977", "#9aa2b1"),
    "faint": ("#9aa1ae", "#6b7382"),
    "rule": ("#e6e3dd", "#2d313c"),
    "grid": ("#edebe6", "#282c36"),
    "worst": ("#c6283d", "#ff7583"),
    "good": ("#16794c", "#5fd39b"),
    "bad": ("#b3261e", "#ff8f86"),
    "tail": ("#fbeceb", "#33212a"),
    "onfill": ("#ffffff", "#10131a"),
}
_COLOURS = {**INK, **SERIES}


def variable(colour: str | None) -> str:
    """A colour as the page's style sheet knows it; None is the muted ink of what has no series."""
    return f"var(--{colour or 'faint'})"


def in_light_colours(text: str) -> str:
    """SVG or CSS with every variable replaced by its colour on white, for programs that know no CSS variables."""
    return re.sub(r"var\(--(\w+)\)", lambda found: _COLOURS[found[1]][0], text)


def chart_css() -> str:
    return _sheet("chart.css")


def page_css() -> str:
    """The page's style sheet. Dark follows the system unless the reader chose with the buttons, which need no script."""
    light, dark = ("".join(f"--{name}:{pair[i]};" for name, pair in _COLOURS.items()) for i in (0, 1))
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{color-scheme:dark;{dark}}}}}\n"
        f":root:has(#theme-light:checked){{color-scheme:light;{light}}}\n"
        f":root:has(#theme-dark:checked){{color-scheme:dark;{dark}}}\n" + _sheet("page.css") + chart_css()
    )


def _sheet(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")
