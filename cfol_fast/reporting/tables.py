"""Which tables a comparison has: a new table goes here. How a table is written stands in table.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cfol_fast.plain_text import points
from cfol_fast.reporting.groups import SPLITS, Comparison, Group, Stat, metric_stat
from cfol_fast.reporting.table import Cell, Row, Table
from cfol_fast.reporting.wording import (
    attack_phrase,
    change_text,
    duration,
    run_state,
    stat_text,
    upper_bound,
)
from cfol_fast.runs import price as prices
from cfol_fast.runs.accuracy import Accuracy
from cfol_fast.runs.checkpoints import EMA
from cfol_fast.runs.comparisons import AVERAGE, mcnemar
from cfol_fast.runs.frame import Frame, Result
from cfol_fast.runs.metrics import METRICS, Metric
from cfol_fast.runs.predictions import right_images
from cfol_fast.runs.records import Run, SavedEvaluation, same_attack


def build(comparison: Comparison) -> list[Table]:
    """Every table the data allow, in the order of the page."""
    made = [
        comparison_table(comparison),
        adjusted(comparison),
        price(comparison),
        evaluations(comparison),
        early_stopping(comparison),
        classes(comparison),
        runs(comparison),
    ]
    return [table for table in made if table is not None]


def _cells(
    stats: Sequence[Stat | None], reference: Stat | None, metric: Metric = METRICS["average"]
) -> list[Cell]:
    """The cells of a row: the best is marked when there is a choice; all but the first have their difference
    from `reference`. metric: what the figures are.
    """
    means = [stat.mean for stat in stats if stat is not None]
    best = metric.best(means) if len(means) > 1 else None
    cells = []
    for place, stat in enumerate(stats):
        if stat is None:
            cells.append(Cell(stat_text(None)))
            continue
        difference = stat.mean - reference.mean if reference and place else None
        text = stat_text(stat, metric=metric)
        cells.append(Cell(text, stat.mean, stat.deviation, difference, stat.mean == best, metric))
    return cells


def comparison_table(comparison: Comparison) -> Table:
    """The paper's table, clean and robust, a column per group: average, 20 % tail and worst class, and what
    else tells something of these data.
    """
    rows: list[Row] = []
    # What an unfinished run reached on its hold-out is shown, but neither compared with test results nor
    # called best; nor is what was measured with another attack or on other images.
    tested = [group for group in comparison.groups if group.tested]
    alike = [group for group in comparison.groups if comparison.comparable(group)]
    for split, split_name in SPLITS.items():
        opens = True
        for metric in comparison.metrics:
            key = metric.key
            if not any(group.stat(split, key) for group in comparison.groups):
                continue
            reference = comparison.baseline.stat(split, key) if comparison.baseline.tested else None
            compared = iter(_cells([group.stat(split, key) for group in alike], reference, metric))
            cells = [
                next(compared) if group in alike else _cells([group.stat(split, key)], None, metric)[0]
                for group in comparison.groups
            ]
            rows.append(Row([split_name if opens else "", metric.heading(comparison.floor)], cells, opens))
            opens = False
    caption = "Accuracy in percent"
    if len(alike) > 1:
        caption += f"; beside it the difference from {comparison.baseline.label} in points, the best in bold"
    seeds = {len(group.accuracies("robust")) for group in tested}
    if seeds and max(seeds) > 1:
        counts = ", ".join(f"{group.label} {len(group.accuracies('robust'))}" for group in tested)
        several = f"{max(seeds)} seeds" if len(seeds) == 1 else f"seeds ({counts})"
        if len(seeds) > 1 and len(tested) > 6:
            several = f"{min(seeds)} to {max(seeds)} seeds"
        caption += f"; mean and sample standard deviation over {several}"
    unfinished = [
        f"{group.label} is unfinished ({group.partial})" for group in comparison.groups if group.partial
    ]
    return Table(
        "comparison",
        "Comparison",
        " ".join([". ".join([caption, *unfinished]) + ".", *_bounds(comparison), *comparison.caveats()]),
        ["", ""],
        [_head(group) for group in comparison.groups],
        rows,
        [group.colour for group in comparison.groups],
    )


def _bounds(comparison: Comparison) -> list[str]:
    """That weak attacks give upper bounds, once for each attack of the groups."""
    found = [upper_bound(run.attack) for group in comparison.groups for run in group.counted if run.tested]
    return [text for text in dict.fromkeys(found) if text]


def adjusted(comparison: Comparison) -> Table | None:
    """Plain and offset-adjusted figures side by side, of the groups all of whose runs have both."""
    groups = [group for group in comparison.groups if group.tested and group.adjusted("robust").results]
    if not groups:
        return None
    base = groups[0] if groups[0] is comparison.baseline else None
    alike = [comparison.comparable(group) for group in groups]
    rows: list[Row] = []
    for split, split_name in SPLITS.items():
        for number, metric in enumerate(comparison.metrics):
            cells: list[Cell] = []
            pairs = []
            for of in (Group.frame, Group.adjusted):
                stats = [metric_stat(of(group, split), metric.key) for group in groups]
                shown = [stat if same else None for stat, same in zip(stats, alike, strict=True)]
                compared = _cells(shown, shown[0] if base else None, metric)
                pairs.append(
                    [
                        cell if same else _cells([stat], None, metric)[0]
                        for cell, stat, same in zip(compared, stats, alike, strict=True)
                    ]
                )
            for plain, with_offsets in zip(*pairs, strict=True):
                cells += [plain, with_offsets]
            opens = number == 0
            rows.append(Row([split_name if opens else "", metric.heading(comparison.floor)], cells, opens))
    return Table(
        "adjusted",
        "Plain and with class offsets",
        "Accuracy in percent of the tested checkpoint, and of the same with class offsets that were fitted on"
        " the hold-out by one rule for all: of the rounds of the fit whose worst class is within one standard"
        " error of the best, the one with the best average. The plain figures describe a checkpoint, the"
        " adjusted ones what training gained beyond a threshold. Differences: plain from plain, adjusted from"
        " adjusted.",
        ["", ""],
        [title for group in groups for title in (group.label, f"{group.label}, with offsets")],
        rows,
        [group.colour for group in groups for _ in range(2)],
    )


# So many methods are columns on a phone.
FEW = 3
PRICE_COLUMNS = [
    "Average",
    "Largest loss of a class",
    "Classes that lose",
    "Base's worst class",
    "Its recall",
    "Its precision",
    "False alarms for it",
]


def price_cells(found: Mapping[str, Any]) -> list[Cell]:
    """A row of PRICE_COLUMNS from `runs.price`."""
    loss = found["largest_loss"]

    def pair(key: str) -> Cell:
        return Cell("–" if found[key] is None else change_text(found[key]))

    alarms = found["false_alarms"]
    return [
        Cell(points(found["average"])),
        Cell(f"{loss['class']} {points(loss['change'])}" if loss["change"] < 0 else "none"),
        Cell(f"{found['losing']} of {found['classes']}"),
        Cell(found["favoured"]),
        pair("recall"),
        pair("precision"),
        Cell("–" if alarms is None else " → ".join(f"{value:.0f}" for value in alarms)),
    ]


def _mcnemar(base: Group, group: Group) -> float | None:
    """Of the two averages under attack, for one run against one on the same images; None where that is not
    known.
    """
    if len(base.counted) != 1 or len(group.counted) != 1:
        return None
    found = [right_images(one.counted[0].path) for one in (base, group)]
    if found[0] is None or found[1] is None or found[0][0] != found[1][0]:
        return None
    return mcnemar(found[1][1], found[0][1], AVERAGE, ())


def price(comparison: Comparison) -> Table | None:
    """What each group pays against the baseline under attack: the class that loses most, how many lose,
    precision beside recall.
    """
    base = comparison.baseline
    rows = [
        Row(
            [group.label],
            price_cells(prices.price(base.accuracies("robust"), group.accuracies("robust"))),
            colour=group.colour,
        )
        for group in comparison.groups[1:]
        if comparison.comparable(group) and base.accuracies("robust") and group.accuracies("robust")
    ]
    if not rows or not base.tested:
        return None
    chances = {group.label: _mcnemar(base, group) for group in comparison.groups[1:]}
    columns, note = PRICE_COLUMNS, ""
    if any(chances.get(row.stubs[0]) is not None for row in rows):
        columns = [*PRICE_COLUMNS, "p of the average"]
        note = (
            " p: how likely the averages differ by so many of the same images if both models are equally good"
            " (McNemar's exact test); of other seeds it says nothing."
        )
        for row in rows:
            chance = chances[row.stubs[0]]
            row.cells.append(Cell("–" if chance is None else f"{chance:.2g}"))
    table = Table(
        "price",
        "The price",
        f"Under attack, against {base.label}, means over the seeds: the average in points and the class that"
        f" loses most. For the weakest class of {base.label}: recall and precision in percent, and the"
        f" number of images of other classes that are classified as this class (false alarms).{note}",
        ["Method"],
        columns,
        rows,
        words=True,
    )
    # With few methods the measures are rows, which a narrow page shows whole.
    return replace(table.transposed(""), colours=[row.colour for row in rows]) if len(rows) <= FEW else table


def _head(group: Group) -> str:
    return f"{group.label}, unfinished" if group.partial else group.label


def classes(comparison: Comparison) -> Table | None:
    """Every class, the baseline's weakest first."""
    groups = [group for group in comparison.groups if group.shown]
    if not groups:
        return None
    columns = [(split, group) for split in SPLITS for group in groups if group.accuracies(split)]
    precise = [group for group in groups if any(found.confusion for found in group.accuracies("robust"))]
    rows = []
    for name in comparison.ranked():
        cells: list[Cell] = []
        for split in SPLITS:
            these = [group for kind, group in columns if kind == split]
            alike = [group for group in these if comparison.comparable(group)]
            base = comparison.baseline.class_stat(split, name) if comparison.baseline in alike else None
            compared = iter(_cells([group.class_stat(split, name) for group in alike], base))
            cells += [
                next(compared) if group in alike else _cells([group.class_stat(split, name)], None)[0]
                for group in these
            ]
        cells += [_cells([group.precision_stat(name)], None)[0] for group in precise]
        rows.append(Row([name], cells))
    titles = [f"{SPLITS[split].lower()} {group.label}" for split, group in columns]
    titles += [f"robust precision {group.label}" for group in precise]
    return Table(
        "classes",
        "All classes",
        "Accuracy by class in percent, the weakest first; differences from the baseline in points. Precision:"
        " the share of the images classified as this class that belong to it, under attack.",
        ["Class"],
        titles,
        rows,
        [*(group.colour for _, group in columns), *(group.colour for group in precise)],
        folded=True,
    )


