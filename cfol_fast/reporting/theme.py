"""Colours and typography. The page gets them as CSS variables (light and dark), the pictures take the light ones."""

from __future__ import annotations

from pathlib import Path

STYLE_SHEET = Path(__file__).with_name("page.css")

# Series colours by slot (groups._PREFERRED says which method owns which): light, dark. ERM is the quiet baseline, CFOL the accent.
SERIES = (
    ("#7d8797", "#98a3b5"),
    ("#3d4fd1", "#8f9dff"),
    ("#c77700", "#f0ae4b"),
    ("#0b8f7a", "#3fc9b0"),
    ("#a34fb8", "#d194e4"),
    ("#c2436b", "#f288ab"),
    ("#5d8a1d", "#a2cc62"),
    ("#2f86b7", "#74bfe8"),
)
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

_VARIABLES = {
    theme: "".join(f"--{name}:{pair[theme]};" for name, pair in INK.items())
    + "".join(f"--s{slot}:{pair[theme]};" for slot, pair in enumerate(SERIES))
    for theme in (0, 1)
}


def css() -> str:
    """The whole style sheet. Dark follows the system unless the reader chose with the buttons, which need no script."""
    return (
        f":root{{color-scheme:light;{_VARIABLES[0]}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{color-scheme:dark;{_VARIABLES[1]}}}}}\n"
        f":root:has(#theme-light:checked){{color-scheme:light;{_VARIABLES[0]}}}\n"
        f":root:has(#theme-dark:checked){{color-scheme:dark;{_VARIABLES[1]}}}\n"
        + STYLE_SHEET.read_text("utf-8")
    )
