"""The README's results: a table of four rows, and in sentences what is shown and what is not.

`python -m tools.headline results README.md` writes them between the page's two marks. Every number comes from
results/*/frontier.json; results/README.md has the whole tables.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cfol_fast import atomic
from cfol_fast.errors import InputError
from cfol_fast.plain_text import points
from cfol_fast.recipes.frontier.facts import OFFSETS_RULE, RULE
from cfol_fast.recipes.frontier.plan import CFOL, ERM
from cfol_fast.recipes.frontier.sentences import row_of
from cfol_fast.reporting.wording import attack_phrase
from cfol_fast.runs.comparisons import Difference
from cfol_fast.runs.frame import paired_by_seed
from cfol_fast.runs.metrics import METRICS
from tools.collection import read_frontiers

BEGIN, END = "<!-- headline: written by tools.headline -->", "<!-- end of headline -->"
ROWS = 4
Facts = Mapping[str, Any]


def shown_rows(frontiers: Sequence[Facts]) -> list[str]:
    """ERM, CFOL, the competitor that the hold-out chose, and the best of the others by the worst class.

    The last one is taken from the first table, by its test results: the text says so.
    """
    names = list(dict.fromkeys([ERM, CFOL, *(str(facts["rival"]) for facts in frontiers)]))
    others = [row for row in frontiers[0]["rows"] if row["name"] not in names and row["base"] == "AT"]
    others.sort(key=lambda row: -row["rules"][RULE]["robust"]["worst"]["mean"])
    return [*names, *(row["name"] for row in others)][:ROWS]


def images_of(facts: Facts) -> str:
    """The images of a table: the part of its setting before the network."""
    return str(facts["setting"]).partition(f", {facts['model']}")[0]


def short(facts: Facts) -> str:
    return "Fashion-MNIST" if facts["dataset"] == "fashion-mini" else images_of(facts).partition(",")[0]


def cell(row: Mapping[str, Any] | None, rule: str) -> str:
    """Worst class / average in percent."""
    if row is None or rule not in row["rules"]:
        return ""
    robust = row["rules"][rule]["robust"]
    return " / ".join(METRICS[name].text(robust[name]["mean"]) for name in ("worst", "average"))


def table(frontiers: Sequence[Facts]) -> str:
    heads = [head for facts in frontiers for head in (short(facts), "with class offsets")]
    lines = [f"| method | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for name in shown_rows(frontiers):
        rows = [row_of(facts, name) for facts in frontiers]
        title = next(row["title"] for row in rows if row is not None)
        cells = [cell(row, rule) for row in rows for rule in (RULE, OFFSETS_RULE)]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def caption(frontiers: Sequence[Facts]) -> str:
    settings = "; ".join(
        f"{images_of(facts)}, {attack_phrase(facts['attack'])}" for facts in frontiers
    ).replace("the 8,000 Fashion-MNIST images inside the package", "8,000 embedded Fashion-MNIST images")
    counts = sorted({len(row["seeds"]) for facts in frontiers for row in facts["rows"]})
    seeds = f"{counts[-1]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    models = " and ".join(dict.fromkeys(str(facts["model"]) for facts in frontiers))
    return (
        f"Robust test accuracy in percent, worst class / average, mean of {seeds} ({settings}). The network"
        f" is {models}, and every method has the same schedule and budget. PGD-20 is an upper bound."
    )


def declared(facts: Facts) -> list[str]:
    """The verdict of each comparison with CFOL that was declared before the runs."""
    lines = []
    for item in facts["declared"]:
        if CFOL not in (item["better"], item["than"]):
            continue
        interval = "one seed"
        if item["interval"]:
            low, high = item["interval"]
            interval = (
                f"95 % confidence interval {points(low)} to {points(high)}, unadjusted; {len(item['values'])}"
                f" seeds; Holm-adjusted p = {item['adjusted']:.2g}"
            )
        better, than = (row_of(facts, item[side]) for side in ("better", "than"))
        assert better is not None
        assert than is not None
        lines.append(
            f"{better['title']} against {than['title']}: {points(item['mean'])} points in the worst class"
            f" ({interval}): {item['verdict']}."
        )
    return lines


def after_offsets(facts: Facts) -> Difference | None:
    """CFOL minus ERM in the worst class, both with class offsets, paired by seed."""
    rows = [row_of(facts, name) for name in (CFOL, ERM)]
    values = [
        dict(zip(row["seeds"], row["rules"][OFFSETS_RULE]["robust"]["worst"]["values"], strict=True))
        for row in rows
        if row is not None and OFFSETS_RULE in row["rules"]
    ]
    if len(values) < 2:
        return None
    return paired_by_seed(*values)


def gain_after_offsets(frontiers: Sequence[Facts]) -> str:
    """Exploratory: the comparison was not declared before these runs."""
    words = []
    for facts in frontiers:
        difference = after_offsets(facts)
        if difference is None or difference.interval is None:
            continue
        low, high = difference.interval
        seen = "above" if low > 0 else "below" if high < 0 else "not different from"
        words.append(
            f"{short(facts)}: {points(difference.mean)} points ({points(low)} to {points(high)}), {seen} it"
        )
    return f"CFOL-AT against ERM-AT, both with offsets (exploratory): {'; '.join(words)}." if words else ""


def offsets(facts: Facts) -> str:
    """What class offsets make of ERM, and of CFOL."""
    erm, cfol = (row_of(facts, name) for name in (ERM, CFOL))
    if erm is None or cfol is None or OFFSETS_RULE not in {**erm["rules"], **cfol["rules"]}:
        return ""
    plain, fitted, both = (
        METRICS["worst"].text(row["rules"][rule]["robust"]["worst"]["mean"])
        for row, rule in ((erm, RULE), (erm, OFFSETS_RULE), (cfol, OFFSETS_RULE))
    )
    return f"{short(facts)}: {plain} % becomes {fitted} %; CFOL-AT with offsets has {both} %."


def strong_attack(facts: Facts) -> str:
    """AutoAttack's worst class, with the number of its images."""
    found = [(row["title"], row["autoattack"]) for row in facts["rows"] if "autoattack" in row]
    of = {title: attacked for title, attacked in found if title in ("ERM-AT", "CFOL-AT")}
    if len(of) < 2:
        return ""
    per_class = next(iter(of.values()))["images"] // len(facts["classes"])
    worst = ", ".join(
        f"{title} {METRICS['worst'].text(one['robust']['worst']['mean'])} %" for title, one in of.items()
    )
    return f"{short(facts)}, one seed, {per_class} images a class: {worst}."


