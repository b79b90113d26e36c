"""The comparison as text for a terminal: a table and bars by class. Colours only where the output is one."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cfol_fast.plain_text import percent, points
from cfol_fast.progress import bar
from cfol_fast.reporting import tables
from cfol_fast.reporting.groups import MANY, Comparison, Group, compare
from cfol_fast.reporting.theme import TERMINAL
from cfol_fast.runs.records import Run, load_run, run_from_result

Result = Mapping[str, Any] | Run | Path | str
_RED, _GREEN, _BOLD, _END = "\x1b[31m", "\x1b[32m", "\x1b[1m", "\x1b[0m"


def wants_colour(stream: Any = None) -> bool:
    """A terminal, and the reader has not asked for none (https://no-color.org)."""
    stream = sys.stdout if stream is None else stream
    return bool(getattr(stream, "isatty", lambda: False)()) and "NO_COLOR" not in os.environ


def _as_run(result: Result) -> Run:
    if isinstance(result, Run):
        return result
    if isinstance(result, Mapping):
        return run_from_result(result)
    return load_run(Path(result))


def as_comparison(results: Sequence[Result]) -> Comparison:
    return compare([_as_run(result) for result in results])


def table_text(comparison: Comparison, colour: bool | None = None, width: int | None = None) -> str:
    """The comparison table; with the methods as rows where they do not fit side by side."""
    table = tables.comparison_table(comparison)
    room = width or shutil.get_terminal_size((100, 24)).columns
    if max(len(line) for line in table.text().splitlines()) > room:
        table = table.transposed("Method")
    painted = wants_colour() if colour is None else colour
    text = table.text(_GREEN, _RED, _BOLD, _END) if painted else table.text()
    return "\n".join([text, *(f"note: {caveat}" for caveat in comparison.caveats())])


def comparison_table(*results: Result, colour: bool | None = None, width: int | None = None) -> str:
    """Average, tail and worst class of the results (result dictionaries, runs or run folders), with
    differences.
    """
    return table_text(as_comparison(results), colour, width)


def terminal_bars(*results: Result, colour: bool | None = None, width: int | None = None) -> str:
    """Robust accuracy by class as bars, a block per class, with each group's average and worst class
    below.
    """
    comparison = as_comparison(results)
    groups = [group for group in comparison.groups if group.accuracies("robust")]
    if not groups:
        return "no run has a robust accuracy yet"
    paint = wants_colour() if colour is None else colour
    room = min(width or shutil.get_terminal_size((80, 24)).columns, 100)
    names = comparison.ranked()
    shown = names if len(names) <= MANY else names[: comparison.tail_size]
    name_room = min(max(len(name) for name in shown), 16)
    label_room = max(len(group.label) for group in groups)
    bar_room = max(10, room - name_room - label_room - 18)
    lines = [
        f"Robust accuracy in percent, weakest class of {groups[0].label} first" + _left_out(names, shown),
        "",
    ]
    for name in shown:
        before = groups[0].class_stat("robust", name)
        for number, group in enumerate(groups):
            stat = group.class_stat("robust", name)
            if stat is None:
                continue
            # Nothing right at all is still a bar that can be seen.
            drawn = bar(max(stat.mean, 1 / (8 * bar_room)), bar_room)
            change = ""
            if number and before is not None and comparison.comparable(group):
                change = f"{points(stat.mean - before.mean):>6}"
                if paint and stat.mean != before.mean:
                    change = (_GREEN if stat.mean > before.mean else _RED) + change + _END
            text = f"\x1b[{TERMINAL[group.colour]}m{drawn}{_END}" if paint else drawn
            start = name[:name_room].ljust(name_room) if number == 0 else " " * name_room
            lines.append(
                f"{start}  {group.label:<{label_room}}  {text} {percent(stat.mean):>5} {change}".rstrip()
            )
    lines += ["", *(_summary(group, label_room, paint) for group in groups)]
    return "\n".join(lines)


def _left_out(names: Sequence[str], shown: Sequence[str]) -> str:
    return "" if len(shown) == len(names) else f" (the 20 % tail: {len(shown)} of {len(names)} classes)"


def _summary(group: Group, label_room: int, paint: bool) -> str:
    average, worst = group.stat("robust", "average"), group.stat("robust", "worst")
    if average is None or worst is None:
        return group.label
    value = f"{_BOLD}{percent(worst.mean)}{_END}" if paint else percent(worst.mean)
    return (
        f"{group.label:<{label_room}}  average {percent(average.mean)}, worst class {value}"
        f" ({group.worst_class('robust')})"
    )
