"""The report page of a recipe's folder: its table with the paper's numbers and its figures, above the report
on its runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cfol_fast.errors import InputError
from cfol_fast.recipes import figures, render
from cfol_fast.recipes.recipe import Figure, load_recipe
from cfol_fast.recipes.table import NAME
from cfol_fast.reporting import write_report
from cfol_fast.runs.json_files import check_shape, made_from, read_object

PAGE = "report.html"
NAMES = {"recipe!": str, "scale!": str, "runs!": [str], "figures": [str]}


def is_recipe_folder(folder: Path) -> bool:
    return (folder / NAME).is_file()


def read_table(folder: Path) -> dict[str, Any]:
    """A recipe's table.json, checked as far as its reader needs."""
    if not is_recipe_folder(folder):
        raise InputError(f"{folder} is not a recipe's folder: it has no {NAME}")
    table = read_object(folder / NAME)
    if table.get("format") != 1:
        raise InputError(f"{folder / NAME} is not a recipe's table of format 1")
    check_shape(table, NAMES, str(folder / NAME))
    for name in (table["recipe"], table["scale"], *table["runs"], *(table.get("figures") or [])):
        # They are names of files and folders, and must not lead elsewhere.
        if not name or Path(name).name != name:
            raise InputError(f"{folder / NAME}: {name!r} is not a name")
    return table


def write_page(folder: Path, out: Path | None = None) -> Path:
    """The page of the recipe whose table is in `folder`; its runs are looked for beside it."""
    with made_from(folder / NAME):
        return _write_page(folder, read_table(folder), out)


def _write_page(folder: Path, table: dict[str, Any], out: Path | None) -> Path:
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
        extra=render.tables(table),
        extra_figures=drawn,
        pictures=False,
    )


def _figures_of(table: Mapping[str, Any]) -> list[Figure]:
    """The recipe's figures; a recipe from a file that is not there any more is shown without."""
    try:
        return load_recipe(table["source"]).figures
    except InputError:
        return []
