"""Markdown and LaTeX of a recipe's table, from its JSON alone: the paper's form, its numbers in brackets, the difference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cfol_fast.recipes.table import METRIC_TITLES

KINDS = {"clean": "clean", "robust": "robust"}
LEGEND = (
    "Cells: ours (the paper's, ours − the paper's). Bold: the best of ours in that measure. ±: the sample deviation over the seeds; "
    "of a difference, the root of both squares' sum."
)
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "‖": r"$\|$",
    "δ": r"$\delta$", "∞": r"$_\infty$", "≤": r"$\leq$", "γ": r"$\gamma$", "η": r"$\eta$", "α": r"$\alpha$", "±": r"$\pm$",
    "−": "$-$", "·": r"$\cdot$", "√": r"$\sqrt{}$", "ε": r"$\varepsilon$", "<": "$<$", ">": "$>$", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "$": r"\$",
}  # fmt: skip
Style = Callable[[str], str]


def markdown(table: Mapping[str, Any]) -> str:
    """The whole page of one recipe: heading, table, orderings, footnotes, how it was made."""
    lines = [f"# {table['title']}", "", _intro(table), ""]
    lines += _pipes(*_grid(table, lambda text: f"**{text}**"))
    lines += ["", LEGEND, ""]
    lines += [f"- {note}" for note in table["footnotes"]]
    lines += ["", *_orderings(table)] if table["claims"] else []
    for count in table["counts"]:
        beside = f" (the paper: {count['paper']})" if count["paper"] is not None else ""
        lines += ["", f"{count['ours']} of {count['classes']} {count['text']}{beside}."]
    lines += ["", *_made(table)]
    return "\n".join(lines) + "\n"


def _intro(table: Mapping[str, Any]) -> str:
    where = f"{table['paper']} of the paper" if table["paper"] else "A recipe of one's own"
    scale = "at the paper's scale" if table["scale"] == "paper" else "at the mini scale"
    text = f"{where}, {scale}: {', '.join(table['datasets'])}, {', '.join(table['models'])}."
    if table["scale"] == "mini":
        text += " The paper's numbers are those of its own data sets and networks; what can be compared is the ordering."
        valid = table["valid"] or {}
        if valid.get("ok") is False:
            text += (
                f" **Not valid**: ERM-AT's robust average is {valid['erm_robust_average']:.3f}, "
                f"a table needs at least {valid['limit']:.3f} (three times chance)."
            )
    if table["caption"]:
        text += f" The paper's point: {table['caption']}"
    return text


def _grid(table: Mapping[str, Any], bold: Style) -> tuple[list[str], list[list[str]]]:
    """Header and rows, in the layout of the paper's table."""
    return _by_rows(table, bold) if table["layout"] == "rows" else _by_columns(table, bold)


def _by_columns(table: Mapping[str, Any], bold: Style) -> tuple[list[str], list[list[str]]]:
    several = len(table["blocks"]) > 1
    titles = [entry["title"] for entry in table["blocks"][0]["entries"]]
    header = ([""] if several else []) + ["", "", *titles]
    rows = []
    for block in table["blocks"]:
        before = ""
        for metric in table["metrics"]:
            kind, _, statistic = metric.partition(".")
            cells = [entry["values"][metric] for entry in block["entries"]]
            first = [block["title"] if metric == table["metrics"][0] else ""] if several else []
            label = f"acc {KINDS[kind]}" if kind != before else ""
            rows.append([*first, label, METRIC_TITLES[statistic], *_cells(cells, bold)])
            before = kind
    return header, rows


def _by_rows(table: Mapping[str, Any], bold: Style) -> tuple[list[str], list[list[str]]]:
    symbols = {"eta": "η", "alpha": "α", "gamma": "γ"}
    names = [
        f"{KINDS[k]} {METRIC_TITLES[s].lower()}" for k, _, s in (m.partition(".") for m in table["metrics"])
    ]
    header = ["", *[symbols.get(name, name) for name in table["parameters"]], *names]
    rows = []
    for block in table["blocks"]:
        columns = [
            _cells([entry["values"][metric] for entry in block["entries"]], bold)
            for metric in table["metrics"]
        ]
        for place, entry in enumerate(block["entries"]):
            shown = [entry["parameters"].get(name) for name in table["parameters"]]
            parameters = ["–" if value is None else f"{value:g}" for value in shown]
            rows.append([entry["title"], *parameters, *[column[place] for column in columns]])
    return header, rows


