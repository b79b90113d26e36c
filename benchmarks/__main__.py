"""`python -m benchmarks`: every question in a process of its own, one after the other; writes the results file and the table.

`python -m benchmarks pgd epoch` asks only these again and keeps the other rows of this machine's file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks import readme
from benchmarks.machine import RESULTS, machine, machine_name, versions
from benchmarks.rows import FASTEST, Row
from cfol_fast import atomic

ROOT = Path(__file__).parent.parent
# In the order of the table.
QUESTIONS = (
    "pgd",
    "pgd_step",
    "input_gradient",
    "cfol_step",
    "methods",
    "class_bandit",
    "example_bandit",
    "gather",
    "augmentation",
    "ffcv_feed",
    "active_set",
    "epoch",
    "memory",
    "ranks",
    "dispatches",
    "scaling",
    "gpu",
)


def ask(question: str, tiny: bool) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "rows.json"
        command = [sys.executable, "-m", f"benchmarks.{question}", "--json", str(answer)] + ["--tiny"] * tiny
        subprocess.run(command, check=True, cwd=ROOT)
        return [Row(**row) for row in json.loads(answer.read_text())]


def document(rows: list[Row]) -> dict[str, Any]:
    """What a results file holds."""
    return {"machine": machine(), "versions": versions(), "questions": [asdict(row) for row in rows]}


def kept(path: Path, new: list[Row]) -> list[Row]:
    """The rows of the file; rows that were measured again replace the old ones."""

    def key(row: Row) -> tuple[str, str]:
        return row.name, row.against.removesuffix(FASTEST)

    newer = {key(row): row for row in new}
    old = [Row(**row) for row in json.loads(path.read_text())["questions"]] if path.exists() else []
    return [newer.pop(key(row), row) for row in old] + list(newer.values())


def updated(path: Path, new: list[Row]) -> dict[str, Any]:
    """The file with these rows measured again and marked as such; machine and versions stay those of the whole run."""
    if not path.exists():
        return document(new)
    again = f"asked again on {machine()['date']}, {versions()['cfol_fast']}"
    marked = [replace(row, note=f"{row.note}; {again}") for row in new]
    stored: dict[str, Any] = json.loads(path.read_text())
    return {**stored, "questions": [asdict(row) for row in kept(path, marked)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "questions", nargs="*", metavar="QUESTION", help=f"default: all of {', '.join(QUESTIONS)}"
    )
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes; nothing is written")
    args = parser.parse_args()
    asked = args.questions or list(QUESTIONS)
    if unknown := [question for question in asked if question not in QUESTIONS]:
        parser.error(f"there is no question {', '.join(unknown)}; there are {', '.join(QUESTIONS)}")
    began = time.monotonic()
    path = RESULTS / f"{machine_name()}.json"
    rows: list[Row] = []
    for question in asked:
        print(f"--- {question}", flush=True)
        rows += ask(question, args.tiny)
        # Written after each question, so that an interrupted run keeps its answers.
        if not args.tiny:
            atomic.write_json(path, updated(path, rows))
    if args.tiny:
        return
    if not args.questions:
        subprocess.run([sys.executable, "-m", "benchmarks.step_profile"], check=True, cwd=ROOT)
        whole = document(rows)
        whole["machine"]["minutes"] = round((time.monotonic() - began) / 60, 1)
        atomic.write_json(path, whole)
    readme.update(json.loads(path.read_text()))
    print(f"--- {(time.monotonic() - began) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
