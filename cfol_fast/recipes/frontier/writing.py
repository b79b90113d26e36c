"""The files of the fair table: table.md, the plot, and a report page on the rows that the declared
comparisons are about.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cfol_fast import atomic
from cfol_fast.recipes.frontier import drawing, text
from cfol_fast.recipes.frontier.plan import CFOL, ERM
from cfol_fast.recipes.frontier.sentences import listed, row_of, verdicts
from cfol_fast.reporting import picture_files, write_report


def write(facts: Mapping[str, Any], folder: Path, runs: Path) -> None:
    figure = drawing.figure(facts)
    # On the page the caption stands above the drawing; the file is shown alone.
    picture_files.write(figure, folder / "frontier.svg", note=figure.caption)
    atomic.write_text(folder / "table.md", text.markdown(facts))
    # With every row the page would hold a hundred drawings; its tables have them all.
    named = [row for name in (ERM, CFOL, facts["rival"]) if (row := row_of(facts, name)) is not None]
    alone = (
        "The tables that follow have every row; what comes after the plot is on"
        f" {listed([row['title'] for row in named])} alone."
    )
    shown = [runs / name for row in named for name in row["runs"]]
    write_report(
        shown,
        folder / "report.html",
        title=f"{facts['title']} · {facts['scale']} scale",
        extra=text.tables(facts),
        extra_figures=[figure],
        # What the page would find by itself was not declared.
        finding=("The declared comparisons of the worst class", " ".join([*verdicts(facts), alone])),
    )
