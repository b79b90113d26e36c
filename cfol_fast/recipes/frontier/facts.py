"""Every number of the fair table, from the runs' files alone. What is shown later is made from this dictionary and nothing else.

Over seeds: means with t-intervals, and paired differences. Three comparisons are declared here, before any run: they alone are
judged (Holm over the three). All other figures describe.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cfol_fast.errors import InputError
from cfol_fast.recipes.frontier.plan import CFOL, ERM, Table
from cfol_fast.recipes.frontier.plan import command as plan_command
from cfol_fast.recipes.planning import Job
from cfol_fast.runs.accuracy import Accuracy
from cfol_fast.runs.comparisons import judge, paired
from cfol_fast.runs.intervals import t_interval
from cfol_fast.runs.json_files import read_object
from cfol_fast.runs.metrics_log import read_rows
from cfol_fast.runs.price import price
from cfol_fast.runs.records import join_versions
from cfol_fast.runs.run_folder import OFFSETS, RESULT

FORMAT = 1
KINDS = ("clean", "robust")
METRICS = {
    "average": "average",
    "class_average": "class average",
    "tail": "20 % tail",
    "worst": "worst class",
    "gap": "best − worst",
}
# The paper's rule, of which the declared comparisons are.
RULE = "best-average"
DECLARED_METRIC = "worst"


def of_run(folder: Path) -> dict[str, dict[str, Accuracy]]:
    """{checkpoint: {"clean": ..., "robust": ...}} of a finished run; "offsets" is the tested checkpoint with class offsets."""
    result = read_object(folder / RESULT)
    found = dict(result["checkpoints"])
    if (folder / OFFSETS).exists():
        found["offsets"] = read_object(folder / OFFSETS)["test"]
    return {
        name: {kind: Accuracy.from_json(kept[kind], f"{folder}: {name}.{kind}") for kind in KINDS}
        for name, kept in found.items()
    }


def holdout(folder: Path) -> Accuracy:
    """Under attack, on the hold-out, of the checkpoint with the best average there: what settings and the rival are chosen by."""
    epoch = read_object(folder / RESULT)["checkpoints"][RULE]["epoch"]
    for row in read_rows(folder):
        if row["kind"] == "validation" and row["epoch"] == epoch:
            return Accuracy.from_json(row["robust"], f"{folder}: hold-out of epoch {epoch}")
    raise InputError(f"{folder} has no accuracies on the hold-out for epoch {epoch}")


def statistic(accuracy: Accuracy, metric: str) -> float:
    if metric == "gap":
        return max(accuracy.per_class.values()) - accuracy.worst
    return float(getattr(accuracy, metric))


def summary(values: Sequence[float]) -> dict[str, Any]:
    """The mean over the seeds with its 95 % t-interval, which one seed does not have."""
    interval = t_interval(values)
    return {
        "mean": _round(math.fsum(values) / len(values)),
        "interval": None if interval is None else [_round(limit) for limit in interval],
        "values": [_round(value) for value in values],
    }


def _round(value: float) -> float:
    return round(value, 6)


def measured(accuracies: Sequence[Mapping[str, Accuracy]]) -> dict[str, Any]:
    """{"clean": {metric: summary}, "robust": ...} over the seeds; `limits`: of the worst class of each seed, for its test images."""
    found: dict[str, Any] = {}
    for kind in KINDS:
        of_kind = [one[kind] for one in accuracies]
        found[kind] = {metric: summary([statistic(one, metric) for one in of_kind]) for metric in METRICS}
        limits = [one.limits("worst") for one in of_kind]
        found[kind]["worst"]["limits"] = [pair and [_round(limit) for limit in pair] for pair in limits]
    return found


def declared(
    values: Mapping[str, Sequence[float]], rival: str | None, titles: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The three comparisons with their verdicts. values: of each row by seed, of which both sides take those they share."""
    pairs = [(CFOL, ERM)] + ([(rival, ERM), (rival, CFOL)] if rival is not None else [])
    pairs = [(better, than) for better, than in pairs if better in values and than in values]
    found = []
    for better, than in pairs:
        shared = min(len(values[better]), len(values[than]))
        found.append(paired(values[better][:shared], values[than][:shared]))
    return [
        {
            "better": better,
            "than": than,
            "text": f"{titles[better]} above {titles[than]}, robust worst class",
            **difference.to_json(),
            "adjusted": float(f"{adjusted:.3g}"),
            "verdict": verdict,
        }
        for (better, than), difference, (verdict, adjusted) in zip(pairs, found, judge(found), strict=True)
    ]


