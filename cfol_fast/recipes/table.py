"""The table of a recipe as data: our numbers from the runs' JSON, the paper's beside them, differences,
seeds, orderings.

Everything that is shown later (Markdown, LaTeX, the page, results/README.md) is rendered from this dictionary
alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cfol_fast.errors import InputError
from cfol_fast.methods import METHODS
from cfol_fast.recipes import paper
from cfol_fast.recipes.planning import Cell, Job, Plan
from cfol_fast.recipes.recipe import Claim, Count, Recipe
from cfol_fast.runs.accuracy import Accuracy
from cfol_fast.runs.comparisons import Difference, paired
from cfol_fast.runs.frame import Summary, paired_by_seed
from cfol_fast.runs.json_files import read_object
from cfol_fast.runs.metrics import METRICS
from cfol_fast.runs.records import join_versions, read_finished

FORMAT = 1
NAME = "table.json"
VALID_TIMES_CHANCE = 3.0
NOT_MEASURED = "not measured"


def build(plan: Plan, out: Path, command: str) -> dict[str, Any]:
    """The table of a plan whose runs and evaluations are all there."""
    recipe, scale = plan.recipe, plan.scale
    blocks = []
    for block in recipe.blocks:
        cells = [cell for cell in plan.cells if cell.block.name == block.name and cell.shown]
        blocks.append(
            {
                "name": block.name,
                "title": block.title_at(scale),
                "entries": [_entry(recipe, cell, out) for cell in cells],
            }
        )
    jobs = plan.jobs()
    results = [read_result(job, out) for job in jobs]
    return {
        "format": FORMAT,
        "recipe": recipe.name,
        "source": recipe.source,
        "title": recipe.title,
        "paper": paper.reference(recipe.name),
        "caption": paper.caption(recipe.name),
        "scale": scale,
        "command": command,
        "layout": recipe.layout,
        "metrics": recipe.metrics,
        "parameters": recipe.parameters,
        "checkpoint": recipe.checkpoint,
        "datasets": sorted({str(result["dataset"]) for result in results}),
        "models": sorted({str(result["model"]) for result in results}),
        "valid": _valid(plan, out),
        "blocks": blocks,
        "claims": judge(recipe.claims, blocks),
        "counts": [_count(count, block, recipe.name) for count in recipe.counts for block in blocks],
        "footnotes": _footnotes(plan, blocks),
        "runs": [job.name for job in jobs],
        "seconds": round(sum(float(result.get("seconds") or 0.0) for result in results), 1),
        "versions": join_versions(result.get("versions") or {} for result in results),
    }


def read_result(job: Job, out: Path) -> dict[str, Any]:
    _check_there(job.folder(out) / "result.json")
    result = read_finished(job.folder(out))
    # A copied folder under another seed's name would count as that seed.
    if result.get("seed", job.config.seed) != job.config.seed:
        raise InputError(
            f"{job.folder(out)} holds a run of seed {result['seed']}, not {job.config.seed}: delete it, and"
            " it is trained"
        )
    return result


def _read(path: Path) -> dict[str, Any]:
    _check_there(path)
    return read_object(path)


def _check_there(path: Path) -> None:
    if not path.exists():
        raise InputError(f"{path} is not there yet: the reproduction is unfinished")


def measurements(recipe: Recipe, cell: Cell, out: Path) -> list[dict[str, Any]]:
    """{"clean": R, "robust": R} of each seed of a cell, for the checkpoint and the attack that the recipe is
    about.
    """
    if cell.checkpoint is not None:
        return [_read(cell.pretrained_file(out))]
    if cell.attack is not None:
        return [_read(job.evaluation_file(out, cell.attack, recipe.checkpoint)) for job in cell.jobs]
    return [_kept(read_result(job, out), recipe.checkpoint, job.folder(out)) for job in cell.jobs]


def _kept(result: Mapping[str, Any], checkpoint: str, folder: Path) -> dict[str, Any]:
    if checkpoint == "best-average":
        return dict(result["test"])
    if checkpoint not in result.get("checkpoints", {}):
        raise InputError(f"{folder}/result.json has no checkpoint {checkpoint!r}")
    return dict(result["checkpoints"][checkpoint])


def _entry(recipe: Recipe, cell: Cell, out: Path) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": cell.entry.name, "title": cell.entry.title}
    printed = {
        metric: paper.number(recipe.numbers, cell.block.name, cell.entry.name, metric)
        for metric in recipe.metrics
    }
    if cell.absent:
        assert cell.entry.pretrained is not None
        entry["absent"] = f"no checkpoint given ({cell.entry.pretrained.hint})"
        found: list[dict[str, Any]] = []
    else:
        found = measurements(recipe, cell, out)
    entry["seeds"] = [job.config.seed for job in cell.jobs]
    entry["runs"] = [job.name for job in cell.jobs]
    entry["method"] = cell.jobs[0].config.method if cell.jobs else None
    entry["model"] = cell.jobs[0].config.model.name if cell.jobs else None
    entry["parameters"] = {
        name: cell.jobs[0].config.params.get(name) for name in recipe.parameters if cell.jobs
    }
    entry["attack"] = cell.attack
    if cell.checkpoint is not None:
        entry["checkpoint"] = str(cell.checkpoint)
    entry["values"] = {}
    for metric in recipe.metrics:
        values = [_statistic(item, metric) for item in found if item.get(metric.partition(".")[0])]
        entry["values"][metric] = _value(values, printed[metric])
    entry["per_class"] = {
        kind: _per_class([item[kind] for item in found if item.get(kind)]) for kind in ("clean", "robust")
    }
    return entry


def _statistic(measured: Mapping[str, Any], metric: str) -> float:
    """A metric of a recipe, such as "robust.average".

    The paper's average is over the classes: see docs/differences.md.
    """
    kind, _, statistic = metric.partition(".")
    found = measured[kind]
    if statistic == "average" and found.get("class_average") is not None:
        statistic = "class_average"
    if statistic in found:
        return float(found[statistic])
    # A file of before the metric was there.
    return Accuracy.from_json(found, metric).metric(statistic)


def _value(values: Sequence[float], printed: paper.Number | None) -> dict[str, Any]:
    mean, deviation = _mean_deviation(values) if values else (None, None)
    return {
        "mean": mean,
        "deviation": deviation,
        "values": list(values),
        "paper": printed.value if printed else None,
        "paper_deviation": printed.deviation if printed else None,
        "difference": round(mean - printed.value, 6) if printed and mean is not None else None,
    }


def _mean_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """As tables hold them: means of several values and deviations with six digits."""
    found = Summary(tuple(values))
    if found.deviation is None:
        return found.mean, None
    return round(found.mean, 6), round(found.deviation, 6)


def _per_class(accuracies: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not accuracies:
        return None
    names = list(accuracies[0]["per_class"])
    found = {}
    for name in names:
        mean, deviation = _mean_deviation([float(a["per_class"][name]) for a in accuracies])
        found[name] = [round(mean, 6), deviation]
    return found


def metric_title(metric: str) -> str:
    """robust.worst -> robust worst class"""
    split, _, statistic = metric.partition(".")
    return f"{split} {METRICS[statistic].phrase()}"


def judge(claims: Sequence[Claim], blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One verdict per claim and block: is the ordering that the paper's table shows shown by ours, over the
    seeds of both?

    None of them was declared beforehand, so each stands for itself, with its own 95 % interval. One seed
    shows nothing.
    """
    return [judged for claim in claims for judged in _judge(claim, blocks)]


