"""results/README.md: every kept comparison on one page, made from the kept JSON alone, so that a test can
hold the two together.

Why an ordering of the paper is not shown cannot be computed: a person writes it into `notes.toml` beside the
tables (`["scale/recipe"]`, then the ordering's key), and a missing explanation is said as such. So does what
was tried before a fair table (`["scale/frontier"]`, `note`).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cfol_fast import atomic
from cfol_fast.errors import InputError
from cfol_fast.recipes import paper, render
from cfol_fast.recipes.frontier import plan
from cfol_fast.recipes.frontier import text as frontier
from cfol_fast.recipes.recipe import list_recipes, load_recipe
from cfol_fast.reporting import Cell, Row, Table
from cfol_fast.runs.comparisons import CONTRADICTED, NOT_SHOWN, SHOWN
from cfol_fast.runs.toml_files import read_toml
from tools.collection import KEPT_RUNS, collect, read_frontiers, read_kept

NOTES = "notes.toml"
VERDICTS = (SHOWN, NOT_SHOWN, f"{NOT_SHOWN} (one seed)", CONTRADICTED)
UNEXPLAINED = "(no explanation written yet)"


def write_index(folder: Path) -> Path:
    """Writes README.md into `folder`."""
    if not read_kept(folder) and not read_frontiers(folder):
        raise InputError(
            f"{folder} holds no results: expected {folder}/SCALE/RECIPE.json "
            f"(python -m tools.index {folder} --collect REPRODUCTION writes them)"
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
        "Written by `python -m tools.index results` from the JSON files below this folder: do not edit.",
        "",
    ]
    introduction = notes.get("introduction")
    if isinstance(introduction, str):
        lines += [introduction.strip(), ""]
    there = {table["recipe"] for table in tables if table["scale"] == "mini"}
    frontiers = {facts["scale"]: facts for facts in read_frontiers(folder)}
    for scale, facts in frontiers.items():
        lines += _frontier(facts, notes.get(f"{scale}/frontier", {}))
    for path in sorted(folder.glob(f"*/{KEPT_RUNS}")):
        if path.parent.name not in frontiers:
            lines += _unfinished(path.parent.name)
    for scale in dict.fromkeys(table["scale"] for table in tables):
        lines += _scale(scale, [table for table in tables if table["scale"] == scale], notes)
    same = [
        name for name in list_recipes() if any(name == other["recipe"] for t in tables for other in t["also"])
    ]
    if same:
        lines += _without_evidence(same)
    missing = [name for name in list_recipes() if name not in there and name not in same]
    if missing:
        lines += [f"Not carried out yet at the mini scale: {', '.join(missing)}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _frontier(facts: Mapping[str, Any], notes: Mapping[str, Any]) -> list[str]:
    scale = facts["scale"]
    body = frontier.markdown_body(facts, f"{scale}/frontier.svg").rstrip()
    files = f"The facts: [{scale}/frontier.json]({scale}/frontier.json); what every image was taken for: "
    files += f"[{scale}/predictions.json.gz]({scale}/predictions.json.gz)."
    note = [str(notes["note"]).strip(), ""] if notes.get("note") else []
    return [_fair(scale), "", f"{facts['title']}.", "", *note, body, "", files, ""]


def _fair(scale: str) -> str:
    return f"## The fair table: the {scale} scale"


def _unfinished(scale: str) -> list[str]:
    file = f"{scale}/{KEPT_RUNS}"
    text = (
        f"Not finished, and so no evidence yet. Its finished runs are in [{file}]({file}), and the others are"
        " trained by "
    )
    embedded = plan.read().scales[scale].run.get("data.name") == "fashion-mini"
    data = "" if embedded else " --data DIR"
    command = f"`cfol-fast reproduce frontier --scale {scale}{data} --take results/{file} --parallel`"
    return [_fair(scale), "", f"{text}{command}.", ""]


def _without_evidence(names: list[str]) -> list[str]:
    """Recipes whose mini form is the same runs on the same images as another's are no evidence of
    their own.
    """
    rows = [
        Row(
            [name],
            [
                Cell(paper.reference(name)),
                Cell(load_recipe(name).title),
                Cell(f"`cfol-fast reproduce {name} --data DIR`"),
            ],
        )
        for name in names
    ]
    table = Table("needs", "", "", ["Recipe"], ["Paper", "What it is", "Command"], rows, words=True)
    text = (
        "At the mini scale these would be runs of the recipes above under another name. They need their data"
        " sets, and a GPU:"
    )
    return ["## Needs its data set", "", text, "", table.markdown().rstrip(), ""]


def _scale(scale: str, tables: list[dict[str, Any]], notes: Mapping[str, Any]) -> list[str]:
    runs = {run for table in tables for run in table["runs"]}
    data = sorted({name for table in tables for name in table["datasets"]})
    lines = [
        (
            f"## The {scale} scale: {len(tables)} of the paper's tables and figures, {len(runs)} runs on"
            f" {', '.join(data)}"
        ),
        "",
        _summary(tables),
        "",
    ]
    rows = []
    for table in tables:
        held = [claim["verdict"] == SHOWN for claim in distinct_claims([table])]
        seeds = max(
            (len(entry["seeds"]) for block in table["blocks"] for entry in block["entries"]), default=0
        )
        valid = {None: "–", True: "yes", False: "no"}[(table["valid"] or {}).get("ok")]
        count = f"{sum(held)} of {len(held)}" if held else "–"
        link = f"[{table['recipe']}](#{_anchor(table)})"
        rows.append(Row([link], [Cell(text) for text in (table["paper"], str(seeds), count, valid)]))
    columns = ["Paper", "Seeds", "Orderings shown", "Valid"]
    lines.append(Table("recipes", "", "", ["Recipe"], columns, rows, words=True).markdown().rstrip())
    for table in tables:
        lines += ["", *_section(table, notes.get(f"{scale}/{table['recipe']}", {}))]
    return [*lines, ""]


def distinct_claims(tables: list[dict[str, Any]]) -> list[Mapping[str, Any]]:
    """The measured orderings, each once: one whose runs are all among another's of the same figure says
    nothing of its own.
    """
    measured = [
        (claim, table["checkpoint"])
        for table in tables
        for claim in table["claims"]
        if claim["ours"] is not None
    ]
    kept: list[tuple[Mapping[str, Any], str]] = []
    for item in sorted(measured, key=lambda item: -sum(len(runs) for runs, _ in item[0]["compared"])):
        if not any(_within(item, other) for other in kept):
            kept.append(item)
    return [claim for claim, _ in kept]


def _within(item: tuple[Mapping[str, Any], str], other: tuple[Mapping[str, Any], str]) -> bool:
    (claim, checkpoint), (host, of_host) = item, other
    return (claim["metric"], checkpoint) == (host["metric"], of_host) and all(
        attack == of_attack and (runs == of_runs or (bool(runs) and set(runs) <= set(of_runs)))
        for (runs, attack), (of_runs, of_attack) in zip(claim["compared"], host["compared"], strict=True)
    )


def _summary(tables: list[dict[str, Any]]) -> str:
    """How many of the paper's orderings are shown; what stands in several tables counts once."""
    distinct = distinct_claims(tables)
    sizes = Counter(map(render.verdict, distinct))
    listed = "; ".join(f"{word}: {sizes[word]}" for word in VERDICTS if word in sizes)
    return (
        f"The paper's orderings, {len(distinct)} distinct comparisons: {listed}. They are descriptive: each"
        " is judged by its own 95 % interval over the seeds, without a correction for their number; what was"
        " declared beforehand stands in the fair table."
    )