def rank_rivals(table: Table, jobs: Mapping[str, Sequence[Job]], out: Path) -> list[tuple[str, float]]:
    """The rivals, the best first, by their worst class on the hold-out, mean over the seeds."""
    means = {}
    for row in table.rows:
        if row.rival and row.name in jobs:
            worst = [holdout(job.folder(out)).worst for job in jobs[row.name]]
            means[row.name] = _round(math.fsum(worst) / len(worst))
    return sorted(means.items(), key=lambda item: -item[1])


def build(
    table: Table,
    scale: str,
    out: Path,
    jobs: Mapping[str, Sequence[Job]],
    settings: Mapping[str, Mapping[str, Any]],
    search: Sequence[Mapping[str, Any]],
    rivals: Sequence[tuple[str, float]],
    rival: str | None,
    budgets: Mapping[str, Mapping[str, int]],
    autoattack: Mapping[str, Mapping[str, Any]],
    command: str,
) -> dict[str, Any]:
    """The facts of a scale whose runs and tests are all there."""
    rows, tested = [], {name: [of_run(job.folder(out)) for job in of_row] for name, of_row in jobs.items()}
    for row in table.rows:
        if row.name not in jobs:
            continue
        runs, base = tested[row.name], table.base_of(row).name
        rules = [rule for rule in runs[0] if all(rule in one for one in runs)]
        entry: dict[str, Any] = {
            "name": row.name,
            "title": row.title,
            "base": row.base,
            "rival": row.rival,
            "settings": dict(settings[row.name]),
            "seeds": [job.config.seed for job in jobs[row.name]],
            "runs": [job.name for job in jobs[row.name]],
            "command": plan_command(jobs[row.name][0], None),
            "passes": dict(budgets[row.name]),
            "rules": {rule: measured([one[rule] for one in runs]) for rule in rules},
        }
        if base in tested and base != row.name:
            shared = min(len(runs), len(tested[base]))
            sides = ([one[RULE]["robust"] for one in side[:shared]] for side in (tested[base], runs))
            entry["price"] = price(*sides)
        if row.name in autoattack:
            found = autoattack[row.name]
            kept = {kind: Accuracy.from_json(found[kind], f"AutoAttack on {row.name}") for kind in KINDS}
            entry["autoattack"] = {
                **measured([kept]),
                "seed": entry["seeds"][0],
                "images": sum(kept["robust"].count.values()),
                "limits": {m: kept["robust"].limits(m) for m in ("average", "tail", "worst")},
            }
        rows.append(entry)
    worst = {row["name"]: row["rules"][RULE]["robust"][DECLARED_METRIC]["values"] for row in rows}
    titles = {row["name"]: row["title"] for row in rows}
    results = [read_object(job.folder(out) / RESULT) for of_row in jobs.values() for job in of_row]
    first = results[0]
    return {
        "format": FORMAT,
        "kind": "frontier",
        "scale": scale,
        "title": table.title,
        "setting": table.scales[scale].title,
        "command": command,
        "dataset": first["dataset"],
        "model": first["model"],
        "classes": first["classes"],
        "images_per_class": sorted(set(Accuracy.from_json(first["test"]["clean"], "test").count.values())),
        "attack": {key: value for key, value in first["attack"].items() if key != "seed"},
        "common": {**table.run, **table.scales[scale].run},
        "eta_times": table.scales[scale].eta_times,
        "search_seed": table.search_seed,
        "settings_from": table.scales[scale].settings_from,
        "search": [dict(item) for item in search],
        "rivals": [{"name": name, "holdout_worst": value} for name, value in rivals],
        "rival": rival,
        "declared": declared(worst, rival, titles),
        "rows": rows,
        "seconds": round(sum(float(result.get("seconds") or 0.0) for result in results), 1),
        "versions": join_versions(result.get("versions") or {} for result in results),
    }
