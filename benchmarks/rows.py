"""The rows that answer a question, in the form of benchmarks/results/*.json, and the small command line of
each question.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.timing import Timing
from cfol_fast.frozen import autotune

AT_LEAST, AT_MOST = ">=", "<="
# Follows the name of the peer that a target is about.
FASTEST = " (the fastest peer)"
# Follows the name of the fastest attack library, where an expert's own code is faster than every library.
LIBRARY = " (the fastest library)"
# The peer without which nobody knows the fastest alternative.
FOLDED = "plain PyTorch, BatchNorm folded"


def unmarked(against: str) -> str:
    """The name of a peer, without what a run found of it."""
    return against.removesuffix(FASTEST).removesuffix(LIBRARY)


def mark(against: str) -> str:
    """What a run found of a peer: that it was the fastest, the fastest library, or nothing."""
    return against.removeprefix(unmarked(against))


@dataclass(frozen=True)
class Row:
    """`ratio` is theirs / ours where more is better (target ">= x"), and ours / theirs where less is (target
    "<= x").

    Seconds are the minimum of the repetitions; None where the question is not one of time (the note has the
    numbers). Without a ratio the question could not be asked on this machine; the note says why. `question`
    is the module that answered, and empty in the first results files.
    """

    name: str
    against: str
    ratio: float | None
    target: str | None
    ours_seconds: float | None
    theirs_seconds: float | None
    note: str
    question: str = ""

    @property
    def reached(self) -> bool | None:
        if self.target is None or self.ratio is None:
            return None
        sign, number = self.target.split()
        return self.ratio >= float(number) if sign == AT_LEAST else self.ratio <= float(number)


Measure = Callable[[bool], list[Row]]


def faster(
    name: str,
    against: str,
    ours: Timing,
    theirs: Timing,
    target: float | None = None,
    note: str = "",
    *,
    cpu: bool = False,
    per: int = 1,
) -> Row:
    """How many times faster ours is, by wall time or by CPU time; the seconds are divided by `per` items."""
    mine, other = (ours.cpu_best, theirs.cpu_best) if cpu else (ours.best, theirs.best)
    wall, busy = ours.best / theirs.best, ours.cpu_best / max(theirs.cpu_best, 1e-9)
    by = f"wall {1 / wall:.2f}x" if cpu else f"CPU {1 / max(busy, 1e-9):.2f}x"
    middle = (
        statistics.median(theirs.cpu) / statistics.median(ours.cpu) if cpu else theirs.median / ours.median
    )
    facts = f"medians {middle:.2f}x, {by}, {len(ours.wall)} repetitions"
    goal = None if target is None else f"{AT_LEAST} {target:g}"
    return Row(
        name, against, other / mine, goal, mine / per, other / per, "; ".join(filter(None, (note, facts)))
    )


def at_most(
    name: str,
    against: str,
    ratio: float,
    target: float | None,
    note: str,
    ours_seconds: float | None = None,
    theirs_seconds: float | None = None,
) -> Row:
    goal = None if target is None else f"{AT_MOST} {target:g}"
    return Row(name, against, ratio, goal, ours_seconds, theirs_seconds, note)


def not_asked(name: str, against: str, target: str | None, why: str) -> Row:
    return Row(name, against, None, target, None, None, why)


def seconds(value: float | None) -> str:
    if value is None:
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def ratio(value: float | None) -> str:
    if value is None:
        return "not asked"
    if value == 0:
        return "0"
    if value < 1e-5:
        return "under 0.001 %"
    if value < 0.01:
        return f"{100 * value:.2g} %"
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}x"


def goal(target: str | None) -> str:
    if target is None:
        return ""
    sign, number = target.split()
    return f"{sign} {100 * float(number):g} %" if float(number) < 0.01 else f"{sign} {number}x"


def markdown(rows: list[Row]) -> str:
    """All that one results file says."""
    lines = [
        "| question | against | ratio | target | reached | ours | theirs | note |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        reached = {True: "yes", False: "**no**", None: ""}[row.reached]
        cells = [row.name, row.against, ratio(row.ratio), goal(row.target), reached]
        cells += [seconds(row.ours_seconds), seconds(row.theirs_seconds), row.note]
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines)


def show(rows: list[Row]) -> None:
    for row in rows:
        reached = {True: "reached", False: "MISSED", None: ""}[row.reached]
        times = " / ".join(filter(None, (seconds(row.ours_seconds), seconds(row.theirs_seconds))))
        print(
            f"{row.name:<46.46} {row.against:<40.40} {ratio(row.ratio):>9} {goal(row.target):>9}"
            f" {reached:<8}{times}"
        )
        print(f"    {row.note}", flush=True)


def main(measure: Measure) -> None:
    """`python -m benchmarks.<question> [--tiny] [--json FILE]`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes, to see that it runs")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    args = parser.parse_args()
    # All layers race in the warm-up; a user's processes share the work.
    autotune.BUDGET = math.inf
    rows = measure(args.tiny)
    show(rows)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
