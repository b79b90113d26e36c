"""What a whole run has answered so far: a run that is interrupted, or in which a question fails, goes on from
here.

It stands outside the results, with a cache folder of its own: every run lets the ways of the layers race
anew, on the machine as it is then, and whatever was chosen while somebody else was computing does not count.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.machine import commit, machine, versions
from benchmarks.rows import Row
from cfol_fast import atomic

FOLDER = Path(__file__).parent.parent / "build" / "bench"


class Unfinished:
    """The run in this folder, or a new one where there is none or other packages were measured."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file, self.cache = folder, folder / "answers.json", folder / "cache"
        new: dict[str, Any] = {"machine": machine(), "versions": versions(), "answers": {}}
        stored = json.loads(self.file.read_text()) if self.file.exists() else None
        if stored is not None and packages(stored) == packages(new):
            self.state = stored
        else:
            self.remove()
            self.state = new
        self.cache.mkdir(parents=True, exist_ok=True)

    @property
    def of(self) -> dict[str, Any]:
        """The machine and the versions when it began."""
        return {"machine": self.state["machine"], "versions": self.state["versions"]}

    def seconds(self, question: str) -> float | None:
        """How long the question took; None if it has no answer yet."""
        answer = self.state["answers"].get(question)
        return None if answer is None else float(answer["seconds"])

    def add(self, question: str, rows: list[Row], seconds: float) -> None:
        began = self.state["versions"]["cfol_fast"]
        now = commit()
        marked = rows if now == began else [replace(row, note=f"{row.note}; asked at {now}") for row in rows]
        answer = {"rows": [asdict(row) for row in marked], "seconds": round(seconds, 1)}
        self.state["answers"][question] = answer
        atomic.write_json(self.file, self.state)

    def document(self, order: tuple[str, ...], profile: str) -> dict[str, Any]:
        """What the results file of the finished run holds."""
        answers = self.state["answers"]
        taken = {question: answers[question]["seconds"] for question in order}
        minutes = round(sum(taken.values()) / 60, 1)
        return {
            "machine": {**self.state["machine"], "minutes": minutes, "seconds": taken},
            "versions": self.state["versions"],
            "questions": [row for question in order for row in answers[question]["rows"]],
            "choices": chosen_in(self.cache),
            "profile": profile,
        }

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def packages(state: dict[str, Any]) -> dict[str, str | None]:
    """All versions but our own: a fault that is mended in the middle of a run does not begin it again."""
    return {name: version for name, version in state["versions"].items() if name != "cfol_fast"}


def chosen_in(cache: Path) -> dict[str, str]:
    """Layer: the way that its race chose, by the files that cfol_fast.frozen.autotune keeps."""
    found: dict[str, str] = {}
    for file in sorted(cache.glob("cfol_fast/choices-*.json")):
        found |= json.loads(file.read_text())["choices"]
    return dict(sorted(found.items()))