def _cells(values: Sequence[Mapping[str, Any]], bold: Style) -> list[str]:
    means = [value["mean"] for value in values if value["mean"] is not None]
    best = max(means) if len(means) > 1 else None
    return [
        _cell(value, bold if value["mean"] is not None and value["mean"] == best else str) for value in values
    ]


def _cell(value: Mapping[str, Any], style: Style) -> str:
    ours = "–" if value["mean"] is None else style(f"{value['mean']:.4f}")
    if value["deviation"] is not None:
        ours += f" ± {value['deviation']:.4f}"
    if value["paper"] is None:
        return ours
    paper = f"{value['paper']:.4f}"
    if value["paper_deviation"] is not None:
        paper += f" ± {value['paper_deviation']:.4f}"
    return (
        f"{ours} ({paper}, {signed(value['difference'])})"
        if value["difference"] is not None
        else f"{ours} ({paper})"
    )


def signed(value: float) -> str:
    return f"{'−' if value < 0 else '+'}{abs(value):.4f}"


def _pipes(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def verdict(claim: Mapping[str, Any]) -> str:
    if claim["holds"] is None:
        return "not measured"
    word = "shown" if claim["holds"] else "not shown"
    if claim["deviation"] is None:
        return f"{word} (one seed)"
    return f"{word}, within the deviation" if is_noise(claim) else word


def is_noise(claim: Mapping[str, Any]) -> bool:
    """Whether the difference is smaller than its own deviation over the seeds."""
    return claim["deviation"] is not None and abs(claim["ours"]) < claim["deviation"]


def _orderings(table: Mapping[str, Any]) -> list[str]:
    def margin(value: float | None) -> str:
        return "–" if value is None else signed(value)

    rows = []
    for claim in table["claims"]:
        spread = f" ± {claim['deviation']:.4f}" if claim["deviation"] is not None else ""
        rows.append([claim["text"], margin(claim["paper"]), margin(claim["ours"]) + spread, verdict(claim)])
    return ["The paper's orderings:", "", *_pipes(["", "paper", "ours", ""], rows)]


def _made(table: Mapping[str, Any]) -> list[str]:
    seeds = sorted(
        {seed for block in table["blocks"] for entry in block["entries"] for seed in entry["seeds"]}
    )
    versions = ", ".join(f"{name} {version}" for name, version in table["versions"].items())
    return [
        f"Made by `{table['command']}`: {len(table['runs'])} runs, seeds {', '.join(map(str, seeds)) or 'none'}, "
        f"{table['seconds'] / 60:.1f} minutes of training and testing, checkpoint {table['checkpoint']}"
        + (f"; {versions}." if versions else "."),
    ]


def latex(table: Mapping[str, Any]) -> str:
    """A booktabs table in the paper's form; needs \\usepackage{booktabs}."""
    header, rows = _grid(table, lambda text: f"<b>{text}</b>")
    lead = len(header) - len(
        table["blocks"][0]["entries"] if table["layout"] == "columns" else table["metrics"]
    )
    lines = [
        r"\begin{table}[t]", r"\centering",
        rf"\caption{{{escape(table['title'])}. {escape(_intro(table).replace('**', ''))} {escape(LEGEND)}}}",
        rf"\label{{tab:{table['recipe']}-{table['scale']}}}",
        rf"\begin{{tabular}}{{{'l' * len(header)}}}", r"\toprule",
        " & ".join(rf"\textbf{{{escape(name)}}}" if i >= lead and name else escape(name) for i, name in enumerate(header)) + r" \\",
        r"\midrule",
    ]  # fmt: skip
    for i, row in enumerate(rows):
        if i and row[0] and table["layout"] == "columns":
            lines.append(r"\midrule")
        lines.append(" & ".join(_bold(cell) for cell in row) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    lines += [f"% {escape(note)}" for note in table["footnotes"]]
    return "\n".join(lines) + "\n"


def _bold(cell: str) -> str:
    if not cell.startswith("<b>"):
        return escape(cell)
    number, _, rest = cell.removeprefix("<b>").partition("</b>")
    return rf"{{\bfseries {number}}}{escape(rest)}"


def escape(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