def _blocks(
    comparison: Comparison,
    groups: Sequence[Group],
    names: Sequence[str],
    found: Callable[[Run, str], Sequence[Accuracy | None]],
) -> list[Row]:
    """A block of rows per name, a row per metric, of the accuracies that each run has under that name."""
    rows: list[Row] = []
    for name in names:
        frames = [
            Frame(
                Result(name, run.seed, "robust", accuracy)
                for run in group.runs
                for accuracy in found(run, name)
                if accuracy is not None
            )
            for group in groups
        ]
        for number, metric in enumerate(comparison.metrics):
            stats = [metric_stat(frame, metric.key) for frame in frames]
            reference = stats[0] if groups[0] is comparison.baseline else None
            alike = [comparison.comparable(group) or not group.tested for group in groups]
            compared = iter(
                _cells([stat for stat, same in zip(stats, alike, strict=True) if same], reference, metric)
            )
            cells = [
                next(compared) if same else _cells([stat], None, metric)[0]
                for stat, same in zip(stats, alike, strict=True)
            ]
            stubs = [name if number == 0 else "", metric.heading(comparison.floor)]
            rows.append(Row(stubs, cells, number == 0))
    return rows


def early_stopping(comparison: Comparison) -> Table | None:
    """The robust test accuracies of the kept checkpoints: both early-stopping rules and the last epoch, of
    the weights and their average.
    """
    titles = {"Best average": "best-average", "Best worst class": "best-worst", "Last epoch": "last"}
    titles |= {f"Averaged weights: {title.lower()}": f"{EMA}{name}" for title, name in titles.items()}
    groups = [group for group in comparison.groups if any(run.checkpoints for run in group.runs)]
    kept = {name for group in groups for run in group.runs for name in run.checkpoints}
    names = [title for title, name in titles.items() if name in kept]
    # One checkpoint is no choice, and the comparison has it already.
    if len(names) < 2:
        return None

    def found(run: Run, title: str) -> list[Accuracy | None]:
        name = titles[title]
        return [run.checkpoints[name]["robust"]] if name in run.checkpoints else []

    return Table(
        "checkpoints",
        "Which checkpoint",
        "Robust test accuracy in percent of the checkpoints kept by the two early-stopping rules, and of the"
        " last epoch; differences from the first column in points.",
        ["Kept by", ""],
        [_head(group) for group in groups],
        _blocks(comparison, groups, names, found),
        [group.colour for group in groups],
    )


