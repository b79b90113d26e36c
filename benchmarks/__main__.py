"""`python -m benchmarks`: every question in a process of its own, one after the other; writes the results files and the pages.

It does so under each setting (settings.py) in turn, into a file per machine and setting. `python -m benchmarks pgd epoch` asks only
these again and keeps the other rows of this machine's files; `--setting avx2` asks under one setting alone.
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
from benchmarks.machine import RESULTS, instructions, machine, machine_name, versions
from benchmarks.rows import FASTEST, Row
from benchmarks.settings import SETTINGS, environment, settings_here
from cfol_fast import atomic

ROOT = Path(__file__).parent.parent
# In the order of the table.
QUESTIONS = (
    "pgd",
    "limit",
    "peak",
    "bfloat16",
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
    "autoattack",
    "epoch",
    "startup",
    "memory",
    "ranks",
    "dispatches",
    "scaling",
    "week",
    "gpu",
)


def ask(question: str, tiny: bool) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "rows.json"
        command = [sys.executable, "-m", f"benchmarks.{question}", "--json", str(answer)] + ["--tiny"] * tiny
        subprocess.run(command, check=True, cwd=ROOT)
        return [Row(**row) for row in json.loads(answer.read_text())]


def profile() -> str:
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "profile.md"
        command = [sys.executable, "-m", "benchmarks.step_profile", "--out", str(answer)]
        subprocess.run(command, check=True, cwd=ROOT)
        return answer.read_text(encoding="utf-8")


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


def under_settings(settings: list[str], questions: list[str], tiny: bool) -> int:
    """Each setting in a process of its own, since libraries read their limits once."""
    status = 0
    for setting in settings:
        command = [sys.executable, "-m", "benchmarks", "--here", *questions] + ["--tiny"] * tiny
        ended = subprocess.run(command, check=False, cwd=ROOT, env=environment(setting))
        status = status or ended.returncode
    return status


def under_this_setting(questions: list[str], tiny: bool) -> int:
    began, asked = time.monotonic(), questions or list(QUESTIONS)
    whole: dict[str, Any] = {"machine": machine(), "versions": versions()}
    path = RESULTS / f"{machine_name()}.json"
    rows: list[Row] = []
    failed = []
    for question in asked:
        print(f"--- {question}, {instructions()}", flush=True)
        try:
            rows += ask(question, tiny)
        except subprocess.CalledProcessError as error:
            # The others are still asked: a whole run takes an hour.
            failed.append(f"{question} (status {error.returncode})")
            continue
        # Written after each question, so that an interrupted run keeps its answers.
        if not tiny:
            atomic.write_json(path, updated(path, rows))
    if not tiny:
        if not questions and not failed:
            whole["questions"], whole["profile"] = [asdict(row) for row in rows], profile()
            whole["machine"]["minutes"] = round((time.monotonic() - began) / 60, 1)
            atomic.write_json(path, whole)
        readme.update()
    print(f"--- {instructions()}: {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    if failed:
        print(f"these questions failed: {', '.join(failed)}; ask them again by name", file=sys.stderr)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "questions", nargs="*", metavar="QUESTION", help=f"default: all of {', '.join(QUESTIONS)}"
    )
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes; nothing is written")
    parser.add_argument(
        "--setting", choices=SETTINGS, help="only this one; default: all that this machine has"
    )
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := [question for question in args.questions if question not in QUESTIONS]:
        parser.error(f"there is no question {', '.join(unknown)}; there are {', '.join(QUESTIONS)}")
    if args.here:
        return under_this_setting(args.questions, args.tiny)
    return under_settings([args.setting] if args.setting else settings_here(), args.questions, args.tiny)


if __name__ == "__main__":
    sys.exit(main())
