"""The runs of a fair table with accuracies of our choice: facts, text and drawing are tested without
training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cfol_fast.recipes.frontier import facts, plan
from cfol_fast.recipes.planning import Job
from cfol_fast.runs import predictions
from cfol_fast.runs.accuracy import Accuracy
from cfol_fast.runs.offset_file import RULE
from tests.recipes.fake_runs import CLASSES, write_run

IMAGES = 100


def predicted(right: Sequence[int]) -> list[int]:
    """What each of 100 images a class is taken for: so many right, the others for the next class."""
    return [c if i < n else (c + 1) % 10 for c, n in enumerate(right) for i in range(IMAGES)]


LABELS = [c for c in range(10) for _ in range(IMAGES)]


def figures(right: Sequence[int]) -> dict[str, Any]:
    confusion = [[0] * 10 for _ in range(10)]
    for label, guess in zip(LABELS, predicted(right), strict=True):
        confusion[label][guess] += 1
    return Accuracy.from_confusion(CLASSES, confusion).to_json()


def write(job: Job, out: Path, worst: int, others: int) -> None:
    """A run whose first class has `worst` images of 100 right under attack, and every other `others`."""
    folder = write_run(job, out)
    right, clean = [worst, *[others] * 9], [min(100, worst + 20), *[min(100, others + 20)] * 9]
    both = {"clean": figures(clean), "robust": figures(right)}
    rules = {"clean": predicted(clean), "robust": predicted(right)}
    names = ("last", "best-average", "best-worst", "ema-best-average", "ema-best-worst", "ema-last")
    result = json.loads((folder / "result.json").read_text())
    result["test"] = both
    result["checkpoints"] = {name: {"epoch": 2, **both} for name in names}
    result["predictions"] = predictions.write(folder, LABELS, dict.fromkeys(names, rules))
    (folder / "result.json").write_text(json.dumps(result))
    row = {"kind": "validation", "epoch": 2, "step": 2, "split": "holdout", **both}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    kept = {"labels": predictions.pack(LABELS), "examples": len(LABELS)}
    kept["predicted"] = {kind: predictions.pack(found) for kind, found in rules.items()}
    (folder / "offsets.json").write_text(json.dumps({"rule": RULE, "test": {**both, **kept}}))


def attack(job: Job, out: Path, right: Sequence[int]) -> dict[str, Any]:
    """The file that AutoAttack leaves beside a run."""
    kept = {"clean": predicted([50] * 10), "robust": predicted(right)}
    found = {
        "attack": {"kind": "autoattack"},
        "clean": figures([50] * 10),
        "robust": figures(right),
        "labels": predictions.pack(LABELS),
        "examples": len(LABELS),
        "predicted": {kind: predictions.pack(taken) for kind, taken in kept.items()},
    }
    (job.folder(out) / "eval-autoattack.json").write_text(json.dumps(found))
    return found


def searched(row: str, settings: dict[str, Any], worst: float, chosen: bool = True) -> dict[str, Any]:
    held = {"average": 0.6, "tail": 0.3, "worst": worst}
    return {"row": row, "settings": settings, "run": "r", "holdout": held, "chosen": chosen}


def make(
    out: Path,
    worst: Mapping[str, Sequence[int]],
    others: Mapping[str, int],
    held: Mapping[str, float] | None = None,
    seeds: Mapping[str, Sequence[int]] | None = None,
    scale: str = "mini",
) -> dict[str, Any]:
    """The facts of rows by name. worst: images right in the worst class, for each seed. held: the worst class
    of the rivals on the search's hold-out. seeds: of rows that have others than 10, 11, ..."""
    table = plan.read()
    place = plan.Place(table, table.scales["mini"], device="cpu")
    numbers = {name: (seeds or {}).get(name, range(10, 10 + len(of_row))) for name, of_row in worst.items()}
    jobs = {name: [place.run(table.row(name), {}, seed) for seed in numbers[name]] for name in worst}
    for name, of_row in jobs.items():
        for job, right in zip(of_row, worst[name], strict=True):
            write(job, out, right, others[name])
    search = [searched("cfol", {"eta": eta}, eta * 1e3, eta == 2e-4) for eta in (1e-4, 2e-4)]
    search += [searched(name, {}, value) for name, value in (held or {}).items()]
    rivals = facts.rank_rivals(table, search)
    budgets = {name: plan.passes(of_row[0].config, 4000, 1000) for name, of_row in jobs.items()}
    attacked = {"erm": attack(jobs["erm"][0], out, [3, *[40] * 9])}
    rival = rivals[0][0] if rivals else None
    settings = {name: {"eta": 2e-4} if name == "cfol" else {} for name in jobs}
    return facts.build(
        table, scale, out, jobs, settings, search, rivals, rival, budgets, attacked, "the command"
    )
