"""results/README.md: every kept comparison on one page, made from the kept JSON alone, so that a test can hold the two together.

Why an ordering of the paper is not shown cannot be computed: a person writes it into `notes.toml` beside the tables
(`["scale/recipe"]`, then the ordering's key), and a missing explanation is said as such.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cfol_fast import atomic
from cfol_fast.errors import InputError
from cfol_fast.recipes import render
from cfol_fast.recipes.collection import read_kept
from cfol_fast.recipes.recipe import list_recipes
from cfol_fast.reporting import Cell, Row, Table
from cfol_fast.runs.toml_files import read_toml

NOTES = "notes.toml"
VERDICTS = (
    "shown",
    "shown, within the deviation",
    "shown (one seed)",
    "not shown (one seed)",
    "not shown, within the deviation",
    "not shown",
)
UNEXPLAINED = "(no explanation written yet)"


def write_index(folder: Path) -> Path:
    """Writes README.md into `folder`."""
    if not read_kept(folder):
        raise InputError(
            f"{folder} holds no results: expected {folder}/SCALE/RECIPE.json "
            f"(cfol-fast reproduce --index {folder} --collect REPRODUCTION writes them)"
        )
    path = folder / "README.md"
    atomic.write_text(path, text(folder))
    return path


def text(folder: Path) -> str:
    """What README.md must say."""
    notes = read_toml(folder / NOTES) if (folder / NOTES).exists() else {}
    tables = read_kept(folder)
    lines = [
        "# Results",
        "",
        "Written by `cfol-fast reproduce --index results` from the JSON files below this folder: do not edit.",
        "",
    ]
    introduction = notes.get("introduction")
    if isinstance(introduction, str):
        lines += [introduction.strip(), ""]
    there = {
        recipe["recipe"] for table in tables if table["scale"] == "mini" for recipe in (table, *table["also"])
    }
    missing = [name for name in list_recipes() if name not in there]
    if missing:
        lines += [f"Not carried out yet at the mini scale: {', '.join(missing)}.", ""]
    for scale in dict.fromkeys(table["scale"] for table in tables):
        lines += _scale(scale, [table for table in tables if table["scale"] == scale], notes)
    return "\n".join(lines).rstrip() + "\n"


def _scale(scale: str, tables: list[dict[str, Any]], notes: Mapping[str, Any]) -> list[str]:
    runs = {run for table in tables for run in table["runs"]}
    recipes = len(tables) + sum(len(table["also"]) for table in tables)
    lines = [
        f"## The {scale} scale: {recipes} recipes, {len(tables)} distinct comparisons, {len(runs)} runs",
        "",
        _summary(tables),
        "",
    ]
    rows = []
    for table in tables:
        held = [claim["holds"] for claim in table["claims"] if claim["holds"] is not None]
        seeds = max(
            (len(entry["seeds"]) for block in table["blocks"] for entry in block["entries"]), default=0
        )
        valid = {None: "–", True: "yes", False: "no"}[(table["valid"] or {}).get("ok")]
        count = f"{sum(held)} of {len(held)}" if held else "–"
        link = f"[{table['recipe']}](#{_anchor(table)})"
        same = ", ".join(f"{other['recipe']} ({other['paper']})" for other in table["also"])
        rows.append(Row([link], [Cell(text) for text in (table["paper"], str(seeds), count, valid, same)]))
    columns = ["Paper", "Seeds", "Orderings shown", "Valid", "The same runs stand for"]
    lines.append(Table("recipes", "", "", ["Recipe"], columns, rows, words=True).markdown().rstrip())
    for table in tables:
        lines += ["", *_section(table, notes.get(f"{scale}/{table['recipe']}", {}))]
    return [*lines, ""]


def _summary(tables: list[dict[str, Any]]) -> str:
    """How many of the paper's orderings are shown; a comparison of the same runs that stands in several tables counts once."""
    distinct: dict[str, Mapping[str, Any]] = {}
    for table in tables:
        for claim in table["claims"]:
            if claim["holds"] is not None:
                key = json.dumps([claim["compared"], claim["metric"], table["checkpoint"]], sort_keys=True)
                distinct.setdefault(key, claim)
    sizes: dict[str, int] = {}
    for claim in distinct.values():
        sizes[render.verdict(claim)] = sizes.get(render.verdict(claim), 0) + 1
    listed = "; ".join(f"{word}: {sizes[word]}" for word in VERDICTS if word in sizes)
    return f"The paper's orderings, {len(distinct)} distinct comparisons (the same runs stand in several tables): {listed}."


def _anchor(table: Mapping[str, Any]) -> str:
    return f"{table['recipe']}-{table['scale']}"


def _section(table: Mapping[str, Any], notes: Mapping[str, Any]) -> list[str]:
    heading = f"### {table['recipe']}: {table['title']}"
    lines = [f'<a id="{_anchor(table)}"></a>', "", heading, "", render.markdown_body(table).rstrip()]
    failed = [claim for claim in table["claims"] if claim["holds"] is False]
    if failed:
        lines += ["", "Not shown, and why:", ""]
        lines += [
            f"- {claim['text']}: {notes.get(claim['key']) or notes.get('why') or UNEXPLAINED}"
            for claim in failed
        ]
    if notes.get("note"):
        lines += ["", str(notes["note"]).strip()]
    if table["also"]:
        others = [f"{other['recipe']} ({other['paper']}: {other['title']})" for other in table["also"]]
        lines += ["", f"The same runs are the {table['scale']} form of {'; '.join(others)}."]
    for figure in table["figures"]:
        lines += ["", f"![{figure.removesuffix('.svg')}]({table['scale']}/{figure})"]
    file = f"{table['scale']}/{table['recipe']}.json"
    return [*lines, "", f"The numbers, and every run's counts per class: [{file}]({file})."]
