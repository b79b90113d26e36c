"""Writing a report: the page, a picture of every chart and every table as CSV and LaTeX in a folder of the page's name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from cfol_fast import atomic
from cfol_fast.errors import InputError
from cfol_fast.reporting import figures, page, png, tables
from cfol_fast.reporting.charts import Figure
from cfol_fast.reporting.groups import Comparison, compare, separate
from cfol_fast.reporting.wording import headline, setting_phrase
from cfol_fast.runs.records import Run, find_runs, load_run


def read_comparisons(
    runs: Sequence[Path | str], separately: bool = False, baseline: str | None = None
) -> list[Comparison]:
    """The comparisons that `runs` (run folders, folders of runs, evaluation files) make: one, or one a data set when `separately`."""
    loaded = [load_run(path) for path in find_runs([Path(path) for path in runs])]
    if not separately:
        return [compare(loaded, baseline)]
    parts = separate(loaded)
    return [compare(part, baseline if _has(part, baseline) else None) for part in parts]


def _has(part: Sequence[Run], baseline: str | None) -> bool:
    return any(baseline in (run.method, run.title) for run in part)


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
    extra: Sequence[tables.Table] = (),
    extra_figures: Sequence[Figure] = (),
    pictures: bool = True,
) -> Path:
    """Write the page of `runs` to `out` and return its path.

    separate: runs on different data sets one after another instead of an error. baseline: the method differences are measured from
    (ERM by default, else the first run). extra, extra_figures: shown first (a recipe's, beside the paper's numbers).
    pictures: also draw every chart as PNG, which needs matplotlib.
    """
    out = Path(out)
    if out.is_dir():
        raise InputError(f"{out} is a folder; --out names the page, for example {out / 'report.html'}")
    comparisons = read_comparisons(runs, separate, baseline)
    folder = files_folder(out)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {f"extra-{figure.key}": figure for figure in extra_figures} if pictures else {}
    for number, comparison in enumerate(comparisons):
        for table in [*tables.build(comparison), *(extra if number == 0 else ())]:
            key = page.part_key(number, len(comparisons), table.key)
            atomic.write_text(folder / f"{key}.csv", table.csv())
            atomic.write_text(folder / f"{key}.tex", table.latex())
        if pictures:
            for figure in figures.build(comparison):
                drawn[page.part_key(number, len(comparisons), figure.key)] = figure
    for key, figure in drawn.items():
        png.write(figure, folder / f"{key}.png")
    addresses = {key: quote(f"{folder.name}/{key}.png") for key in drawn}
    atomic.write_text(out, page.render(comparisons, title, extra, extra_figures, addresses))
    return out


def picture(runs: Sequence[Path | str], path: Path | str, baseline: str | None = None) -> Path:
    """One picture that says it all: the bars of every class for each method, under the finding. For a README or a slide."""
    comparison = read_comparisons(runs, baseline=baseline)[0]
    figure = figures.class_bars(comparison)
    if figure is None:
        raise InputError(f"none of the runs has an accuracy to draw yet: {', '.join(map(str, runs))}")
    note = f"Accuracy by class in percent, with the average and the worst class under attack. {setting_phrase(comparison)}"
    return png.write(figure, Path(path), headline(comparison)[0], note)
