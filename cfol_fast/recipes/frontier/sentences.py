"""What the fair table found, in sentences, from its facts alone.

A sentence that claims a difference is one of the declared comparisons and says its verdict; everything else
is called descriptive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cfol_fast.plain_text import points
from cfol_fast.recipes.frontier.facts import OFFSETS_RULE, RULE
from cfol_fast.recipes.frontier.plan import CFOL, ERM
from cfol_fast.reporting.wording import price_sentence
from cfol_fast.runs.metrics import METRICS, Metric

Facts = Mapping[str, Any]

LEAST_WORST_OF_ERM = 0.05


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def counted(number: int, what: str) -> str:
    """1 seed, 5 seeds."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def interval_text(found: Mapping[str, Any], metric: Metric = METRICS["worst"]) -> str:
    """24.3 ± 14.2: the mean over the seeds and half of its 95 % t-interval, which is symmetric."""
    interval = found["interval"]
    if interval is None:
        return metric.text(found["mean"])
    return f"{metric.text(found['mean'])} ± {metric.text((interval[1] - interval[0]) / 2)}"


def difference_text(found: Mapping[str, Any]) -> str:
    """+14.7 [−31.1, +60.4]: a paired difference in points, and its 95 % t-interval."""
    interval = found["interval"]
    return points(found["mean"]) + (f" [{points(interval[0])}, {points(interval[1])}]" if interval else "")


def row_of(facts: Facts, name: str | None) -> Mapping[str, Any] | None:
    return next((row for row in facts["rows"] if row["name"] == name), None)


def uneven(facts: Facts) -> bool:
    """Whether rows have different numbers of seeds, which a reader must then see beside the figures."""
    return len({len(row["seeds"]) for row in facts["rows"]}) > 1


def _over(facts: Facts, row: Mapping[str, Any]) -> str:
    """(3 seeds), where rows have different numbers of them."""
    return f" ({counted(len(row['seeds']), 'seed')})" if uneven(facts) else ""


