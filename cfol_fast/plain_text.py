"""Numbers as text and columns of text: the terminal, the tables and the page all write them with these
functions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

# Narrow no-break space, between a number and its unit.
NARROW = "\u202f"
MINUS = "\u2212"


def percent(share: float, digits: int = 1) -> str:
    """0.393 -> '39.3', the unit standing elsewhere."""
    return f"{100 * share:.{digits}f}"


def points(difference: float, digits: int = 1) -> str:
    """A difference of shares in percentage points, always with its sign: +29.0, −3.1, 0.0."""
    return signed(100 * difference, digits)


def signed(number: float, digits: int = 1) -> str:
    """A number with its sign, unless it is rounded to 0."""
    text = f"{abs(number):.{digits}f}"
    if float(text) == 0:
        return text
    return ("+" if number > 0 else MINUS) + text


def radius_text(eps: float) -> str:
    """A radius as people write it: 8/255 where it is one."""
    pixels = round(eps * 255)
    return f"{pixels}/255" if pixels and abs(eps * 255 - pixels) < 1e-6 and pixels < 255 else f"{eps:g}"


def named(names: Sequence[str]) -> str:
    """The only one by its name; of several their number: no one of them is meant."""
    return names[0] if len(names) == 1 else f"{len(names)} classes"


def worst_class(figures: Mapping[str, Any]) -> str:
    """Of figures as files have them: "Shirt 39.0%", or "18 classes 0.0%" where so many share it."""
    shares = figures.get("per_class") or {}
    lowest = [name for name, share in shares.items() if share == figures["worst"]]
    who = named(lowest) if len(lowest) > 1 else figures["worst_class"]
    return f"{who} {figures['worst']:.1%}"


def aligned(
    rows: Sequence[Sequence[str] | None],
    left: Collection[int] = (0,),
    codes: Sequence[Sequence[str] | None] | None = None,
    end: str = "",
) -> list[str]:
    """Rows of cells as lines of columns, two spaces apart; None is a rule.

    left: the columns that begin at their left edge; the others end at their right edge. codes: before each
    cell, such as a terminal's colours, which take no room; end: after a cell with one. A row may be shorter
    than the others.
    """
    cells = [row for row in rows if row is not None]
    columns = max((len(row) for row in cells), default=0)
    widths = [max((len(row[i]) for row in cells if i < len(row)), default=0) for i in range(columns)]
    lines = []
    for number, row in enumerate(rows):
        if row is None:
            lines.append("  ".join("─" * width for width in widths))
            continue
        before = (codes[number] if codes is not None else None) or [""] * len(row)
        parts = []
        for i, (text, code) in enumerate(zip(row, before, strict=True)):
            padded = text.ljust(widths[i]) if i in left else text.rjust(widths[i])
            parts.append(f"{code}{padded}{end}" if code else padded)
        lines.append("  ".join(parts).rstrip())
    return lines
