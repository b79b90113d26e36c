"""Tables as data, and their four forms: HTML, CSV, LaTeX and plain text. All forms are rendered from one `Table`."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from html import escape

from cfol_fast.reporting.groups import SPLITS, Comparison, Group, Stat
from cfol_fast.reporting.wording import attack_phrase, duration, points, run_state, stat_text
from cfol_fast.runs.accuracy import METRICS, Accuracy
from cfol_fast.runs.records import Run, SavedEvaluation


@dataclass(frozen=True)
class Cell:
    """What is read (`text`), and the number behind it for CSV; `difference` from the baseline is a share too."""

    text: str
    value: float | None = None
    deviation: float | None = None
    difference: float | None = None
    best: bool = False


@dataclass(frozen=True)
class Row:
    stubs: list[str]
    cells: list[Cell]
    first: bool = False  # opens a block of rows: a thin line above
    colour: int | None = None


@dataclass(frozen=True)
class Table:
    key: str
    title: str
    caption: str
    stubs: list[str]
    columns: list[str]
    rows: list[Row]
    colours: list[int | None] = field(default_factory=list)  # of the columns
    folded: bool = False  # shown on demand only
    words: bool = False  # cells are text, not numbers

    def _full_stubs(self) -> list[list[str]]:
        """The stubs of each row; one left empty on the page repeats the one above it."""
        full: list[list[str]] = []
        for row in self.rows:
            full.append([text or (full[-1][i] if full else "") for i, text in enumerate(row.stubs)])
        return full

    def transposed(self, stub: str) -> Table:
        """Columns as rows, under the heading `stub`: for tables with more columns than a page is wide."""
        columns = [" ".join(part for part in stubs if part) for stubs in self._full_stubs()]
        colours = [*self.colours, *[None] * (len(self.columns) - len(self.colours))]
        rows = [
            Row([name], [row.cells[place] for row in self.rows], colour=colours[place])
            for place, name in enumerate(self.columns)
        ]
        return replace(self, stubs=[stub], columns=columns, rows=rows, colours=[])

    def html(self) -> str:
        head = "".join(f'<th class="stub">{escape(name)}</th>' for name in self.stubs)
        for place, name in enumerate(self.columns):
            colour = self.colours[place] if place < len(self.colours) else None
            mark = f'<i style="background:var(--s{colour})"></i>' if colour is not None else ""
            words = [f"<span>{escape(word)}</span>" for word in name.split()] or [""]
            words[0] = words[0].replace("<span>", f"<span>{mark}", 1)
            head += f"<th{' class=words' if self.words else ''}>{' '.join(words)}</th>"
        body = []
        for row in self.rows:
            cells = ""
            mark = f'<i style="background:var(--s{row.colour})"></i>' if row.colour is not None else ""
            for place, text in enumerate(row.stubs):
                cells += f'<td class="stub{" lead" if place == 0 and len(row.stubs) > 1 else ""}">{mark}{escape(text)}</td>'
                mark = ""
            cells += "".join(_html_cell(cell, self.words) for cell in row.cells)
            body.append(f"<tr{' class=first' if row.first else ''}>{cells}</tr>")
        return (
            f'<div class="scroll"><table id="table-{self.key}"><caption>{escape(self.title)}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
        )

    def csv(self) -> str:
        """Comma-separated; accuracies from 0 to 1 in full precision, deviations and differences in columns of their own."""
        deviated = [
            any(row.cells[i].deviation is not None for row in self.rows) for i in range(len(self.columns))
        ]
        compared = [
            any(row.cells[i].difference is not None for row in self.rows) for i in range(len(self.columns))
        ]
        header = list(self.stubs)
        for place, name in enumerate(self.columns):
            header.append(name)
            header += [f"{name} deviation"] * deviated[place] + [f"{name} difference"] * compared[place]
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(header)
        for row, stubs in zip(self.rows, self._full_stubs(), strict=True):
            line = list(stubs)
            for place, cell in enumerate(row.cells):
                line.append(
                    repr(cell.value) if cell.value is not None else "" if not self.words else cell.text
                )
                for wanted, number in ((deviated[place], cell.deviation), (compared[place], cell.difference)):
                    line += [repr(number) if number is not None else ""] * wanted
            writer.writerow(line)
        return buffer.getvalue()

    def latex(self) -> str:
        """A booktabs table in the form of the paper's, numbers in percent, the best of each row bold."""
        lines = [
            r"\begin{table}[t]", r"\centering", rf"\caption{{{latex_text(self.title + '. ' + self.caption)}}}",
            rf"\begin{{tabular}}{{{'l' * len(self.stubs)}{'l' if self.words else 'r'}{('l' if self.words else 'r') * (len(self.columns) - 1)}}}"
            if self.columns else rf"\begin{{tabular}}{{{'l' * len(self.stubs)}}}",
            r"\toprule", " & ".join(latex_text(name) for name in [*self.stubs, *self.columns]) + r" \\", r"\midrule",
        ]  # fmt: skip
        for number, row in enumerate(self.rows):
            if row.first and number:
                lines.append(r"\midrule")
            cells = [latex_text(text) for text in row.stubs] + [_latex_cell(cell) for cell in row.cells]
            lines.append(" & ".join(cells) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])

    def text(self, good: str = "", bad: str = "", bold: str = "", end: str = "") -> str:
        """Aligned columns for a terminal; the arguments are the escape codes of a terminal with colours."""
        plain: list[list[str]] = [[*self.stubs, *self.columns]]
        for row in self.rows:
            plain.append([*row.stubs, *(_plain_cell(cell) for cell in row.cells)])
        widths = [max(len(line[i]) for line in plain) for i in range(len(plain[0]))]
        lines = []
        for number, line in enumerate(plain):
            parts = []
            for place, text in enumerate(line):
                left = place < len(self.stubs) or self.words
                padded = text.ljust(widths[place]) if left else text.rjust(widths[place])
                cell = (
                    self.rows[number - 1].cells[place - len(self.stubs)]
                    if number and place >= len(self.stubs)
                    else None
                )
                if cell is not None and end:
                    tone = bold if cell.best else ""
                    if cell.difference:
                        tone += good if cell.difference > 0 else bad
                    padded = f"{tone}{padded}{end}" if tone else padded
                parts.append(padded)
            lines.append("  ".join(parts).rstrip())
            if number == 0:
                lines.append("  ".join("─" * width for width in widths))
        return "\n".join(lines)


