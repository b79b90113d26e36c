"""A table as data, and its five forms: HTML, Markdown, CSV, LaTeX and plain text.

Every table of the package is one of these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from html import escape

from cfol_fast.plain_text import aligned, points
from cfol_fast.reporting.theme import variable
from cfol_fast.reporting.wording import tone
from cfol_fast.runs.csv_text import csv_text
from cfol_fast.runs.metrics import Metric


@dataclass(frozen=True)
class Cell:
    """What is read (`text`), and the number behind it for CSV with its `difference` from the baseline.

    metric: what the number is, which says how a difference is written and which one is a gain; a share whose
    larger value is better without one.
    """

    text: str
    value: float | None = None
    deviation: float | None = None
    difference: float | None = None
    best: bool = False
    metric: Metric | None = None

    @property
    def is_gain(self) -> bool:
        """Whether it is better than the baseline."""
        change = self.difference or 0.0
        return change > 0 if self.metric is None else self.metric.is_better(change)

    def change(self, digits: int = 1) -> str:
        """The difference with its sign; empty without one."""
        if self.difference is None:
            return ""
        write = points if self.metric is None else self.metric.change
        return write(self.difference, digits)


@dataclass(frozen=True)
class Row:
    """stubs: the words before the numbers; an empty one repeats the one above it. first: opens a block of
    rows.
    """

    stubs: list[str]
    cells: list[Cell]
    first: bool = False
    colour: str | None = None


@dataclass(frozen=True)
class Table:
    """stubs, columns: the headings. colours: of the columns. folded: shown on demand only. words: cells are
    text, not numbers.
    digits: decimals of the differences."""

    key: str
    title: str
    caption: str
    stubs: list[str]
    columns: list[str]
    rows: list[Row]
    colours: list[str | None] = field(default_factory=list)
    folded: bool = False
    words: bool = False
    digits: int = 1

    def _full_stubs(self) -> list[list[str]]:
        full: list[list[str]] = []
        for row in self.rows:
            full.append([text or (full[-1][i] if full else "") for i, text in enumerate(row.stubs)])
        return full

    def _colours(self) -> list[str | None]:
        return [*self.colours, *[None] * (len(self.columns) - len(self.colours))]

    def _change(self, cell: Cell) -> str:
        return cell.change(self.digits)

    def transposed(self, stub: str) -> Table:
        """Columns as rows, under the heading `stub`: for tables with more columns than a page is wide."""
        columns = [" ".join(part for part in stubs if part) for stubs in self._full_stubs()]
        rows = [
            Row([name], [row.cells[place] for row in self.rows], colour=colour)
            for place, (name, colour) in enumerate(zip(self.columns, self._colours(), strict=True))
        ]
        return replace(self, stubs=[stub], columns=columns, rows=rows, colours=[])

    def html(self) -> str:
        head = "".join(f'<th class="stub">{escape(name)}</th>' for name in self.stubs)
        for name, colour in zip(self.columns, self._colours(), strict=True):
            # The mark stays on the line of the first word.
            first, *others = [escape(word) for word in name.split()] or [""]
            words = " ".join(f"<span>{word}</span>" for word in (_mark(colour) + first, *others))
            head += f"<th{' class=words' if self.words else ''}>{words}</th>"
        body = []
        for row in self.rows:
            cells = ""
            for place, text in enumerate(row.stubs):
                lead = " lead" if place == 0 and len(row.stubs) > 1 else ""
                cells += (
                    f'<td class="stub{lead}">{_mark(row.colour) if place == 0 else ""}{escape(text)}</td>'
                )
            cells += "".join(self._html_cell(cell) for cell in row.cells)
            body.append(f"<tr{' class=first' if row.first else ''}>{cells}</tr>")
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(self.title)}"><table'
            f' id="table-{self.key}"><caption>{escape(self.title)}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
        )

    def _html_cell(self, cell: Cell) -> str:
        kind = "wrap" if self.words else "best" if cell.best else ""
        change = self._change(cell)
        if change:
            change = f'<span class="delta{tone(change, cell.metric)}">{change}</span>'
        # Where a cell takes two lines, a number stays on that of its sign.
        text = escape(cell.text).replace(" ± ", "\u00a0±\u00a0").replace(" → ", "\u00a0→\u00a0")
        return f"<td{f' class={kind}' if kind else ''}>{text}{change}</td>"

    def markdown(self) -> str:
        """The best of each row bold, differences in brackets."""
        rows = [[*row.stubs, *(self._plain_cell(cell, "**") for cell in row.cells)] for row in self.rows]
        ruler = ["---"] * len(self.stubs) + ["---" if self.words else "---:"] * len(self.columns)
        lines = [[*self.stubs, *self.columns], ruler, *rows]
        return "".join(
            f"| {' | '.join(text.replace('|', chr(92) + '|') for text in line)} |\n" for line in lines
        )

    def csv(self) -> str:
        """Comma-separated; accuracies from 0 to 1 in full precision, deviations and differences in columns of
        their own.
        """
        columns = [[row.cells[place] for row in self.rows] for place in range(len(self.columns))]
        deviated = [any(cell.deviation is not None for cell in column) for column in columns]
        compared = [any(cell.difference is not None for cell in column) for column in columns]
        header = list(self.stubs)
        for name, has_deviation, has_difference in zip(self.columns, deviated, compared, strict=True):
            header += [name, *[f"{name} deviation"] * has_deviation, *[f"{name} difference"] * has_difference]
        lines: list[list[str | float | None]] = [[*header]]
        for row, stubs in zip(self.rows, self._full_stubs(), strict=True):
            line: list[str | float | None] = [*stubs]
            for cell, has_deviation, has_difference in zip(row.cells, deviated, compared, strict=True):
                line.append(cell.text if self.words and cell.value is None else cell.value)
                line += [cell.deviation] * has_deviation + [cell.difference] * has_difference
            lines.append(line)
        return csv_text(lines)

    def latex(self) -> str:
        r"""A booktabs table in the form of the paper's, numbers in percent, the best bold; needs
        \usepackage{booktabs}.
        """
        kinds = "l" * len(self.stubs) + ("l" if self.words else "r") * len(self.columns)
        lines = [
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{latex_text(f'{self.title}. {self.caption}')}}}",
            rf"\label{{tab:{self.key}}}",
            rf"\begin{{tabular}}{{{kinds}}}",
            r"\toprule",
            _latex_row(latex_text(name) for name in [*self.stubs, *self.columns]),
            r"\midrule",
        ]
        for number, row in enumerate(self.rows):
            if row.first and number:
                lines.append(r"\midrule")
            lines.append(_latex_row([*map(latex_text, row.stubs), *map(self._latex_cell, row.cells)]))
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])

    def _latex_cell(self, cell: Cell) -> str:
        text = latex_text(cell.text)
        change = self._change(cell)
        return (rf"\textbf{{{text}}}" if cell.best else text) + (f" ({latex_text(change)})" if change else "")

    def text(self, good: str = "", bad: str = "", bold: str = "", end: str = "") -> str:
        """Aligned columns for a terminal; the arguments are the escape codes of a terminal with colours."""
        rows: list[list[str] | None] = [[*self.stubs, *self.columns], None]
        codes: list[list[str] | None] = [None, None]
        for row in self.rows:
            rows.append([*row.stubs, *(self._plain_cell(cell) for cell in row.cells)])
            changes = [(good if cell.is_gain else bad) if cell.difference else "" for cell in row.cells]
            marks = [bold if cell.best else "" for cell in row.cells]
            codes.append([""] * len(row.stubs) + [*map(str.__add__, marks, changes)])
        left = range(len(self.stubs) + len(self.columns) if self.words else len(self.stubs))
        return "\n".join(aligned(rows, left, codes, end))

    def _plain_cell(self, cell: Cell, bold: str = "") -> str:
        change = self._change(cell)
        return (f"{bold}{cell.text}{bold}" if cell.best else cell.text) + (f" ({change})" if change else "")


def _mark(colour: str | None) -> str:
    return f'<i style="background:{variable(colour)}"></i>' if colour is not None else ""


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "\u202f": r"\,",
    "·": r"$\cdot$",
    "→": r"$\rightarrow$",
    "<": "$<$",
    ">": "$>$",
    "≤": r"$\leq$",
    "√": r"$\sqrt{}$",
    "‖": r"$\|$",
    "∞": r"$_\infty$",
    "α": r"$\alpha$",
    "γ": r"$\gamma$",
    "δ": r"$\delta$",
    "ε": r"$\epsilon$",
    "η": r"$\eta$",
}


def latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
