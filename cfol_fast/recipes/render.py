"""A recipe's table as the report's Table, whose forms are Markdown, LaTeX, CSV and HTML; and its page in
Markdown.

Made from the recipe's JSON (table.py) alone. Each column of ours has the paper's beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cfol_fast.plain_text import percent, points
from cfol_fast.recipes.table import metric_title
from cfol_fast.reporting import Cell, Row, Table
from cfol_fast.reporting.groups import Stat
from cfol_fast.reporting.wording import stat_text

# Decimals of percentages: the paper prints shares with four digits.
DIGITS = 2
SYMBOLS = {"eta": "η", "alpha": "α", "gamma": "γ"}
LEGEND = (
    "In percent, with the sample deviation over the seeds. Beside each of our columns: the paper's; the"
    " signed number is ours minus the paper's, in points. The best of ours in each measure is bold."
)


def tables(table: Mapping[str, Any]) -> list[Table]:
    """The recipe's table and, where it has some, the paper's orderings."""
    return [main_table(table), *([orderings(table)] if table["claims"] else [])]


def main_table(table: Mapping[str, Any]) -> Table:
    """In the layout of the paper's table: methods as columns, or as rows with their parameters."""
    values = [entry["values"] for block in table["blocks"] for entry in block["entries"]]
    beside = any(value["paper"] is not None for entry in values for value in entry.values())
    rows = []
    if table["layout"] == "columns":
        stubs = ["", ""]
        names = [entry["title"] for entry in table["blocks"][0]["entries"]]
        for block in table["blocks"]:
            for place, metric in enumerate(table["metrics"]):
                cells = [cell for entry in block["entries"] for cell in _cells(block, entry, metric, beside)]
                title = block["title"] if place == 0 else ""
                rows.append(Row([title, metric_title(metric)], cells, place == 0))
    else:
        stubs = ["", *[SYMBOLS.get(name, name) for name in table["parameters"]]]
        names = [metric_title(metric) for metric in table["metrics"]]
        for block in table["blocks"]:
            before = ""
            for entry in block["entries"]:
                cells = [cell for metric in table["metrics"] for cell in _cells(block, entry, metric, beside)]
                shown = [entry["parameters"].get(name) for name in table["parameters"]]
                parameters = ["–" if value is None else f"{value:g}" for value in shown]
                rows.append(Row([entry["title"], *parameters], cells, entry["title"] != before))
                before = entry["title"]
    columns = [text for name in names for text in ((name, "paper") if beside else (name,))]
    caption = " ".join([introduction(table), LEGEND, *table["footnotes"]])
    return Table("recipe", table["title"], caption, stubs, columns, rows, digits=DIGITS)


def _cells(block: Mapping[str, Any], entry: Mapping[str, Any], metric: str, beside: bool) -> list[Cell]:
    """Our number and, when `beside`, the paper's. The best is that of the block's entries in this measure."""
    value = entry["values"][metric]
    means = [other["values"][metric]["mean"] for other in block["entries"]]
    means = [mean for mean in means if mean is not None]
    best = len(means) > 1 and value["mean"] == max(means)
    ours = Cell(
        _text(value["mean"], value["deviation"]), value["mean"], value["deviation"], value["difference"], best
    )
    printed = Cell(_text(value["paper"], value["paper_deviation"]), value["paper"], value["paper_deviation"])
    return [ours, printed] if beside else [ours]


def _text(mean: float | None, deviation: float | None) -> str:
    return stat_text(None if mean is None else Stat(mean, deviation), DIGITS)


def introduction(table: Mapping[str, Any]) -> str:
    where = f"{table['paper']} of the paper" if table["paper"] else "A recipe that is not the paper's"
    scale = "the paper's scale" if table["scale"] == "paper" else f"the {table['scale']} scale"
    text = f"{where}, at {scale}: {', '.join(table['datasets'])}, {', '.join(table['models'])}."
    if table["scale"] != "paper":
        text += (
            " The paper's numbers are those of its own data sets and networks; what can be compared is the"
            " ordering."
        )
    valid = table["valid"] or {}
    if valid.get("ok") is False:
        text += (
            f" Not valid: the baseline's robust average is {percent(valid['erm_robust_average'])} %, "
            f"a table needs at least {percent(valid['limit'])} % (three times chance)."
        )
    return text + (f" The paper's point: {table['caption']}" if table["caption"] else "")


def orderings(table: Mapping[str, Any]) -> Table:
    """What the paper's numbers show, and whether ours show it."""
    rows = []
    for claim in table["claims"]:
        paper, ours = ("–" if claim[who] is None else points(claim[who], DIGITS) for who in ("paper", "ours"))
        if claim["interval"] is not None:
            low, high = (points(limit, DIGITS) for limit in claim["interval"])
            ours += f" [{low}, {high}]"
        rows.append(Row([claim["text"]], [Cell(paper), Cell(ours), Cell(verdict(claim))]))
    caption = (
        "What the paper's numbers show, and whether ours show it: paired differences over the seeds, on one"
        " fixed test set, in points [unadjusted 95 % t-interval]. Descriptive: each is judged alone, not"
        " corrected for how many there are."
    )
    return Table(
        "orderings",
        "The paper's orderings",
        caption,
        ["Ordering"],
        ["Paper", "Ours", "Verdict"],
        rows,
        words=True,
    )


def verdict(claim: Mapping[str, Any]) -> str:
    return claim["verdict"] + (" (one seed)" if claim["seeds"] == 1 else "")


def markdown(table: Mapping[str, Any]) -> str:
    """The whole page of one recipe."""
    return f"# {table['title']}\n\n{markdown_body(table)}"


def markdown_body(table: Mapping[str, Any]) -> str:
    """The page without its heading: table, footnotes, orderings, counts, how it was made."""
    parts = [introduction(table), main_table(table).markdown().rstrip(), LEGEND]
    parts += ["\n".join(f"- {note}" for note in table["footnotes"])] if table["footnotes"] else []
    if table["claims"]:
        shown = orderings(table)
        parts += [f"{shown.title}. {shown.caption}", shown.markdown().rstrip()]
    for count in table["counts"]:
        beside = f" (the paper: {count['paper']})" if count["paper"] is not None else ""
        parts.append(f"{count['ours']} of {count['classes']} {count['text']}{beside}.")
    return "\n\n".join([*parts, _made(table)]) + "\n"


def _made(table: Mapping[str, Any]) -> str:
    entries: Sequence[Any] = [entry for block in table["blocks"] for entry in block["entries"]]
    seeds = sorted({seed for entry in entries for seed in entry["seeds"]})
    versions = "".join(f"; {name} {version}" for name, version in table["versions"].items())
    return (
        f"Made by `{table['command']}`: {len(table['runs'])} runs, seeds"
        f" {', '.join(map(str, seeds)) or 'none'}, {table['seconds'] / 60:.1f} minutes of training and"
        f" testing, checkpoint {table['checkpoint']}{versions}."
    )


def latex(table: Mapping[str, Any]) -> str:
    return main_table(table).latex()
