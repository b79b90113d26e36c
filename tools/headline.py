"""The README's headline: ERM, CFOL and the best rival by all three checkpoint rules and with class offsets,
with intervals.

`python -m tools.headline results README.md` writes one for each scale between the page's two marks.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cfol_fast import atomic
from cfol_fast.errors import InputError
from cfol_fast.recipes.frontier.facts import OFFSETS_RULE
from cfol_fast.recipes.frontier.plan import CFOL, ERM
from cfol_fast.recipes.frontier.sentences import caveats, counted, interval_text, row_of, verdicts
from cfol_fast.recipes.frontier.text import OVER_SEEDS, OWN, RULES
from cfol_fast.reporting import Cell, Row, Table
from cfol_fast.reporting.wording import attack_phrase
from tools.collection import read_frontiers

BEGIN, END = "<!-- headline: written by tools.headline -->", "<!-- end of headline -->"


def markdown(facts: Mapping[str, Any]) -> str:
    """A sentence for each declared comparison with its verdict; the table; and what has to be known with
    them.
    """
    rows = [row for name in (ERM, CFOL, facts["rival"]) if (row := row_of(facts, name)) is not None]
    lines = []
    for rule in ("last", "best-average", "best-worst", OFFSETS_RULE):
        for number, row in enumerate(row for row in rows if rule in row["rules"]):
            robust = row["rules"][rule]["robust"]
            cells = [Cell(interval_text(robust[metric])) for metric in ("worst", "tail", "average")]
            lines.append(Row([RULES[rule] if number == 0 else "", row["title"]], cells))
    table = Table(
        "headline", "", "", ["Checkpoint", "Method"], ["worst class", "20 % tail", "average"], lines
    )
    seeds = min(len(row["seeds"]) for row in rows)
    declared = (
        "Declared before any run with these seeds (two-sided, best-average checkpoint, paired by seed, Holm"
        " over all):"
    )
    sentences = "\n".join(f"- {line}" for line in verdicts(facts))
    what = (
        f"Robust test accuracy in percent ({attack_phrase(facts['attack'])}), mean over"
        f" {counted(seeds, 'seed')} ± half of its 95 % t-interval, each of one figure alone. {OWN}"
        f" {OVER_SEEDS} Class offsets are fitted on the hold-out, without training. The table describes: the"
        " sentences above alone are judged."
    )
    beside = "\n".join(f"- {line}" for line in caveats(facts))
    return "\n\n".join([declared, sentences, table.markdown().rstrip(), what, beside]).rstrip() + "\n"


def of_all(frontiers: Sequence[Mapping[str, Any]]) -> str:
    """One for each scale, under the images it is about; real images come before the embedded ones."""
    ordered = sorted(frontiers, key=lambda facts: facts["dataset"] == "fashion-mini")
    return "\n".join(
        f"**{facts['setting'][0].upper()}{facts['setting'][1:]}.**\n\n{markdown(facts)}" for facts in ordered
    )


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
    made = put_into(page.read_text(encoding="utf-8"), of_all(read_frontiers(results)), str(page))
    atomic.write_text(page, made)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
