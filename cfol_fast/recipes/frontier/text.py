"""The fair table as a page: its sentences, its tables and how to repeat it, from its facts alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cfol_fast.methods import METHODS
from cfol_fast.plain_text import percent
from cfol_fast.policies.policy import FROM_HOLDOUT
from cfol_fast.recipes.frontier.facts import OFFSETS_RULE, RULE
from cfol_fast.recipes.frontier.sentences import (
    Facts,
    base_of,
    difference_text,
    findings,
    interval_text,
    listed,
    uneven,
    which_rows,
)
from cfol_fast.reporting import Cell, Row, Table
from cfol_fast.reporting.tables import PRICE_COLUMNS, price_cells
from cfol_fast.reporting.wording import attack_phrase, upper_bound
from cfol_fast.runs.metrics import METRICS, Metric, tail_size

RULES = {
    "best-average": "best average",
    "best-worst": "best worst class",
    "last": "last epoch",
    "ema-best-average": "averaged weights, best average",
    "ema-best-worst": "averaged weights, best worst class",
    "ema-last": "averaged weights, last epoch",
    OFFSETS_RULE: "best average, with class offsets",
}
DESCRIPTIVE = "Descriptive: intervals of single figures, unadjusted for their number."
OVER_SEEDS = (
    "Intervals are over seeds, on one fixed test set: they say what other seeds may give, not other images."
)
# Simulated in tests/runs/test_comparisons.py.
FAILING_SEEDS = (
    "A t-interval supposes that seeds scatter evenly. Where one run in five fails outright, as some rows' do,"
    " an interval of five seeds covers the mean in two cases of three, not in 95 of 100."
)

OWN = "Tail and worst class are those of each seed, whichever classes they are in it."


def _span(numbers: Sequence[int]) -> str:
    """300, or 50 to 500."""
    return f"{min(numbers):,}" if len(set(numbers)) == 1 else f"{min(numbers):,} to {max(numbers):,}"


def setting_text(settings: Mapping[str, Any]) -> str:
    return (
        ", ".join(
            f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in settings.items()
        )
        or "–"
    )


def _rows(facts: Facts, cells: Any, rows: Sequence[Mapping[str, Any]] | None = None) -> list[Row]:
    """A row for each method, grouped by base. cells: row -> its cells."""
    made: list[Row] = []
    base = None
    for row in facts["rows"] if rows is None else rows:
        made.append(
            Row([row["base"] if row["base"] != base else "", row["title"]], cells(row), row["base"] != base)
        )
        base = row["base"]
    return made


def _best(rows: list[Row], lowest: Sequence[int] = ()) -> list[Row]:
    """The best mean of each column marked, unless all are equal. lowest: columns in which the smallest is the
    best.
    """
    for place in range(len(rows[0].cells)):
        values = [row.cells[place].value for row in rows if row.cells[place].value is not None]
        best = (min if place in lowest else max)(values, default=None)  # type: ignore[type-var]
        for row in rows:
            cell = row.cells[place]
            if cell.value is not None and cell.value == best and len(set(values)) > 1:
                row.cells[place] = Cell(cell.text, cell.value, best=True)
    return rows


def metrics_in(found: Mapping[str, Any]) -> list[Metric]:
    """Those of METRICS that these facts have: older facts have fewer."""
    return [metric for key, metric in METRICS.items() if key in found]


def _lowest(metrics: Sequence[Metric]) -> list[int]:
    """The columns in which the smallest value is the best."""
    return [place for place, metric in enumerate(metrics) if metric.least_is_best]


def _figures(found: Mapping[str, Any]) -> list[Cell]:
    return [
        Cell(interval_text(found[metric.key], metric), found[metric.key]["mean"])
        for metric in metrics_in(found)
    ]


def main_tables(facts: Facts) -> list[Table]:
    seeds = [len(row["seeds"]) for row in facts["rows"]]
    several = f"{_span(seeds)} seed{'' if max(seeds) == 1 else 's'}"
    made, classes = [], len(facts["classes"])
    for kind, title in (
        ("robust", f"Under attack: {attack_phrase(facts['attack'])}"),
        ("clean", "Clean images"),
    ):
        metrics = metrics_in(facts["rows"][0]["rules"][RULE][kind])
        rows = _rows(facts, lambda row, kind=kind: _figures(row["rules"][RULE][kind]))
        rows = _best(rows, _lowest(metrics))
        columns = [metric.phrase() for metric in metrics]
        if uneven(facts):
            columns.append("seeds")
            for row, fact in zip(rows, facts["rows"], strict=True):
                row.cells.append(Cell(str(len(fact["seeds"]))))
        made.append(
            Table(
                f"frontier-{kind}",
                title,
                f"Test accuracy in percent of the best-average checkpoint, {_span(facts['images_per_class'])}"
                f" test images of each class; mean over {several} ± half of its 95 % t-interval (without one"
                f" where all seeds are equal). 20 % tail: the mean of the {tail_size(classes)} weakest of"
                f" {classes} classes; best − worst: in points. {OWN} {OVER_SEEDS}"
                f" {upper_bound(facts['attack']) + ' ' if kind == 'robust' else ''}{DESCRIPTIVE}",
                ["Base", "Method"],
                columns,
                rows,
            )
        )
    return made


def seeds_table(facts: Facts) -> Table:
    """The worst class under attack of every run, with what other test images may give."""
    seeds = sorted({seed for row in facts["rows"] for seed in row["seeds"]})

    def cells(row: Mapping[str, Any]) -> list[Cell]:
        worst = row["rules"][RULE]["robust"]["worst"]
        found = {
            seed: Cell(
                percent(value) + (f" [{percent(limits[0])}, {percent(limits[1])}]" if limits else ""), value
            )
            for seed, value, limits in zip(row["seeds"], worst["values"], worst["limits"], strict=True)
        }
        return [found.get(seed, Cell("–")) for seed in seeds]

    return Table(
        "frontier-seeds",
        "The worst class of every seed",
        "Under attack, best-average checkpoint, in percent [95 % interval for the test images of this one"
        " run: it holds for whichever class is the worst, from Clopper-Pearson intervals of the"
        f" {len(facts['classes'])} classes at level 1 − 0.05/{len(facts['classes'])} each]. {DESCRIPTIVE}",
        ["Base", "Method"],
        [f"seed {seed}" for seed in seeds],
        _rows(facts, cells),
    )


def checkpoint_table(facts: Facts) -> Table:
    """Worst class and average under attack by every rule that keeps a checkpoint, with the weights' average
    and class offsets.
    """
    rules = [rule for rule in RULES if any(rule in row["rules"] for row in facts["rows"])]

    def cells(row: Mapping[str, Any]) -> list[Cell]:
        made = []
        for rule in rules:
            found = row["rules"].get(rule)
            worst = found and found["robust"]["worst"]
            text = (
                "–"
                if not found
                else f"{interval_text(worst)} · {percent(found['robust']['average']['mean'])}"
            )
            made.append(Cell(text, worst["mean"] if found else None))
        return made

    return Table(
        "frontier-rules",
        "Every rule for the checkpoint",
        "Robust worst class, mean ± half of its 95 % t-interval, then the average, in percent. Best average,"
        " best worst class: the epoch that is best in it under attack on the run's own hold-out; averaged"
        " weights: an exponential average, kept in the same run; class offsets: fitted on the hold-out"
        f" without training. Bold: the best worst class of the column. {DESCRIPTIVE}",
        ["Base", "Method"],
        [RULES[rule] for rule in rules],
        _best(_rows(facts, cells)),
    )


def price_table(facts: Facts) -> Table | None:
    """What a row pays against its base: average, the class that loses most, how many lose, precision beside
    recall.
    """
    rows = [row for row in facts["rows"] if "price" in row]
    if not rows:
        return None
    bases = list(dict.fromkeys(base_of(facts, row)["title"] for row in rows))
    return Table(
        "frontier-price",
        "The price of each method",
        "Under attack, best-average checkpoint, means over the"
        f" seeds{' that both have' if uneven(facts) else ''}, against the base of each row ({listed(bases)}):"
        " losses in points; recall and precision, in percent, of the class that the base is weakest in;"
        " false alarms: how many images of other classes are taken for it. Descriptive.",
        ["Base", "Method"],
        PRICE_COLUMNS,
        _rows(facts, lambda row: price_cells(row["price"]), rows),
        words=True,
    )


def autoattack_table(facts: Facts) -> Table | None:
    rows = [row for row in facts["rows"] if "autoattack" in row]
    if not rows:
        return None
    metrics = metrics_in(rows[0]["autoattack"]["robust"])

    def cells(row: Mapping[str, Any]) -> list[Cell]:
        found = row["autoattack"]
        made = []
        for metric in metrics:
            value, limits = found["robust"][metric.key]["mean"], found["limits"].get(metric.key)
            within = f" [{metric.text(limits[0])}, {metric.text(limits[1])}]" if limits else ""
            made.append(Cell(metric.text(value) + within, value))
        return made

    images, seed = (rows[0]["autoattack"][key] for key in ("images", "seed"))
    return Table(
        "frontier-autoattack",
        "AutoAttack",
        f"Seed {seed} alone, best-average checkpoint, {images:,} test images, in percent [95 % interval for"
        " these images; of tail and worst class whichever classes they are]. They are a part of the test"
        f" images: compare its rows with each other, not with the tables above. {DESCRIPTIVE}",
        ["Base", "Method"],
        [metric.phrase() for metric in metrics],
        _best(_rows(facts, cells, rows), _lowest(metrics)),
    )


def declared_table(facts: Facts) -> Table:
    rows = []
    for item in facts["declared"]:
        cells = [
            Cell(difference_text(item)),
            Cell(str(len(item["values"]))),
            Cell(f"{item['adjusted']:.3g}"),
            Cell(item["verdict"]),
        ]
        rows.append(Row([item["text"]], cells))
    seen = f"{facts['seen']} " if facts["seen"] else ""
    return Table(
        "frontier-declared",
        "The declared comparisons",
        "Declared before any run of the table's seeds: two-sided, best-average checkpoint, paired by seed;"
        f" Holm over all of them. {seen}Difference in points [unadjusted 95 % t-interval]. {OVER_SEEDS}"
        f" {FAILING_SEEDS}",
        ["Comparison"],
        ["Difference", "Seeds", "p, adjusted", "Verdict"],
        rows,
        words=True,
    )


def budget_table(facts: Facts) -> Table:
    def cells(row: Mapping[str, Any]) -> list[Cell]:
        passes = row["passes"]
        return [
            *(Cell(f"{passes[key] / 1e6:.2f}") for key in ("forward", "backward", "holdout", "offsets")),
            Cell(", ".join(map(str, row["epochs"]))),
            Cell(setting_text(row["settings"])),
        ]

    return Table(
        "frontier-budget",
        "Budget, tested epochs and settings",
        "One schedule, and so different budgets. Images times passes of one run, in millions: forward and"
        " backward in training (clean images too on TRADES; both runs of the two-run baseline; for LHCVaR-AT"
        " with the run of ERM-AT that its levels come from), both together on the hold-out, and there again"
        " for fitting class offsets. The search has one more run for each setting. Tested epoch: of the"
        " best-average checkpoint of each seed.",
        ["Base", "Method"],
        ["forward", "backward", "hold-out", "offsets", "tested epoch", "setting"],
        _rows(facts, cells),
        words=True,
    )


def search_table(facts: Facts) -> Table | None:
    titles = {name: method.title for name, method in METHODS.items()}
    titles.update({row["name"]: row["title"] for row in facts["rows"]})
    rows, last = [], None
    for item in facts["search"]:
        held = item["holdout"]
        cells = [
            Cell(setting_text(item["settings"])),
            *(Cell(percent(held[m])) for m in ("average", "tail", "worst")),
            Cell(str(item.get("epoch", "–"))),
        ]
        rows.append(
            Row(
                [titles.get(item["row"], item["row"]) if item["row"] != last else ""],
                [*cells, Cell("chosen" if item["chosen"] else "")],
            )
        )
        last = item["row"]
    if not rows:
        return None
    newer = "class_average" in facts["search"][0]["holdout"]
    second = "20 % tail, then the best class average" if newer else "average"
    where = f"At the {facts['settings_from']} scale, o" if facts["settings_from"] else "O"
    origins = " ".join(f"{', '.join(names)}: {origin}." for names, origin in facts["origins"])
    return Table(
        "frontier-search",
        "The settings that were tried",
        f"{where}n the hold-out of seed {facts['search_seed']}, which the table does not use, one run for"
        f" each, in percent under attack: the best worst class is chosen (of equal ones the best {second},"
        " then the first), at the epoch with the best average, and the best rival by the same figure."
        f" {_by_holdout(facts)}Where the settings come from. {origins}",
        ["Method"],
        ["setting", "average", "20 % tail", "worst class", "epoch", ""],
        rows,
        words=True,
    )


def _by_holdout(facts: Facts) -> str:
    """Which methods train with the images that they are chosen by."""
    names = dict.fromkeys(item["row"] for item in facts["search"])
    known = [METHODS[name] for name in names if name in METHODS]
    found = [method.title for method in known if method.policy.needs & FROM_HOLDOUT]
    if not found:
        return ""
    own = "sets its" if len(found) == 1 else "set their"
    return (
        f"{listed(found)} {own} class weights by the same hold-out in training, so these figures may flatter"
        f" {'it' if len(found) == 1 else 'them'}. "
    )


def tables(facts: Facts) -> list[Table]:
    made = [
        declared_table(facts),
        *main_tables(facts),
        seeds_table(facts),
        checkpoint_table(facts),
        price_table(facts),
        autoattack_table(facts),
        budget_table(facts),
        search_table(facts),
    ]
    return [table for table in made if table is not None]


def markdown(facts: Facts) -> str:
    return f"# {facts['title']}\n\n{markdown_body(facts)}"


def markdown_body(facts: Facts, figure: str = "frontier.svg") -> str:
    parts = [
        f"{facts['setting'][0].upper()}{facts['setting'][1:]}.{which_rows(facts)}",
        "\n".join(f"- {line}" for line in findings(facts)),
    ]
    parts.append(f"![The average against the worst class, under attack]({figure})")
    for table in tables(facts):
        parts += [f"**{table.title}.** {table.caption}", table.markdown().rstrip()]
    commands = [f"- {row['title']}: `{row['command']}`" for row in facts["rows"]]
    repeat = (
        "One run of a row is one command (its first seed here; `--seed`, with a folder of its own, gives the"
        " others, `cfol-fast offsets` the class offsets):"
    )
    parts += [repeat, "\n".join(commands)]
    if facts["dataset"] == "folder":
        parts.append(
            "DATA is a folder with the same image files, train/<class> and test/<class>: a run is known by"
            " their digest, `data.content`, and other files are refused. With another copy, or with the"
            " official files (`--dataset cifar10`), leave `data.content` out, or give the whole table its"
            f" folder, `{facts['command']}`: the comparison is the same, the pixels and the normalisation are"
            " a little different, and so is every figure."
        )
    common = ", ".join(f"{key} {value}" for key, value in facts["common"].items())
    versions = "".join(f"; {name} {version}" for name, version in facts["versions"].items())
    titles = [row["title"] for row in facts["rows"]]
    times = ", ".join(f"{name} {factor:g}" for name, factor in facts["eta_times"].items() if name in titles)
    scaled = f" Step sizes are so many times those listed: {times}." if times else ""
    parts.append(
        f"Every run: {common}.{scaled} Made by `{facts['command']}`:"
        f" {sum(len(row['runs']) for row in facts['rows'])} runs in the table, {facts['seconds'] / 60:.0f}"
        f" minutes of training and testing{versions}."
    )
    return "\n\n".join(parts) + "\n"
