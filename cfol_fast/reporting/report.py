"""Writing a report: the page, and in a folder of its name every chart as SVG and every table as CSV and
LaTeX.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from cfol_fast import atomic
from cfol_fast.errors import InputError
from cfol_fast.reporting import charts, picture_files, tables
from cfol_fast.reporting.chart import Figure
from cfol_fast.reporting.groups import Comparison, compare, is_baseline, separate
from cfol_fast.reporting.page import Part, render
from cfol_fast.reporting.table import Table
from cfol_fast.reporting.wording import headline, setting_phrase
from cfol_fast.runs.metrics import FLOOR
from cfol_fast.runs.records import find_runs, load_run, with_floor


def read_comparisons(
    runs: Sequence[Path | str],
    separately: bool = False,
    baseline: str | None = None,
    floor: float = FLOOR,
) -> list[Comparison]:
    """The comparisons that `runs` (run folders, folders of runs, evaluation files) make: one, or one per data
    set when `separately`. floor: an accuracy below which a class counts as failing.
    """
    loaded = [with_floor(load_run(path), floor) for path in find_runs([Path(path) for path in runs])]
    if not separately:
        return [compare(loaded, baseline)]
    return [
        compare(part, baseline if any(is_baseline(run, baseline) for run in part) else None)
        for part in separate(loaded)
    ]


def files_folder(out: Path) -> Path:
    """Where pictures and tables of the page `out` stand: report.html -> report_files."""
    return out.with_name(out.stem + "_files")


def write_report(
    runs: Sequence[Path | str],
    out: Path | str,
    separate: bool = False,
    *,
    baseline: str | None = None,
    title: str = "",
    extra: Sequence[Table] = (),
    extra_figures: Sequence[Figure] = (),
    finding: tuple[str, str] | None = None,
    pictures: bool = True,
    floor: float = FLOOR,
) -> Path:
    """Write the page of `runs` to `out` and return its path.

    separate: runs on different data sets one after another instead of an error. baseline: the method
    differences are measured from (ERM by default, else the first run). extra, extra_figures: shown first (a
    recipe's, beside the paper's numbers).
    finding: the headline and the sentences under it, in the place of what the test results say. pictures:
    also write every chart as SVG beside the page. floor: an accuracy below which a class counts as failing.
    """
    out = Path(out)
    if out.is_dir():
        raise InputError(f"{out} is a folder; --out names the page, for example {out / 'report.html'}")
    comparisons = read_comparisons(runs, separate, baseline, floor)
    parts = [
        Part(
            comparison,
            tables.build(comparison),
            charts.build(comparison),
            f"part{number}-" if len(comparisons) > 1 else "",
        )
        for number, comparison in enumerate(comparisons, start=1)
    ]
    if atomic.is_special(out):
        # A device or a pipe has nothing beside it.
        atomic.write_text(out, render(parts, title, extra, extra_figures, {}, finding))
        return out
    folder = files_folder(out)
    folder.mkdir(parents=True, exist_ok=True)
    named_tables = {part.prefix + table.key: table for part in parts for table in part.tables}
    for key, table in {**named_tables, **{table.key: table for table in extra}}.items():
        atomic.write_text(folder / f"{key}.csv", table.csv())
        atomic.write_text(folder / f"{key}.tex", table.latex())
    drawn = {part.prefix + figure.key: figure for part in parts for figure in part.figures}
    drawn |= {f"extra-{figure.key}": figure for figure in extra_figures}
    addresses = {}
    for key, figure in drawn.items() if pictures else ():
        picture_files.write(figure, folder / f"{key}.svg")
        addresses[key] = quote(os.fsencode(f"{folder.name}/{key}.svg"))
    atomic.write_text(out, render(parts, title, extra, extra_figures, addresses, finding))
    return out


def picture(runs: Sequence[Path | str], path: Path | str, baseline: str | None = None) -> Path:
    """One picture that says it all: the bars of every class for each method, under the finding. For a README
    or a slide: a PNG, or an SVG where the path ends in .svg."""
    comparison = read_comparisons(runs, baseline=baseline)[0]
    figure = charts.class_bars(comparison)
    if figure is None:
        raise InputError(f"none of the runs has an accuracy to draw yet: {', '.join(map(str, runs))}")
    note = (
        "Accuracy by class in percent, with the average and the worst class under attack."
        f" {setting_phrase(comparison)}"
    )
    return picture_files.write(figure, Path(path), headline(comparison)[0], note)