def _judge(claim: Claim, blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for block in blocks:
        entries = {entry["name"]: entry for entry in block["entries"]}
        if claim.better not in entries or claim.than not in entries:
            continue
        better, than = entries[claim.better], entries[claim.than]
        a, b = better["values"][claim.metric], than["values"][claim.metric]
        known = a["paper"] is not None and b["paper"] is not None
        difference = _difference(better, than, claim.metric)
        found.append(
            {
                "key": claim.key if len(blocks) == 1 else f"{block['name']}: {claim.key}",
                "text": (
                    f"{_label(better)} above {_label(than)}, {metric_title(claim.metric)}"
                    + (f" ({block['title']})" if len(blocks) > 1 else "")
                ),
                "metric": claim.metric,
                "compared": [[entry["runs"], entry["attack"]] for entry in (better, than)],
                "paper": round(a["paper"] - b["paper"], 6) if known else None,
                "ours": None if difference is None else round(difference.mean, 6),
                "seeds": 0 if difference is None else len(difference.values),
                "interval": None if difference is None else difference.to_json()["interval"],
                "verdict": NOT_MEASURED if difference is None else difference.verdict,
            }
        )
    return found


def _difference(better: Mapping[str, Any], than: Mapping[str, Any], metric: str) -> Difference | None:
    """Paired by seed; a checkpoint that was given by path has none, and is compared as it is."""
    a, b = (entry["values"][metric]["values"] for entry in (better, than))
    if not a or not b:
        return None
    if len(better["seeds"]) != len(a) or len(than["seeds"]) != len(b):
        return paired(a, b)
    first, second = (dict(zip(entry["seeds"], v, strict=True)) for entry, v in ((better, a), (than, b)))
    return paired_by_seed(first, second)


def _label(entry: Mapping[str, Any]) -> str:
    shown = [f"{name} {value:g}" for name, value in entry["parameters"].items() if isinstance(value, float)]
    return str(entry["title"]) + (f" ({', '.join(shown)})" if shown else "")


def improved_worst_classes(before: Sequence[float], after: Sequence[float]) -> int:
    """The largest m for which the m worst classes are better on average: each model's own worst ones."""
    low, high, best = 0.0, 0.0, 0
    for m, (a, b) in enumerate(zip(sorted(before), sorted(after), strict=True), start=1):
        low, high = low + a, high + b
        if high > low:
            best = m
    return best


def _count(count: Count, block: dict[str, Any], recipe: str) -> dict[str, Any]:
    entries = {entry["name"]: entry for entry in block["entries"]}
    before, after = (entries[name]["per_class"][count.of] for name in (count.than, count.better))
    ours = improved_worst_classes([v[0] for v in before.values()], [v[0] for v in after.values()])
    return {
        "text": f"worst classes whose average {count.of} accuracy {entries[count.better]['title']} improves",
        "block": block["name"],
        "ours": ours,
        "classes": len(before),
        "paper": paper.text(recipe, "improved_worst_classes"),
    }


def _valid(plan: Plan, out: Path) -> dict[str, Any] | None:
    """A mini table says something only where adversarial training worked at all: the baseline well above
    chance.
    """
    if plan.scale != "mini":
        return None
    results = [read_result(job, out) for job in plan.jobs() if METHODS[job.config.method].baseline]
    if not results:
        return {"ok": None, "text": "no run of the baseline in this recipe to judge by"}
    averages = [(result["test"]["robust"]["average"], len(result["classes"])) for result in results]
    lowest, classes = min(averages, key=lambda pair: pair[0] * pair[1])
    limit = VALID_TIMES_CHANCE / classes
    return {"ok": lowest >= limit, "erm_robust_average": lowest, "limit": round(limit, 6), "text": ""}


def _footnotes(plan: Plan, blocks: list[dict[str, Any]]) -> list[str]:
    recipe = plan.recipe
    notes = list(recipe.footnotes)
    methods = {job.config.method for cell in plan.cells if cell.shown for job in cell.jobs}
    notes += [row.note for name, row in METHODS.items() if name in methods and row.note]
    if plan.scale == "mini":
        notes += recipe.mini_footnotes
        runs = [[entry["runs"] for entry in block["entries"]] for block in blocks]
        attacks = [[entry["attack"] for entry in block["entries"]] for block in blocks]
        if (
            len(blocks) > 1
            and all(item == runs[0] for item in runs)
            and all(item == attacks[0] for item in attacks)
        ):
            notes.append(
                "At the mini scale all blocks are the same runs on the same images, beside the paper's"
                " several data sets."
            )
    notes += [
        f"{entry['title']}: {entry['absent']}."
        for block in blocks
        for entry in block["entries"]
        if "absent" in entry
    ]
    return list(dict.fromkeys(notes))
