"""Colours and style sheets.

The page gets the colours as CSS variables, light and dark; a picture file has the light ones in place.
"""

from __future__ import annotations

import re
from pathlib import Path

# The colours of the series, light and dark; names are written in them, so each has a contrast of 4.5 with its
# ground. A method's row says which is its own: ERM is the quiet baseline, CFOL the accent.
SERIES = {
    "slate": ("#697385", "#98a3b5"),
    "indigo": ("#3d4fd1", "#8f9dff"),
    "amber": ("#a56200", "#f0ae4b"),
    "teal": ("#08796a", "#3fc9b0"),
    "violet": ("#9c48b1", "#d194e4"),
    "rose": ("#bd3c65", "#f288ab"),
    "green": ("#527a19", "#a2cc62"),
    "blue": ("#27749f", "#74bfe8"),
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
    # Numbers on a coloured ground: whichever of the two is seen better there, see `ink_on`.
    "near": ("#000000", "#ffffff"),
    "far": ("#ffffff", "#000000"),
}
_COLOURS = {**INK, **SERIES}


def variable(colour: str | None) -> str:
    """A colour as the page's style sheet knows it; None is the muted ink of what has no series."""
    return f"var(--{colour or 'faint'})"


def ink_on(colour: str | None, strength: float) -> str:
    """The ink of a number on a ground of this colour, `strength` of it over the card: the better of black and
    white in each theme.
    """
    picks = []
    for theme in (0, 1):
        ground = _blend(_COLOURS[colour or "faint"][theme], INK["card"][theme], strength)
        black, white = contrast("#000000", ground), contrast("#ffffff", ground)
        picks.append("#000000" if black >= white else "#ffffff")
    light, dark = picks
    if light == dark:
        return light
    return variable("near" if light == INK["near"][0] else "far")


def _blend(over: str, under: str, strength: float) -> str:
    pairs = zip(_channels(over), _channels(under), strict=True)
    return "#" + "".join(f"{round(strength * a + (1 - strength) * b):02x}" for a, b in pairs)


def _channels(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of two colours, from 1 to 21; text needs 4.5."""
    bright = []
    for colour in (one, other):
        parts = [c / 255 for c in _channels(colour)]
        parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        bright.append(sum(c * share for c, share in zip(parts, (0.2126, 0.7152, 0.0722), strict=True)))
    return (max(bright) + 0.05) / (min(bright) + 0.05)


def in_light_colours(text: str) -> str:
    """SVG or CSS with every variable replaced by its colour on white, for programs that know no CSS
    variables.
    """
    return re.sub(r"var\(--(\w+)\)", lambda found: _COLOURS[found[1]][0], text)


def chart_css() -> str:
    return _sheet("chart.css")


def page_css() -> str:
    """The page's style sheet.

    Dark follows the system unless the reader chose with the buttons, which need no script.
    """
    light, dark = ("".join(f"--{name}:{pair[i]};" for name, pair in _COLOURS.items()) for i in (0, 1))
    return (
        f":root{{color-scheme:light;{light}}}\n"
        # Paper is white whatever the screen is.
        f"@media screen{{@media (prefers-color-scheme:dark){{:root{{color-scheme:dark;{dark}}}}}\n"
        f":root:has(#theme-light:checked){{color-scheme:light;{light}}}\n"
        f":root:has(#theme-dark:checked){{color-scheme:dark;{dark}}}}}\n" + _sheet("page.css") + chart_css()
    )


def _sheet(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")
