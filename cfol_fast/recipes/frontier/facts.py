"""Every number of the fair table, from the runs' files alone.

What is shown later is made from this dictionary and nothing else.

Over seeds: means with t-intervals, and paired differences. Three comparisons are declared here, before any
run of the table's seeds: they alone are judged (Holm over the three). All other figures describe.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from cfol_fast.errors import InputError
from cfol_fast.methods import get as get_method
from cfol_fast.policies.policy import begin_epoch
from cfol_fast.recipes.frontier.plan import CFOL, ERM, Table
from cfol_fast.recipes.frontier.plan import command as plan_command
from cfol_fast.recipes.planning import Job
from cfol_fast.recipes.table import read_result
from cfol_fast.runs import offset_file
from cfol_fast.runs.accuracy import Accuracy
from cfol_fast.runs.comparisons import Difference, judge
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.frame import Frame, Result, Summary, paired_by_seed, shared_seeds
from cfol_fast.runs.json_files import read_object
from cfol_fast.runs.metrics import METRICS, SELECTION
from cfol_fast.runs.metrics_log import read_rows
from cfol_fast.runs.price import price
from cfol_fast.runs.records import join_versions, read_finished
from cfol_fast.runs.run_folder import OFFSETS

FORMAT = 1
KINDS = ("clean", "robust")
# The paper's rule, of which the declared comparisons are.
RULE = "best-average"
OFFSETS_RULE = "offsets"
DECLARED_METRIC = "worst"


def of_run(folder: Path) -> dict[str, dict[str, Accuracy]]:
    """{checkpoint: {"clean": ..., "robust": ...}} of a finished run; "offsets" is the tested checkpoint with
    class offsets.
    """
    result = read_finished(folder)
    found = dict(result["checkpoints"])
    if offset_file.has_rules(folder):
        found[OFFSETS_RULE] = read_object(folder / OFFSETS)["test"]
    return {
        name: {kind: Accuracy.from_json(kept[kind], f"{folder}: {name}.{kind}") for kind in KINDS}
        for name, kept in found.items()
    }


def tested_epoch(folder: Path) -> int:
    """Of the checkpoint with the best average on the hold-out."""
    return int(read_finished(folder)["checkpoints"][RULE]["epoch"])


def holdout(folder: Path) -> Accuracy:
    """Under attack, on the hold-out, of the checkpoint with the best average there: what settings and the
    rival are chosen by.
    """
    epoch = tested_epoch(folder)
    for row in read_rows(folder):
        if row["kind"] == "validation" and row["epoch"] == epoch:
            return Accuracy.from_json(row["robust"], f"{folder}: hold-out of epoch {epoch}")
    raise InputError(f"{folder} has no accuracies on the hold-out for epoch {epoch}")


def begins(config: TrainConfig) -> int | None:
    """The epoch that a method waits for: up to its end a run is one of its base.

    None for a method that acts from the start.
    """
    share = get_method(config.method).params(config.params, config.data.name).get("begin")
    return None if share is None else begin_epoch(share, config.epochs)


def to_json(found: Summary | None) -> dict[str, Any]:
    """The mean over the seeds with its 95 % t-interval, which one seed does not have."""
    assert found is not None, "a row has at least one seed"
    return {
        "mean": _round(found.mean),
        "interval": None if found.interval is None else [_round(limit) for limit in found.interval],
        "values": [_round(value) for value in found.values],
    }


def _paired(first: Mapping[int, float], second: Mapping[int, float]) -> Difference:
    found = paired_by_seed(first, second)
    if found is None:
        raise InputError("a paired comparison needs a seed that both rows were trained with")
    return found


def _round(value: float) -> float:
    return round(value, 6)


def measured(
    accuracies: Sequence[Mapping[str, Accuracy]], metrics: Collection[str] = METRICS.keys()
) -> dict[str, Any]:
    """{"clean": {metric: summary}, "robust": ...} over the seeds; `limits`: of the worst class of each seed,
    for its test images. metrics: of METRICS by their keys.
    """
    frame = Frame(Result("", None, kind, one[kind]) for one in accuracies for kind in KINDS)
    found: dict[str, Any] = {}
    for kind in KINDS:
        of_kind = frame.where(split=kind)
        found[kind] = {metric: to_json(of_kind.summary(metric)) for metric in metrics}
        limits = of_kind.limits("worst")
        found[kind]["worst"]["limits"] = [pair and [_round(limit) for limit in pair] for pair in limits]
    return found


def attacked(
    kept: Mapping[str, Accuracy], seed: int, metrics: Collection[str] = METRICS.keys()
) -> dict[str, Any]:
    """One seed under AutoAttack: figures, and their limits for its images."""
    return {
        **measured([kept], metrics),
        "seed": seed,
        "images": sum(kept["robust"].count.values()),
        "limits": {
            metric: [_round(limit) for limit in found]
            for metric in metrics
            if (found := kept["robust"].limits(metric)) is not None
        },
    }


def compared(
    tested: Mapping[str, Mapping[int, Mapping[str, Mapping[str, Accuracy]]]],
) -> dict[str, dict[int, float]]:
    """{row: {seed: value}} of what the declared comparisons are about, from {row: {seed: what `of_run`
    gives}}.

    In full precision: of rounded thirds equal differences would not be equal, and a spread of 1e-6 makes
    anything certain.
    """
    return {
        name: {seed: one[RULE]["robust"].metric(DECLARED_METRIC) for seed, one in of_row.items()}
        for name, of_row in tested.items()
    }


def declared(
    values: Mapping[str, Mapping[int, float]], rival: str | None, titles: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The three comparisons with their verdicts. values: {row: {seed: value}}, of which both sides take the
    seeds they share.
    """
    pairs = [(CFOL, ERM)] + ([(rival, ERM), (rival, CFOL)] if rival is not None else [])
    pairs = [(better, than) for better, than in pairs if better in values and than in values]
    seeds = [shared_seeds(values[better], values[than]) for better, than in pairs]
    found = [_paired(values[better], values[than]) for better, than in pairs]
    return [
        {
            "better": better,
            "than": than,
            "text": f"{titles[better]} above {titles[than]}, robust worst class",
            "seeds": shared,
            **difference.to_json(),
            "adjusted": float(f"{adjusted:.3g}"),
            "verdict": verdict,
        }
        for (better, than), shared, difference, (verdict, adjusted) in zip(
            pairs, seeds, found, judge(found), strict=True
        )
    ]