def base_of(facts: Facts, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a row is built on: the first of its block."""
    return next(other for other in facts["rows"] if other["base"] == row["base"])


def verdicts(facts: Facts) -> list[str]:
    """A sentence for each declared comparison, whatever its verdict."""
    lines = []
    for item in facts["declared"]:
        interval = item["interval"]
        within = (
            f", unadjusted 95 % confidence interval {points(interval[0])} to {points(interval[1])}"
            if interval
            else ""
        )
        count = counted(len(item["values"]), "seed")
        # By this the verdict was given; the interval of one comparison alone may leave 0 out all the same.
        count += f", Holm-adjusted p = {item['adjusted']:.2g}" if interval else ""
        lines.append(f"{item['text']}: {item['verdict']} ({points(item['mean'])} points{within}; {count}).")
    return lines


def findings(facts: Facts) -> list[str]:
    """Who wins, by how much, at which price, and where CFOL stands: claims only as far as they were declared
    and shown.
    """
    lines = [*verdicts(facts), *_places(facts), *_by_other_rules(facts), *_with_offsets(facts)]
    lines += _prices(facts, [CFOL, facts["rival"], _ranked(facts)[0]["name"]])
    if facts["rival"] is not None and (rival := row_of(facts, facts["rival"])):
        of = f"the {facts['settings_from']} scale's" if facts["settings_from"] else "the search's"
        on = "" if rival["base"] == "AT" else f"; it is built on {rival['base']}, ERM-AT and CFOL-AT are not"
        lines.append(f"The best rival, chosen on {of} hold-out, is {rival['title']}{on}.")
    return [*lines, *_not_begun(facts), *_too_hard(facts)]


def caveats(facts: Facts) -> list[str]:
    """What a reader of CFOL's gain has to know with it: who is better, what needs no training at all, the
    price, what the setting can show.
    """
    return [*_places(facts), *_with_offsets(facts), *_prices(facts, [CFOL]), *_too_hard(facts)]


def _ranked(facts: Facts) -> list[Mapping[str, Any]]:
    """The rows, the best worst class first."""
    return sorted(facts["rows"], key=lambda row: -row["rules"][RULE]["robust"]["worst"]["mean"])


def _places(facts: Facts) -> list[str]:
    """Whose worst class and average are the best, and where CFOL stands."""
    ranked = _ranked(facts)
    best, places = ranked[0], [row["name"] for row in ranked]
    average = max(facts["rows"], key=lambda row: row["rules"][RULE]["robust"]["average"]["mean"])
    lines = [
        f"Exploratory, selected by these test results: of {counted(len(places), 'row')} the best"
        f" worst class is {best['title']}'s, {interval_text(best['rules'][RULE]['robust']['worst'])}"
        f" %{_over(facts, best)}; the best average {average['title']}'s,"
        f" {interval_text(average['rules'][RULE]['robust']['average'])} %{_over(facts, average)}."
    ]
    if CFOL in places:
        lines.append(
            f"Exploratory: CFOL-AT is number {places.index(CFOL) + 1} of {len(places)} by its worst class."
        )
    return lines


def _prices(facts: Facts, names: Sequence[str | None]) -> list[str]:
    lines = []
    for name in dict.fromkeys(names):
        if not (row := row_of(facts, name)) or "price" not in row:
            continue
        base = base_of(facts, row)
        both = sorted(set(row["seeds"]) & set(base["seeds"]))
        # A row may have more seeds than its base, and then other figures in the tables.
        over = f" over the {counted(len(both), 'seed')} that both have" if both != row["seeds"] else ""
        lines.append(
            f"Trade-off of {row['title']} against {base['title']}{over} (exploratory):"
            f" {price_sentence(row['price'])}"
        )
    return lines


def _too_hard(facts: Facts) -> list[str]:
    erm = row_of(facts, ERM)
    hard = erm is not None and erm["rules"][RULE]["robust"]["worst"]["mean"] < LEAST_WORST_OF_ERM
    return ["ERM-AT's worst class is under 5 %: this setting is too hard for a fine comparison."] * hard


def _by_other_rules(facts: Facts) -> list[str]:
    """Whose worst class is the best by the other rules: a row may owe its place to the rule."""
    rules = {
        "best-worst": "chosen by the worst class",
        "last": "the last epoch",
        "ema-best-average": "averaged weights",
    }
    found = []
    for rule, words in rules.items():
        rows = [row for row in facts["rows"] if rule in row["rules"]]
        if rows:
            best = max(rows, key=lambda row: row["rules"][rule]["robust"]["worst"]["mean"])
            worst = interval_text(best["rules"][rule]["robust"]["worst"])
            found.append(f"{words}, {best['title']}'s, {worst} %{_over(facts, best)}")
    said = "Exploratory: the best worst class by other rules for the checkpoint"
    return [f"{said}: {'; '.join(found)}."] if found else []


def _with_offsets(facts: Facts) -> list[str]:
    """What class offsets make of erm, and how far the rows that are judged are above that: the baseline
    without training.
    """
    erm = row_of(facts, ERM)
    if erm is None or OFFSETS_RULE not in erm["rules"]:
        return []
    before, after = (erm["rules"][rule]["robust"] for rule in (RULE, OFFSETS_RULE))
    worst, average = (
        f"{interval_text(before[metric])} → {interval_text(after[metric])} %"
        for metric in ("worst", "average")
    )
    line = (
        "Exploratory: class offsets on ERM-AT, fitted on the hold-out without training: worst class"
        f" {worst}, average {average}."
    )
    for item in facts["beside_offsets"]:
        titled = row_of(facts, item["row"])
        differences = [
            f"{difference_text(item[metric])} {where}"
            for metric, where in (("worst", "in the worst class"), ("average", "on average"))
        ]
        line += (
            f" {titled['title'] if titled else item['row']} beside it: {', '.join(differences)}, in points."
        )
    return [line]


def _not_begun(facts: Facts) -> list[str]:
    """Rows whose checkpoint may be from before the method did anything."""
    lines = []
    for row in facts["rows"]:
        early = sum(epoch <= (row["begins"] or 0) for epoch in row["epochs"])
        if early:
            lines.append(
                f"{row['title']} begins to act after epoch {row['begins']}, and the best-average checkpoint"
                f" of {early} of {counted(len(row['epochs']), 'seed')} is not later: there the row is"
                f" {base_of(facts, row)['title']} under another name."
            )
    return lines


def which_rows(facts: Facts) -> str:
    """How the rows of a scale that has not all of them were picked: by what another scale knew before."""
    if not uneven(facts):
        return ""
    most = max(len(row["seeds"]) for row in facts["rows"])
    full = [row["title"] for row in facts["rows"] if len(row["seeds"]) == most]
    others = [row for row in facts["rows"] if len(row["seeds"]) < most]
    fewest = min(len(row["seeds"]) for row in others)
    return (
        f" Not every row of the {facts['settings_from']} scale is trained here: {listed(full)} have"
        f" {counted(most, 'seed')}, {listed([row['title'] for row in others])} {counted(fewest, 'seed')};"
        " these are the others that AutoAttack tests, and then the best rivals by the"
        f" {facts['settings_from']} scale's hold-out."
    )
