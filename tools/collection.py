"""The few files of a reproduction that are worth keeping: one JSON per comparison, and the figures.

A recipe whose runs are all among another's (the mini scale has one data set for several of the paper's) is no
comparison of
its own: its name stands under `also` in the other's file. A kept file holds the recipe's table and, of every
run in it, the settings and how many images of each class were right. From these counts every accuracy and
interval can be computed again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cfol_fast import atomic
from cfol_fast.errors import InputError
from cfol_fast.recipes import kept_predictions
from cfol_fast.recipes.frontier.carrying_out import FACTS
from cfol_fast.recipes.frontier.carrying_out import NAME as FRONTIER
from cfol_fast.recipes.page import read_table
from cfol_fast.recipes.recipe import list_recipes
from cfol_fast.recipes.table import NAME
from cfol_fast.runs.identity import essential_settings
from cfol_fast.runs.json_files import made_from, read_object
from cfol_fast.runs.records import read_finished
from cfol_fast.runs.run_folder import is_old

# Of a fair table that is not finished: the file of its finished runs (`reproduce frontier --keep`).
KEPT_RUNS = "frontier-runs.tar.xz"
Table = dict[str, Any]


def read_kept(folder: Path) -> list[Table]:
    """Every kept comparison below `folder` (FOLDER/SCALE/RECIPE.json), in the paper's order."""
    with made_from(folder):
        found = [
            read_object(path)
            for path in sorted(folder.glob("*/*.json"))
            if path.name != FACTS and not is_old(path.parent)
        ]
        return in_the_papers_order(found)


def read_frontiers(folder: Path) -> list[Table]:
    """The fair tables below `folder` (FOLDER/SCALE/frontier.json), by scale."""
    return [read_object(path) for path in sorted(folder.glob(f"*/{FACTS}")) if not is_old(path.parent)]


def in_the_papers_order(tables: Sequence[Table]) -> list[Table]:
    order = {name: i for i, name in enumerate(list_recipes())}
    return sorted(tables, key=lambda t: (t["scale"], order.get(t["recipe"], len(order)), t["recipe"]))


def collect(reproduction: Path, folder: Path) -> list[Path]:
    """Writes what is worth keeping of the recipes carried out in `reproduction` below `folder`, and returns
    the JSON files.
    """
    with made_from(reproduction):
        return _collect(reproduction, folder)


def _collect(reproduction: Path, folder: Path) -> list[Path]:
    tables = in_the_papers_order(
        [
            read_table(path.parent)
            for path in sorted(reproduction.glob(f"*/{NAME}"))
            if not is_old(path.parent)
        ]
    )
    written = _collect_frontier(reproduction, folder)
    if not tables and not written:
        raise InputError(
            f"{reproduction} holds no tables: expected {reproduction}/RECIPE/{NAME} (cfol-fast reproduce"
            " NAME)"
        )
    for table, also in distinct(tables):
        place = folder / table["scale"]
        place.mkdir(parents=True, exist_ok=True)
        kept = _compact(table, also, reproduction)
        kept["figures"] = _keep_figures(table, reproduction, place)
        written.append(place / f"{table['recipe']}.json")
        atomic.write_text(written[-1], readable_json(kept) + "\n")
        kept_predictions.add(place, reproduction / "runs", list(kept["runs"]))
    return written


def _collect_frontier(reproduction: Path, folder: Path) -> list[Path]:
    source = reproduction / FRONTIER / FACTS
    if not source.exists():
        return []
    facts = read_object(source)
    place = folder / facts["scale"]
    place.mkdir(parents=True, exist_ok=True)
    atomic.write_text(place / FACTS, readable_json(facts) + "\n")
    atomic.write_bytes(place / "frontier.svg", (source.parent / "frontier.svg").read_bytes())
    kept_predictions.add(
        place, reproduction / "runs", [name for row in facts["rows"] for name in row["runs"]]
    )
    return [place / FACTS]