def beside_offsets(
    tested: Mapping[str, Mapping[int, Mapping[str, Mapping[str, Accuracy]]]], names: Sequence[str]
) -> list[dict[str, Any]]:
    """How much better each of these rows is than erm with class offsets, which need no training.

    It describes: no verdict.
    """
    found = []
    for name in names:
        shared = shared_seeds(tested[name], tested[ERM])
        if shared and all(OFFSETS_RULE in tested[ERM][seed] for seed in shared):
            item: dict[str, Any] = {"row": name, "seeds": shared}
            for metric in ("worst", "average"):
                own = {seed: tested[name][seed][RULE]["robust"].metric(metric) for seed in shared}
                erm = {seed: tested[ERM][seed][OFFSETS_RULE]["robust"].metric(metric) for seed in shared}
                difference = _paired(own, erm).to_json()
                item[metric] = {key: difference[key] for key in ("values", "mean", "interval")}
            found.append(item)
    return found


def order(held: Mapping[str, float]) -> tuple[float, ...]:
    """What a search compares: the best worst class, of equal ones the best tail, then class average.

    A search of before it noted the class average was chosen by the worst class, then the average.
    """
    return tuple(held[key] for key in (SELECTION if "class_average" in held else ("worst", "average")))


def choose(search: Sequence[dict[str, Any]]) -> None:
    """Marks the setting of each row that is taken, by `order` on the search's hold-out."""
    for name in {item["row"] for item in search}:
        of_row = [item for item in search if item["row"] == name]
        best = max(of_row, key=lambda item: order(item["holdout"]))
        for item in of_row:
            item["chosen"] = item is best


def rank_rivals(table: Table, search: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """The rivals, the best first, by `order` of their chosen setting on the search's hold-out.

    The table's own seeds have no say: a rival that was chosen for its luck with them would look better than
    it is.
    """
    rivals = [row.name for row in table.rows if row.rival]
    held = {item["row"]: item["holdout"] for item in search if item["chosen"] and item["row"] in rivals}
    ranking = sorted(held, key=lambda name: (*(-figure for figure in order(held[name])), rivals.index(name)))
    return [(name, held[name]["worst"]) for name in ranking]


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
    rows = []
    tested = {
        name: {job.config.seed: of_run(job.folder(out)) for job in of_row} for name, of_row in jobs.items()
    }
    for row in table.rows:
        if row.name not in jobs:
            continue
        of_seed, base = tested[row.name], table.base_of(row).name
        runs = list(of_seed.values())
        rules = [rule for rule in runs[0] if all(rule in one for one in runs)]
        entry: dict[str, Any] = {
            "name": row.name,
            "title": row.title,
            "base": row.base,
            "rival": row.rival,
            "settings": dict(settings[row.name]),
            "seeds": [job.config.seed for job in jobs[row.name]],
            "runs": [job.name for job in jobs[row.name]],
            "epochs": [tested_epoch(job.folder(out)) for job in jobs[row.name]],
            "begins": begins(jobs[row.name][0].config),
            "command": plan_command(jobs[row.name][0], None),
            "passes": dict(budgets[row.name]),
            "rules": {rule: measured([one[rule] for one in runs]) for rule in rules},
        }
        if base in tested and base != row.name:
            shared = shared_seeds(of_seed, tested[base])
            entry["price"] = price(
                *([side[seed][RULE]["robust"] for seed in shared] for side in (tested[base], of_seed))
            )
        if row.name in autoattack:
            found = autoattack[row.name]
            kept = {kind: Accuracy.from_json(found[kind], f"AutoAttack on {row.name}") for kind in KINDS}
            entry["autoattack"] = attacked(kept, entry["seeds"][0])
        rows.append(entry)
    titles = {row["name"]: row["title"] for row in rows}
    results = [read_result(job, out) for of_row in jobs.values() for job in of_row]
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
        "eta_times": {
            row.title: times for row in table.rows if (times := table.scales[scale].eta_times.get(row.name))
        },
        "seen": table.scales[scale].seen,
        "search_seed": table.search_seed,
        "settings_from": table.scales[scale].settings_from,
        "search": [dict(item) for item in search],
        "origins": [
            [[row.title for row in table.rows if row.origin == origin], origin]
            for origin in dict.fromkeys(row.origin for row in table.rows if row.origin)
        ],
        "rivals": [{"name": name, "holdout_worst": value} for name, value in rivals],
        "rival": rival,
        "declared": declared(compared(tested), rival, titles),
        "beside_offsets": beside_offsets(tested, [name for name in (CFOL, rival) if name in tested]),
        "rows": rows,
        "seconds": round(sum(float(result.get("seconds") or 0.0) for result in results), 1),
        "versions": join_versions(result.get("versions") or {} for result in results),
    }
