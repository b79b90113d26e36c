"""The plot of the fair table: average against worst class under attack, with intervals over the seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cfol_fast.recipes.frontier.facts import RULE
from cfol_fast.reporting.chart import Colour, Figure, Point, ScatterChart
from cfol_fast.reporting.wording import attack_phrase

# What a row is says its colour: the bases, CFOL's family, and the others by their base.
BASES, CFOL, AT, TRADES = "slate", "indigo", "teal", "amber"
LEGEND: list[tuple[str, Colour, bool]] = [
    ("the bases: ERM-AT, TRADES", BASES, False),
    ("CFOL", CFOL, False),
    ("others on AT", AT, False),
    ("others on TRADES", TRADES, False),
]


def _colour(row: Mapping[str, Any]) -> str:
    if "price" not in row:
        return BASES
    if row["name"].startswith("cfol"):
        return CFOL
    return AT if row["base"] == "AT" else TRADES


def figure(facts: Mapping[str, Any]) -> Figure:
    points = []
    for row in facts["rows"]:
        robust = row["rules"][RULE]["robust"]
        spread = {key: robust[key]["interval"] for key in ("average", "worst")}
        points.append(
            Point(
                row["title"],
                _colour(row),
                robust["average"]["mean"],
                robust["worst"]["mean"],
                None if spread["average"] is None else tuple(spread["average"]),
                None if spread["worst"] is None else tuple(spread["worst"]),
                strong=row["name"] in ("erm", "cfol", facts["rival"]),
            )
        )
    # The rows that are judged lie on top of the others.
    points.sort(key=lambda point: point.strong)
    chart = ScatterChart("", points, "average robust accuracy, %", "robust accuracy of the worst class, %")
    return Figure(
        "frontier",
        "Under attack: the average against the worst class",
        f"Test accuracy ({attack_phrase(facts['attack'])}) of the best-average checkpoint, mean over the"
        " seeds; crosses are 95 % t-intervals of the means, over the seeds on one fixed test set, cut off at"
        " 0. Better is up and to the right. Descriptive.",
        [chart],
        LEGEND,
    )
