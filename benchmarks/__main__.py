"""`python -m benchmarks`: every question in a process of its own, one after the other; writes the results
files and the pages.

It does so under each setting (settings.py) in turn, into a file per machine and setting. A run that was
interrupted, or in which a question failed, goes on when it is called again. `python -m benchmarks pgd epoch`
asks only these again and keeps the other rows of this machine's files; `--setting avx2` asks under one
setting alone; `--pages` asks nothing and writes the pages from the files.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks import readme
from benchmarks.machine import RESULTS, instructions, machine, machine_name, versions
from benchmarks.rows import Row, unmarked
from benchmarks.settings import SETTINGS, environment, settings_here
from benchmarks.unfinished import FOLDER, Unfinished, packages
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
    "fingerprint",
    "cfol_step",
    "methods",
    "class_bandit",
    "example_bandit",
    "gather",
    "augmentation",
    "ffcv_feed",
    "decoders",
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


# Seconds after which a question counts as failed.
LONGEST = 3600


def ask(question: str, tiny: bool, cache: Path) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "rows.json"
        start(f"benchmarks.{question}", cache, "--json", str(answer), *["--tiny"] * tiny)
        return [Row(**{**row, "question": question}) for row in json.loads(answer.read_text())]


def profile(cache: Path) -> str:
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "profile.md"
        start("benchmarks.step_profile", cache, "--out", str(answer))
        return answer.read_text(encoding="utf-8")


def start(module: str, cache: Path, *words: str) -> None:
    """cache: where choices of layers are kept, instead of the user's."""
    inside = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-m", module, *words]
    subprocess.run(command, check=True, cwd=ROOT, env=inside, timeout=LONGEST)


def document(rows: list[Row]) -> dict[str, Any]:
    """What a results file holds."""
    return {"machine": machine(), "versions": versions(), "questions": [asdict(row) for row in rows]}


def kept(path: Path, new: list[Row]) -> list[Row]:
    """The rows of the file.

    Those measured again replace the old ones; what the same question answered under other names goes.
    """

    def key(row: Row) -> tuple[str, str]:
        return row.name, unmarked(row.against)

    newer, asked = {key(row): row for row in new}, {row.question for row in new} - {""}
    old = [Row(**row) for row in json.loads(path.read_text())["questions"]] if path.exists() else []
    staying = [row for row in old if key(row) in newer or row.question not in asked]
    return [newer.pop(key(row), row) for row in staying] + list(newer.values())


def updated(path: Path, new: list[Row], of: dict[str, Any] | None = None) -> dict[str, Any]:
    """The file with these rows; in a file of another run they are marked as measured again, with the packages
    that have another version than the file says, and the rest stays as it was.

    of: the machine and the versions of the run, if it is not one of these rows alone.
    """
    of = of or {"machine": machine(), "versions": versions()}
    stored: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {**of, "questions": []}
    if stored["machine"].get("began") != of["machine"]["began"]:
        now, then = packages(of), packages(stored)
        other = [f"{name} {now[name] or 'not installed'}" for name in now if now[name] != then.get(name)]
        again = ", ".join([f"asked again on {machine()['date']}", str(versions()["cfol_fast"]), *other])
        new = [replace(row, note=f"{row.note}; {again}") for row in new]
    return {**stored, "questions": [asdict(row) for row in kept(path, new)]}


def under_settings(settings: list[str], questions: list[str], tiny: bool) -> int:
    """Each setting in a process of its own, since libraries read their limits once."""
    status = 0
    for setting in settings:
        command = [sys.executable, "-m", "benchmarks", "--here", *questions] + ["--tiny"] * tiny
        ended = subprocess.run(command, check=False, cwd=ROOT, env=environment(setting))
        status = status or ended.returncode
    return status


def under_this_setting(questions: list[str], tiny: bool) -> int:
    began = time.monotonic()
    failed = asked_again(questions or list(QUESTIONS), tiny) if questions or tiny else whole_run()
    if not tiny:
        readme.update()
    print(f"--- {instructions()}: {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    if failed:
        print(f"these questions failed: {', '.join(failed)}; ask again, by name or all", file=sys.stderr)
    return 1 if failed else 0


def asked_again(questions: list[str], tiny: bool) -> list[str]:
    """Asks these; returns those that failed."""
    path, failed = RESULTS / f"{machine_name()}.json", []
    with tempfile.TemporaryDirectory() as cache:
        for question in questions:
            print(f"--- {question}, {instructions()}", flush=True)
            try:
                rows = ask(question, tiny, Path(cache))
            except FAILURES as error:
                # The others are still asked: a whole run takes an hour.
                failed.append(f"{question} ({why(error)})")
                continue
            if not tiny:
                atomic.write_json(path, updated(path, rows))
    return failed


def whole_run() -> list[str]:
    """Asks what the unfinished run has not answered yet; returns the questions that failed."""
    path, run, failed = RESULTS / f"{machine_name()}.json", Unfinished(FOLDER / machine_name()), []
    for question in QUESTIONS:
        before = run.seconds(question)
        if before is not None:
            print(f"--- {question}, {instructions()}: was answered in {before:.0f} s", flush=True)
            continue
        print(f"--- {question}, {instructions()}", flush=True)
        began = time.monotonic()
        try:
            rows = ask(question, False, run.cache)
        except FAILURES as error:
            failed.append(f"{question} ({why(error)})")
            continue
        took = time.monotonic() - began
        run.add(question, rows, took)
        atomic.write_json(path, updated(path, rows, run.of))
        print(f"--- {question}, {instructions()}: took {took:.0f} s", flush=True)
    if not failed:
        atomic.write_json(path, run.document(QUESTIONS, profile(run.cache)))
        run.remove()
    return failed


FAILURES = (subprocess.CalledProcessError, subprocess.TimeoutExpired)


def why(error: Exception) -> str:
    return (
        f"status {error.returncode}"
        if isinstance(error, subprocess.CalledProcessError)
        else f"more than {LONGEST} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "questions", nargs="*", metavar="QUESTION", help=f"default: all of {', '.join(QUESTIONS)}"
    )
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes; nothing is written")
    parser.add_argument(
        "--setting", choices=SETTINGS, help="only this one; default: all that this machine has"
    )
    parser.add_argument(
        "--pages", action="store_true", help="asks nothing; writes the pages from the results files"
    )
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := [question for question in args.questions if question not in QUESTIONS]:
        parser.error(f"there is no question {', '.join(unknown)}; there are {', '.join(QUESTIONS)}")
    if args.pages:
        readme.update()
        return 0
    if args.here:
        return under_this_setting(args.questions, args.tiny)
    return under_settings([args.setting] if args.setting else settings_here(), args.questions, args.tiny)


if __name__ == "__main__":
    sys.exit(main())