def markdown(frontiers: Sequence[Facts]) -> str:
    """The whole block; real images come before the embedded ones."""
    ordered = sorted(frontiers, key=lambda facts: facts["dataset"] == "fashion-mini")
    parts = [table(ordered), caption(ordered)]
    judged = [f"- {short(facts)}. {line}" for facts in ordered for line in declared(facts)]
    parts.append("Comparisons that were declared before the runs:\n\n" + "\n".join(judged))
    parts.append(
        "**Class offsets after ordinary training are the first thing to try.** They are one number per class,"
        " fitted on the hold-out without training. The worst class of ERM-AT with them: "
        + " ".join(filter(None, (offsets(facts) for facts in ordered)))
        + f" {gain_after_offsets(ordered)}"
    )
    if strong := " ".join(filter(None, (strong_attack(facts) for facts in ordered))):
        parts.append(f"AutoAttack on few images, whose worst class is therefore uncertain: {strong}")
    return "\n\n".join(parts) + "\n"


def put_into(text: str, headline: str, where: str) -> str:
    """The page with the headline between its marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(
            f"{where} has no place for the headline: put {BEGIN} and {END} on lines of their own"
        )
    return f"{before}{BEGIN}\n{headline}{END}{after}"


def main(results: Path, page: Path) -> None:
    made = put_into(page.read_text(encoding="utf-8"), markdown(read_frontiers(results)), str(page))
    atomic.write_text(page, made)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
