"""results/README.md: every stored table on one page, made from the stored JSON alone, so that a test can hold the two together.

Why an ordering of the paper is not shown cannot be computed: a person writes it into `notes.toml` beside the tables
(`["scale/recipe"]`, then the ordering's key), and a missing explanation is said as such.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cfol_fast import atomic
from cfol_fast.errors import InputError
from cfol_fast.recipes import render
from cfol_fast.recipes.page import read_table
from cfol_fast.recipes.recipe import list_recipes
from cfol_fast.recipes.table import NAME
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


def stored(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Every table below `folder`, in the paper's order."""
    order = {name: i for i, name in enumerate(list_recipes())}
    found = [(path.parent, read_table(path.parent)) for path in sorted(folder.glob(f"*/*/{NAME}"))]
    return sorted(
        found,
        key=lambda item: (item[1]["scale"], order.get(item[1]["recipe"], len(order)), item[1]["recipe"]),
    )


def write_index(folder: Path) -> Path:
    """Writes README.md into `folder`, and the tables' own pages again."""
    found = stored(folder)
    if not found:
        raise InputError(
            f"{folder} holds no tables: expected {folder}/SCALE/RECIPE/{NAME} (cfol-fast reproduce --out {folder}/SCALE)"
        )
    for place, table in found:
        atomic.write_text(place / "table.md", render.markdown(table))
        atomic.write_text(place / "table.tex", render.latex(table))
    path = folder / "README.md"
    atomic.write_text(path, text(folder))
    return path


def text(folder: Path) -> str:
    """What README.md must say."""
    notes = read_toml(folder / NOTES) if (folder / NOTES).exists() else {}
    tables = stored(folder)
    lines = [
        "# Results",
        "",
        "Written by `cfol-fast reproduce --index results` from the `table.json` files in these folders: do not edit.",
        "",
    ]
    introduction = notes.get("introduction")
    if isinstance(introduction, str):
        lines += [introduction.strip(), ""]
    there = {table["recipe"] for _, table in tables if table["scale"] == "mini"}
    missing = [name for name in list_recipes() if name not in there]
    if missing:
        lines += [f"Not carried out yet at the mini scale: {', '.join(missing)}.", ""]
    for scale in dict.fromkeys(table["scale"] for _, table in tables):
        lines += _scale(folder, scale, [item for item in tables if item[1]["scale"] == scale], notes)
    return "\n".join(lines).rstrip() + "\n"


def _scale(
    folder: Path, scale: str, tables: list[tuple[Path, dict[str, Any]]], notes: Mapping[str, Any]
) -> list[str]:
    runs = {run for _, table in tables for run in table["runs"]}
    lines = [
        f"## The {scale} scale: {len(tables)} tables and figures, {len(runs)} runs",
        "",
        _summary(tables),
        "",
    ]
    rows = []
    for _, table in tables:
        held = [claim["holds"] for claim in table["claims"] if claim["holds"] is not None]
        seeds = max(
            (len(entry["seeds"]) for block in table["blocks"] for entry in block["entries"]), default=0
        )
        valid = {None: "–", True: "yes", False: "no"}[(table["valid"] or {}).get("ok")]
        count = f"{sum(held)} of {len(held)}" if held else "–"
        link = f"[{table['recipe']}](#{_anchor(table)})"
        rows.append(Row([link], [Cell(text) for text in (table["paper"], str(seeds), count, valid)]))
    columns = ["Paper", "Seeds", "Orderings shown", "Valid"]
    lines.append(Table("recipes", "", "", ["Recipe"], columns, rows, words=True).markdown().rstrip())
    for place, table in tables:
        lines += ["", *_section(folder, place, table, notes.get(f"{scale}/{table['recipe']}", {}))]
    return [*lines, ""]


def _summary(tables: list[tuple[Path, dict[str, Any]]]) -> str:
    """How many of the paper's orderings are shown; a comparison of the same runs that stands in several tables counts once."""
    distinct: dict[str, Mapping[str, Any]] = {}
    for _, table in tables:
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


def _section(folder: Path, place: Path, table: Mapping[str, Any], notes: Mapping[str, Any]) -> list[str]:
    relative = Path(os.path.relpath(place, folder)).as_posix()
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
    for figure in table.get("figures", []):
        lines += ["", f"![{figure}]({relative}/{figure}.svg)"]
    lines += [
        "",
        f"Files: [{relative}]({relative}), a page of them by `cfol-fast report {relative}` in this folder; the runs' `config.json`, `metrics.jsonl` and `result.json` are in [{Path(relative).parent.as_posix()}/runs]({Path(relative).parent.as_posix()}/runs).",
    ]
    return lines