def distinct(tables: Sequence[Table]) -> list[tuple[Table, list[Table]]]:
    """The tables that are comparisons of their own, each with those whose runs are all among its own."""

    def within_another(place: int, table: Table) -> bool:
        return any(
            _contains(other, table) and (at < place or not _contains(table, other))
            for at, other in enumerate(tables)
            if at != place
        )

    hosts: list[tuple[Table, list[Table]]] = [
        (table, []) for place, table in enumerate(tables) if not within_another(place, table)
    ]
    for table in tables:
        if not any(table is host for host, _ in hosts):
            next(also for host, also in hosts if _contains(host, table)).append(table)
    return hosts


def _contains(host: Table, table: Table) -> bool:
    """Whether a table has nothing that another has not: the same runs, with the same attack or with the runs'
    own test.
    """
    if (host["scale"], host["checkpoint"]) != (table["scale"], table["checkpoint"]):
        return False
    tested = _tested(host)
    runs = {run for run, _ in tested}
    return all(item in tested or (item[1] is None and item[0] in runs) for item in _tested(table))


def _tested(table: Table) -> set[tuple[str, str | None]]:
    """What a table compares: each run, with the attack it was tested with; None for the test that every run
    ends with.
    """
    return {
        (run, entry["attack"] and json.dumps(entry["attack"], sort_keys=True))
        for block in table["blocks"]
        for entry in block["entries"]
        for run in entry["runs"] or [str(entry.get("checkpoint"))]
    }


def _compact(table: Table, also: Sequence[Table], reproduction: Path) -> Table:
    """The table without what the runs' counts say, and the runs."""
    blocks = [
        {
            **block,
            "entries": [{k: v for k, v in entry.items() if k != "per_class"} for entry in block["entries"]],
        }
        for block in table["blocks"]
    ]
    runs = {name: _run(reproduction / "runs" / name) for name in table["runs"]}
    names = [{key: other[key] for key in ("recipe", "paper", "title")} for other in also]
    return {**table, "blocks": blocks, "also": names, "runs": runs}


def _run(folder: Path) -> dict[str, Any]:
    """A run's settings and, for each of its checkpoints and evaluations, the images of each class and how
    many were right.
    """
    result = read_finished(folder)
    record: dict[str, Any] = {
        "method": result["method"],
        "seed": result["seed"],
        "settings": essential_settings(read_object(folder / "config.json")),
        "seconds": round(float(result.get("seconds") or 0.0), 1),
        "classes": result["classes"],
        "attack": result["attack"],
        "checkpoints": {
            name: {"epoch": kept.get("epoch"), **_counts(kept)}
            for name, kept in result.get("checkpoints", {}).items()
        },
    }
    evaluations = [read_object(path) for path in sorted(folder.glob("eval-*.json"))]
    if evaluations:
        record["evaluations"] = [{"attack": made["attack"], **_counts(made)} for made in evaluations]
    return record


def _counts(accuracies: Mapping[str, Any]) -> dict[str, Any]:
    """{"images": [n per class], "clean": [right per class], "robust": [...]} of a {"clean": R,
    "robust": R}.
    """
    found: dict[str, Any] = {}
    for kind in ("clean", "robust"):
        if accuracy := accuracies.get(kind):
            found["images"] = list(accuracy["count"].values())
            found[kind] = [
                None if share is None else round(share * accuracy["count"][name])
                for name, share in accuracy["per_class"].items()
            ]
    return found


def _keep_figures(table: Table, reproduction: Path, place: Path) -> list[str]:
    """Copies the figures of a comparison and returns their files' names."""
    kept = []
    for key in table.get("figures", []):
        kept.append(f"{table['recipe']}-{key}.svg")
        atomic.write_bytes(place / kept[-1], (reproduction / table["recipe"] / f"{key}.svg").read_bytes())
    return kept


def readable_json(value: Any, indent: int = 0, width: int = 240) -> str:
    """JSON in which whatever fits on a line stands on one: tables of numbers are read and compared by
    line.
    """
    flat = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if len(flat) + indent <= width or not isinstance(value, (dict, list)) or not value:
        return flat
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        rows = [
            f"{inner}{json.dumps(key, ensure_ascii=False)}: {readable_json(item, indent + 1, width)}"
            for key, item in value.items()
        ]
        return "{\n" + ",\n".join(rows) + "\n" + " " * indent + "}"
    rows = [inner + readable_json(item, indent + 1, width) for item in value]
    return "[\n" + ",\n".join(rows) + "\n" + " " * indent + "]"
