"""Tables as comma-separated values, for spreadsheets too: no text in them is taken for a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

# A spreadsheet takes a cell that begins so for a formula, and a formula may start programs or send the table
# away.
FORMULA_STARTS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def csv_text(rows: Iterable[Sequence[str | float | None]]) -> str:
    """One line per row; numbers in full precision, None as an empty cell, and text that looks like a formula
    behind an apostrophe.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for row in rows:
        writer.writerow([_harmless(cell) if isinstance(cell, str) else cell for cell in row])
    return buffer.getvalue()


def _harmless(text: str) -> str:
    # The csv module does not quote every line break, and what follows one would be a cell of its own.
    text = " ".join(text.splitlines())
    return f"'{text}" if text.strip().startswith(FORMULA_STARTS) else text
