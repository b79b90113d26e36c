"""The site's page "Which method?": five questions, with the figures of results/ behind each answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cfol_fast.recipes.frontier.facts import OFFSETS_RULE, RULE
from cfol_fast.recipes.frontier.plan import CFOL, ERM
from cfol_fast.recipes.frontier.sentences import row_of
from cfol_fast.runs.metrics import METRICS
from tools.headline import after_offsets, short

Facts = Mapping[str, Any]
PAGE = """\
# Which method?

Answer the questions in this order and stop at the first answer that applies. The figures are robust test
accuracies in percent, *worst class / average*, from the [comparison of all methods](leaderboard.md). They
were measured on small networks and few images. Expect the order of the methods to change with other data,
and compare on your own hold-out.

## 1. Can you train again?
**No: fit class offsets.** `cfol-fast offsets RUN` fits one number per class on the hold-out of the run
that you have. It needs no training.

{offsets}

Try this first even if you can train again: it is the baseline that a training method must beat. {beyond}

## 2. Which accuracy must be good?
- **Only the average: `erm` or `trades`.** A method for the worst class usually gives up some of the
  average.
- **The worst class or the tail:** continue with question 3.

{average}

## 3. Are labels noisy, or are two classes impossible to tell apart?
**Yes: clean the labels first, or use `cfol` with a larger gamma** (`--set gamma=0.8`). A class with wrong
labels always has errors, so a method that follows the errors raises its weight. Gamma limits how often
one class is drawn. Do not use `fol`, which looks at single examples.

## 4. Are there fewer than five classes?
**Yes: use class offsets, or a weight on the loss that you choose on a hold-out.** With two or three
classes the bandit has little to choose from.

## 5. Which loss do you train with?
- **Cross-entropy under attack: `cfol`.** It is the default. It has two hyperparameters, and `eta=auto`
  chooses one of them.
- **TRADES: `cfol-trades`.** It is TRADES on classes that the same bandit draws.

{training}

The method with the highest worst-class accuracy in each table, selected by these test results
(exploratory):

{best}

Each method has its own page: [all methods](methods/index.md). The limits of all of them: [when to use it,
and when not](when-to-use.md).
"""


def which_method_page(frontiers: Sequence[Facts]) -> str:
    ordered = sorted(frontiers, key=lambda facts: facts["dataset"] == "fashion-mini")
    plain = {"rule": RULE, "word": ""}
    fitted = {"rule": OFFSETS_RULE, "word": " with offsets"}
    return PAGE.format(
        offsets=_table(ordered, [(ERM, plain), (ERM, fitted), (CFOL, plain), (CFOL, fitted)]),
        beyond=" ".join(_beyond(facts) for facts in ordered),
        average=_table(ordered, [(ERM, plain), ("trades", plain), (CFOL, plain)]),
        training=_table(ordered, [(name, plain) for name in (ERM, CFOL, "trades", "cfol-trades")]),
        best="\n".join(f"- {short(facts)}: {_best(facts)}." for facts in ordered),
    )


def _table(frontiers: Sequence[Facts], rows: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    lines = [f"| method | {' | '.join(short(facts) for facts in frontiers)} |"]
    lines.append("|---|" + "---:|" * len(frontiers))
    for name, kind in rows:
        found = [row_of(facts, name) for facts in frontiers]
        title = next((row["title"] for row in found if row is not None), name)
        cells = [_figures(row, kind["rule"]) for row in found]
        lines.append(f"| {title}{kind['word']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _figures(row: Mapping[str, Any] | None, rule: str) -> str:
    if row is None or rule not in row["rules"]:
        return "not measured"
    robust = row["rules"][rule]["robust"]
    return " / ".join(METRICS[name].text(robust[name]["mean"]) for name in ("worst", "average"))


def _beyond(facts: Facts) -> str:
    """Whether CFOL has a better worst class than ERM when both have offsets."""
    found = after_offsets(facts)
    if found is None or found.interval is None:
        return ""
    low, high = found.interval
    verdict = "is above" if low > 0 else "is below" if high < 0 else "does not differ from"
    return f"{short(facts)}: the worst class of CFOL-AT {verdict} that of ERM-AT, both with offsets."


def _best(facts: Facts) -> str:
    row = max(facts["rows"], key=lambda row: row["rules"][RULE]["robust"]["worst"]["mean"])
    return f"{row['title']}, {_figures(row, RULE)} ({len(row['seeds'])} seeds)"