def _html_cell(cell: Cell, words: bool) -> str:
    kind = "wrap" if words else "best" if cell.best else ""
    delta = ""
    if cell.difference is not None:
        text = points(cell.difference)
        tone = "" if text == "0.0" else " good" if cell.difference > 0 else " bad"
        delta = f'<span class="delta{tone}">{text}</span>'
    return f"<td{f' class={kind}' if kind else ''}>{escape(cell.text)}{delta}</td>"


def _plain_cell(cell: Cell) -> str:
    return f"{cell.text} ({points(cell.difference)})" if cell.difference is not None else cell.text


def _latex_cell(cell: Cell) -> str:
    text = latex_text(cell.text)
    text = rf"\textbf{{{text}}}" if cell.best else text
    if cell.difference is not None:
        text += f" ({latex_text(points(cell.difference))})"
    return text


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$", "–": "--", "ε": r"$\epsilon$", "\u202f": r"\,",
    "·": r"$\cdot$", "<": r"$<$", ">": r"$>$",
}  # fmt: skip


def latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def build(comparison: Comparison) -> list[Table]:
    """Every table the data allow, in the order of the page."""
    made = [
        comparison_table(comparison),
        evaluations(comparison),
        early_stopping(comparison),
        classes(comparison),
        runs(comparison),
    ]
    return [table for table in made if table is not None]


