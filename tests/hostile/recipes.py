"""Attempts on the files of a reproduction: recipes of one's own, tables, and the results that tables are made
of.
"""

from __future__ import annotations

import contextlib
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from cfol_fast.commands.main import is_input_error
from cfol_fast.errors import InputError
from cfol_fast.recipes import load_recipe, plan
from cfol_fast.recipes.planning import Plan
from cfol_fast.recipes.recipe import FOLDER
from cfol_fast.recipes.reproduction import write
from tests.hostile.reading import Area, command
from tests.hostile.values import as_text, edited
from tests.recipes.fake_runs import write_all
from tools.collection import collect, read_kept

NAME = "figure-cfol-vs-erm"


@dataclass(frozen=True)
class Reproduction:
    out: Path
    item: Plan
    table: dict[str, Any]
    recipe: dict[str, Any]


def prepare(folder: Path) -> Reproduction:
    item = plan(load_recipe(NAME), "mini")
    write_all(item, folder)
    write(item, folder, "cfol-fast reproduce")
    table = json.loads((folder / NAME / "table.json").read_text())
    return Reproduction(folder, item, table, tomllib.loads((FOLDER / f"{NAME}.toml").read_text()))


def attempt_recipe(subject: Reproduction, draw: st.DataObject) -> None:
    """Every value of a recipe of one's own."""
    tree = draw.draw(edited(subject.recipe))
    path = subject.out / "own.toml"
    try:
        path.write_bytes(as_toml(tree).encode("utf-8", "surrogatepass"))
    except TypeError:
        return
    with contextlib.suppress(InputError):
        plan(load_recipe(path), "mini").jobs()


def attempt_table(subject: Reproduction, draw: st.DataObject) -> None:
    """Every value of table.json and of a run's result: the page, the collection and a new table are made of
    them.
    """
    table = subject.out / NAME / "table.json"
    results = sorted((subject.out / "runs").glob("*/*.json"))
    path = table if draw.draw(st.booleans()) else draw.draw(st.sampled_from(results))
    whole = path.read_bytes()
    path.write_bytes(as_text(draw.draw(edited(json.loads(whole)))).encode("utf-8", "surrogatepass"))
    try:
        action = draw.draw(st.sampled_from(["page", "collection", "table", "table"]))
        if action == "page":
            command("report", str(table.parent), "--out", str(subject.out / "page.html"))
            return
        try:
            if action == "table" and path != table:
                write(subject.item, subject.out, "cfol-fast reproduce")
            else:
                collect(subject.out, subject.out / "kept")
                read_kept(subject.out / "kept")
        except Exception as error:
            # Also what the system says of a figure that is not there, or of a name that is too long.
            if not is_input_error(error):
                raise
    finally:
        path.write_bytes(whole)
        table.write_text(json.dumps(subject.table))


def as_toml(value: Any, top: bool = True) -> str:
    """Inline TOML; what TOML has no words for (null) is a TypeError."""
    if isinstance(value, dict):
        pairs = [f"{json.dumps(key)} = {as_toml(item, False)}" for key, item in value.items()]
        return "\n".join(pairs) if top else "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(as_toml(item, False) for item in value) + "]"
    if value is None:
        raise TypeError("TOML has no null")
    return str(value).lower() if isinstance(value, bool | float) else json.dumps(value)


AREAS = [Area("recipes", prepare, attempt_recipe), Area("tables and results", prepare, attempt_table)]
