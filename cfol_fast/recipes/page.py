"""The report page of a recipe's folder: its table with the paper's numbers and its figures, above the report on its runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cfol_fast.errors import InputError
from cfol_fast.recipes import figures, paper, render
from cfol_fast.recipes.recipe import load_recipe
from cfol_fast.recipes.table import METRIC_TITLES, NAME
from cfol_fast.reporting import Cell, Row, Table, write_report
from cfol_fast.reporting.wording import percent
from cfol_fast.runs.json_files import read_object

PAGE = "report.html"


def is_recipe_folder(folder: Path) -> bool:
    return (folder / NAME).is_file()


def read_table(folder: Path) -> dict[str, Any]:
    """A recipe's table.json, checked as far as its reader needs."""
    if not is_recipe_folder(folder):
        raise InputError(f"{folder} is not a recipe's folder: it has no {NAME}")
    table = read_object(folder / NAME)
    if table.get("format") != 1:
        raise InputError(f"{folder / NAME} is not a recipe's table of format 1")
    return table


def write_page(folder: Path, out: Path | None = None) -> Path:
    """The page of the recipe whose table is in `folder`; its runs are looked for beside it."""
    table = read_table(folder)
    runs = [path for name in table["runs"] if (path := folder.parent / "runs" / name).is_dir()]
    if not runs:
        raise InputError(f"{folder.parent / 'runs'} has none of the runs of {table['recipe']}")
    title = " · ".join(part for part in (table["paper"], table["title"], f"{table['scale']} scale") if part)
    drawn = figures.build(_figures_of(table), table, folder.parent)
    return write_report(
        runs,
        out or folder / PAGE,
        True,
        title=title,
        extra=page_tables(table),
        extra_figures=drawn,
        pictures=False,
    )


def _figures_of(table: Mapping[str, Any]) -> Any:
    """The recipe's figures; a recipe of one's own that is not among the package's is shown without."""
    try:
        return load_recipe(table["source"]).figures
    except InputError:
        return []


def page_tables(table: Mapping[str, Any]) -> list[Table]:
    """The recipe's table beside the paper's, and the orderings, as the report shows tables."""
    notes = " ".join(table["footnotes"])
    where = f"Ours, and {paper.reference(table['recipe']) or 'the paper'}; small: ours minus the paper's, in points. In percent."
    if table["scale"] == "mini":
        where += f" Ours: {', '.join(table['datasets'])}, {', '.join(table['models'])}; the paper's numbers are those of its own data sets and networks."
        if (table["valid"] or {}).get("ok") is False:
            where += " Not valid: ERM-AT's robust average is below three times chance."
    shown = _columns(table) if table["layout"] == "columns" else _rows(table)
    tables = [Table("recipe", table["title"], f"{where} {notes}".strip(), *shown)]
    if table["claims"]:
        rows = []
        for claim in table["claims"]:
            spread = f" ± {claim['deviation']:.4f}" if claim["deviation"] is not None else ""
            margins = [
                Cell("–" if claim[who] is None else render.signed(claim[who]) + spread * (who == "ours"))
                for who in ("paper", "ours")
            ]
            rows.append(Row([claim["text"]], [*margins, Cell(render.verdict(claim))]))
        caption = "What the paper's numbers show, and whether ours show it: differences of accuracies."
        tables.append(
            Table(
                "orderings",
                "The paper's orderings",
                caption,
                ["Ordering"],
                ["Paper", "Ours", "Verdict"],
                rows,
                words=True,
            )
        )
    return tables


def _pair(value: Mapping[str, Any], best: bool) -> list[Cell]:
    ours = "–" if value["mean"] is None else percent(value["mean"])
    if value["deviation"] is not None:
        ours += f" ± {percent(value['deviation'])}"
    printed = "–" if value["paper"] is None else percent(value["paper"])
    if value["paper_deviation"] is not None:
        printed += f" ± {percent(value['paper_deviation'])}"
    return [
        Cell(ours, value["mean"], value["deviation"], value["difference"], best),
        Cell(printed, value["paper"], value["paper_deviation"]),
    ]


def _best(values: list[Mapping[str, Any]]) -> float | None:
    means = [value["mean"] for value in values if value["mean"] is not None]
    return max(means) if len(means) > 1 else None


def _columns(table: Mapping[str, Any]) -> tuple[list[str], list[str], list[Row]]:
    names = [entry["title"] for entry in table["blocks"][0]["entries"]]
    rows = []
    for block in table["blocks"]:
        for place, metric in enumerate(table["metrics"]):
            kind, _, statistic = metric.partition(".")
            values = [entry["values"][metric] for entry in block["entries"]]
            best = _best(values)
            cells = [
                cell
                for value in values
                for cell in _pair(value, value["mean"] is not None and value["mean"] == best)
            ]
            rows.append(
                Row(
                    [block["title"] if place == 0 else "", f"{kind} {METRIC_TITLES[statistic].lower()}"],
                    cells,
                    place == 0,
                )
            )
    return ["", ""], [text for name in names for text in (name, "paper")], rows


def _rows(table: Mapping[str, Any]) -> tuple[list[str], list[str], list[Row]]:
    names = [
        f"{kind} {METRIC_TITLES[s].lower()}"
        for kind, _, s in (metric.partition(".") for metric in table["metrics"])
    ]
    rows = []
    before = ""
    for block in table["blocks"]:
        best = {
            metric: _best([entry["values"][metric] for entry in block["entries"]])
            for metric in table["metrics"]
        }
        for entry in block["entries"]:
            shown = [entry["parameters"].get(name) for name in table["parameters"]]
            cells = []
            for metric in table["metrics"]:
                value = entry["values"][metric]
                cells += _pair(value, value["mean"] is not None and value["mean"] == best[metric])
            stubs = [entry["title"], *["–" if value is None else f"{value:g}" for value in shown]]
            rows.append(Row(stubs, cells, entry["title"] != before))
            before = entry["title"]
    return ["", *table["parameters"]], [text for name in names for text in (name, "paper")], rows