def _cells(stats: Sequence[Stat | None], reference: Stat | None, compare_from: int = 1) -> list[Cell]:
    """The cells of a row: the best is marked when there is a choice; differences from the baseline from `compare_from` on."""
    means = [stat.mean for stat in stats if stat is not None]
    best = max(means) if len(means) > 1 else None
    cells = []
    for place, stat in enumerate(stats):
        difference = stat.mean - reference.mean if stat and reference and place >= compare_from else None
        cells.append(
            Cell(
                stat_text(stat), stat.mean if stat else None, stat.deviation if stat else None, difference,
                stat is not None and best is not None and stat.mean == best,
            )
        )  # fmt: skip
    return cells


def comparison_table(comparison: Comparison) -> Table:
    """The paper's table: average, 20 % tail and worst class, clean and robust, a column a group."""
    rows: list[Row] = []
    # What an unfinished run reached on its hold-out is shown, but neither compared with test results nor called best.
    tested = [group for group in comparison.groups if group.tested]
    for split, split_name in SPLITS.items():
        for metric, metric_name in METRICS.items():
            if not any(group.stat(split, metric) for group in comparison.groups):
                continue
            reference = comparison.baseline.stat(split, metric) if comparison.baseline.tested else None
            compared = iter(_cells([group.stat(split, metric) for group in tested], reference))
            cells = [
                next(compared)
                if group.tested
                else Cell(stat_text(group.stat(split, metric)), _mean(group.stat(split, metric)))
                for group in comparison.groups
            ]
            opens = not rows or (rows[-1].stubs[0] != split_name and metric == "average")
            rows.append(Row([split_name if opens else "", metric_name], cells, opens))
    caption = "Accuracy in percent"
    if len(tested) > 1:
        caption += f"; beside it the difference from {comparison.baseline.label} in points, the best in bold"
    seeds = {len(group.accuracies("robust")) for group in tested}
    if seeds and max(seeds) > 1:
        counts = ", ".join(f"{group.label} {len(group.accuracies('robust'))}" for group in tested)
        several = f"{max(seeds)} seeds" if len(seeds) == 1 else f"seeds ({counts})"
        if len(seeds) > 1 and len(tested) > 6:
            several = f"{min(seeds)} to {max(seeds)} seeds"
        caption += f"; mean and sample standard deviation over {several}"
    unfinished = [
        f"{group.label} is unfinished ({group.partial})" for group in comparison.groups if group.partial
    ]
    return Table(
        "comparison", "Comparison", ". ".join([caption, *unfinished]) + ".", ["", ""], [_head(group) for group in comparison.groups], rows,
        [group.colour for group in comparison.groups],
    )  # fmt: skip


def _mean(stat: Stat | None) -> float | None:
    return stat.mean if stat else None


def _head(group: Group) -> str:
    return f"{group.label}, unfinished" if group.partial else group.label


def classes(comparison: Comparison) -> Table | None:
    """Every class, the baseline's weakest first."""
    groups = [group for group in comparison.groups if group.shown]
    if not groups:
        return None
    columns = [(split, group) for split in SPLITS for group in groups if group.accuracies(split)]
    rows = []
    for name in comparison.ranked():
        cells: list[Cell] = []
        for split in SPLITS:
            these = [group for kind, group in columns if kind == split]
            base = comparison.baseline.class_stat(split, name) if comparison.baseline.tested else None
            stats = [group.class_stat(split, name) for group in these]
            cells += _cells(stats, base if all(group.tested for group in these) else None)
        rows.append(Row([name], cells))
    return Table(
        "classes", "All classes", "Accuracy by class in percent, the weakest first; differences from the baseline in points.", ["Class"],
        [f"{SPLITS[split].lower()} {group.label}" for split, group in columns], rows, [group.colour for _, group in columns], folded=True,
    )  # fmt: skip


def _from_accuracies(found: Iterable[Accuracy | None], metric: str) -> Stat | None:
    group = Group("", "", 0, [], [(None, accuracy) for accuracy in found if accuracy is not None])
    return group.stat("robust", metric)