def evaluations(comparison: Comparison) -> Table | None:
    """Results of `cfol-fast eval --json` found in the run folders, a block per attack and number of test
    images.
    """
    runs = [run for group in comparison.groups for run in group.runs]
    every = [evaluation for run in runs for evaluation in run.evaluations]
    times = [Counter(attack_phrase(evaluation.attack) for evaluation in run.evaluations) for run in runs]
    repeated = {attack for counter in times for attack, count in counter.items() if count > 1}

    def name(evaluation: SavedEvaluation) -> str:
        # One run evaluated twice with one attack (two checkpoints, say) is not two seeds: its files tell them
        # apart.
        attack = attack_phrase(evaluation.attack)
        named_alike = [other for other in every if attack_phrase(other.attack) == attack]
        if attack in repeated or not all(
            same_attack(evaluation.attack, other.attack) for other in named_alike
        ):
            return f"{attack} ({evaluation.path.stem})"
        sizes = [_size(other) for other in named_alike]
        return attack if len(set(sizes)) == 1 else f"{attack}, {_size(evaluation):,} images"

    def found(run: Run, attack: str) -> list[Accuracy | None]:
        return [one.robust or one.clean for one in run.evaluations if name(one) == attack]

    attacks = list(dict.fromkeys(name(evaluation) for run in runs for evaluation in run.evaluations))
    groups = [group for group in comparison.groups if any(run.evaluations for run in group.runs)]
    if not attacks:
        return None
    return Table(
        "evaluations",
        "Other attacks",
        "Accuracy in percent in the evaluations saved beside the runs; differences from the first column in"
        " points.",
        ["Attack", ""],
        [group.label for group in groups],
        _blocks(comparison, groups, attacks, found),
        [group.colour for group in groups],
    )


