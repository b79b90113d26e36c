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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import readme
from benchmarks.machine import RESULTS, machine, machine_name, versions
from benchmarks.rows import Row, markdown
from cfol_fast import atomic

ROOT = Path(__file__).parent.parent
# In the order of the table.
QUESTIONS = (
    "pgd",
    "pgd_step",
    "cfol_step",
    "class_bandit",
    "example_bandit",
    "gather",
    "augmentation",
    "ffcv_feed",
    "active_set",
    "epoch",
    "memory",
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


def kept(path: Path, asked: list[str], answers: dict[str, list[Row]]) -> list[Row]:
    """The rows of an earlier run, with those of the questions asked now replaced in their places."""
    new = {(row.name, row.against.split(" (")[0]): row for question in asked for row in answers[question]}
    old = [Row(**row) for row in json.loads(path.read_text())["questions"]] if path.exists() else []
    rows = [new.pop((row.name, row.against.split(" (")[0]), row) for row in old]
    return rows + list(new.values())


def update_readme(rows: list[Row]) -> None:
    facts = machine()
    head = f"{facts['cpu']}, {facts['cores']} cores, {facts['threads']} threads, torch {versions()['torch']}, float32."
    readme.replace_section("table", f"{head}\n\n{markdown(rows)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", nargs="*", choices=[[], *QUESTIONS], help="default: all of them")
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes; nothing is written")
    args = parser.parse_args()
    asked = args.questions or list(QUESTIONS)
    began = time.monotonic()
    answers: dict[str, list[Row]] = {}
    for question in asked:
        print(f"--- {question}", flush=True)
        answers[question] = ask(question, args.tiny)
    print(f"--- {(time.monotonic() - began) / 60:.1f} minutes")
    if args.tiny:
        return
    if not args.questions:
        subprocess.run([sys.executable, "-m", "benchmarks.step_profile"], check=True, cwd=ROOT)
    path = RESULTS / f"{machine_name()}.json"
    rows = kept(path, asked, answers) if args.questions else [row for name in asked for row in answers[name]]
    atomic.write_json(path, document(rows))
    update_readme(rows)


if __name__ == "__main__":
    main()