def _anchor(table: Mapping[str, Any]) -> str:
    return f"{table['recipe']}-{table['scale']}"


def _section(table: Mapping[str, Any], notes: Mapping[str, Any]) -> list[str]:
    heading = f"### {table['recipe']}: {table['title']}"
    lines = [f'<a id="{_anchor(table)}"></a>', "", heading, "", render.markdown_body(table).rstrip()]
    failed = [claim for claim in table["claims"] if claim["ours"] is not None and claim["ours"] <= 0]
    if failed:
        lines += ["", "With the other sign here, and why:", ""]
        lines += [
            f"- {claim['text']}: {notes.get(claim['key']) or notes.get('why') or UNEXPLAINED}"
            for claim in failed
        ]
    if notes.get("note"):
        lines += ["", str(notes["note"]).strip()]
    for figure in table["figures"]:
        lines += ["", f"![{figure.removesuffix('.svg')}]({table['scale']}/{figure})"]
    file = f"{table['scale']}/{table['recipe']}.json"
    return [*lines, "", f"The numbers, and every run's counts per class: [{file}]({file})."]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.index", description="Writes DIR/README.md.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder with the kept results")
    parser.add_argument(
        "--collect",
        type=Path,
        metavar="REPRODUCTION",
        help="first keep the tables and figures of a reproduction's folder in DIR, one JSON per comparison",
    )
    args = parser.parse_args(argv)
    try:
        if args.collect is not None:
            collect(args.collect, args.folder)
        print(write_index(args.folder))
    except InputError as error:
        print(f"index: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