def _size(evaluation: SavedEvaluation) -> int:
    """The number of test images."""
    accuracy = evaluation.robust or evaluation.clean
    return sum(accuracy.count.values()) if accuracy is not None else 0


def runs(comparison: Comparison) -> Table:
    """What each run was: seed, progress, time."""
    rows = []
    for group in comparison.groups:
        for number, run in enumerate(group.runs):
            speeds = [
                row["images_per_second"]
                for row in run.train
                if isinstance(row.get("images_per_second"), (int, float))
            ]
            speed = f"{sum(speeds) / len(speeds):,.0f}" if speeds else "–"
            texts = [
                str(run.seed) if run.seed is not None else "–",
                run_state(run),
                _epochs(run),
                str(run.tested_epoch or "–"),
                duration(run.seconds),
                speed,
                run.holdout or "–",
                str(run.path),
            ]
            rows.append(
                Row([group.label if number == 0 else ""], [Cell(text) for text in texts], number == 0)
            )
    columns = ["Seed", "State", "Epochs", "Tested epoch", "Time", "Images/s", "Hold-out", "Folder"]
    return Table("runs", "Runs", "Every run in this report.", ["Method"], columns, rows, words=True)


def _epochs(run: Run) -> str:
    done, planned = run.epochs
    return f"{done} of {planned}" if planned and planned != done else str(done) if done else "–"