def early_stopping(comparison: Comparison) -> Table | None:
    """The robust test accuracies of the kept checkpoints: both early-stopping rules and the last epoch."""
    names = {"best-average": "Best average", "best-worst": "Best worst class", "last": "Last epoch"}
    groups = [group for group in comparison.groups if any(run.checkpoints for run in group.runs)]
    rows: list[Row] = []
    for name, title in names.items():
        if not any(name in run.checkpoints for group in groups for run in group.runs):
            continue
        for number, (metric, metric_name) in enumerate(METRICS.items()):
            stats = [
                _from_accuracies(
                    [run.checkpoints[name]["robust"] for run in group.runs if name in run.checkpoints], metric
                )
                for group in groups
            ]
            reference = stats[0] if groups[0] is comparison.baseline else None
            rows.append(
                Row([title if number == 0 else "", metric_name], _cells(stats, reference), number == 0)
            )
    if len(rows) <= len(METRICS):  # one checkpoint is no choice, and the comparison has it already
        return None
    return Table(
        "checkpoints", "Which checkpoint", "Robust test accuracy in percent of the checkpoints kept by the two early-stopping rules, and of "
        "the last epoch; differences from the first column in points.", ["Kept by", ""], [_head(group) for group in groups], rows,
        [group.colour for group in groups],
    )  # fmt: skip


def _attacks_of(run: Run) -> Counter[str]:
    return Counter(attack_phrase(evaluation.attack) for evaluation in run.evaluations)


def evaluations(comparison: Comparison) -> Table | None:
    """Results of `cfol-fast eval --json` found in the run folders, an attack a block."""
    everyone = [run for group in comparison.groups for run in group.runs]
    repeated = {attack for run in everyone for attack, times in _attacks_of(run).items() if times > 1}

    def name(evaluation: SavedEvaluation) -> str:
        # One run evaluated twice with one attack (two checkpoints, say) is not two seeds: its files tell them apart.
        attack = attack_phrase(evaluation.attack)
        return f"{attack} ({evaluation.path.stem})" if attack in repeated else attack

    attacks = dict.fromkeys(name(evaluation) for run in everyone for evaluation in run.evaluations)
    groups = [group for group in comparison.groups if any(run.evaluations for run in group.runs)]
    rows: list[Row] = []
    for attack in attacks:
        for number, (metric, metric_name) in enumerate(METRICS.items()):
            stats = [
                _from_accuracies(
                    [e.robust or e.clean for run in group.runs for e in run.evaluations if name(e) == attack],
                    metric,
                )
                for group in groups
            ]
            reference = stats[0] if groups[0] is comparison.baseline else None
            rows.append(
                Row([attack if number == 0 else "", metric_name], _cells(stats, reference), number == 0)
            )
    if not rows:
        return None
    return Table(
        "evaluations", "Other attacks", "Accuracy in percent in the evaluations saved beside the runs; differences from the first column "
        "in points.", ["Attack", ""], [group.label for group in groups], rows, [group.colour for group in groups],
    )  # fmt: skip


def runs(comparison: Comparison) -> Table:
    """What each run was: seed, progress, time."""
    rows = []
    for group in comparison.groups:
        for number, run in enumerate(group.runs):
            speeds = [
                row["images_per_second"]
                for row in run.train
                if isinstance(row.get("images_per_second"), (int, float))
            ]
            speed = f"{sum(speeds) / len(speeds):,.0f}" if speeds else "–"
            texts = [
                str(run.seed) if run.seed is not None else "–", run_state(run), _epochs(run), str(run.tested_epoch or "–"),
                duration(run.seconds), speed, run.holdout or "–", str(run.path),
            ]  # fmt: skip
            rows.append(
                Row([group.label if number == 0 else ""], [Cell(text) for text in texts], number == 0)
            )
    columns = ["Seed", "State", "Epochs", "Tested epoch", "Time", "Images/s", "Hold-out", "Folder"]
    return Table("runs", "Runs", "Every run in this report.", ["Method"], columns, rows, words=True)


def _epochs(run: Run) -> str:
    done, planned = run.epochs
    return f"{done} of {planned}" if planned and planned != done else str(done) if done else "–"
