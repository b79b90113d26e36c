"""The pages that are written from the results files: the table here, a page per file, the main results in the
project's README.

A file belongs to one machine and one instruction set. Pages put files side by side, a column each, and never
mix them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.rows import FASTEST, FOLDED, Row, goal, mark, markdown, ratio, unmarked
from cfol_fast import atomic

HERE = Path(__file__).parent / "README.md"
PROJECT = Path(__file__).parent.parent / "README.md"
RESULTS = Path(__file__).parent / "results"
# In the folder of results, but not one of a machine.
OTHERS = ("peers_agree.json",)

# What the project's README says of speed: the beginning of a row's name, what it was compared with ("": the
# fastest of all peers), and what the sentence calls the question.
SPOKEN = (
    ("PGD-7, ResNet-18", "", "PGD-7 on ResNet-18"),
    ("PGD-7, demo network", "", "PGD-7 on the demo network"),
    (
        "whole CFOL-AT step, ResNet-18",
        "plain PyTorch, images in memory",
        "a whole training step of ResNet-18",
    ),
    ("one epoch end to end", "an expert's loop", "an epoch of the demo network"),
)
Document = dict[str, Any]


def stored(folder: Path = RESULTS) -> list[Document]:
    """What the results files hold: first the settings of the machine whose last whole run is the newest, then
    the others.
    """
    found = [json.loads(path.read_text()) for path in folder.glob("*.json") if path.name not in OTHERS]
    found.sort(key=lambda document: document["machine"]["instructions"] != "AVX-512")
    return sorted(found, key=lambda document: _recent(document, found), reverse=True)


def _recent(document: Document, all_of_them: list[Document]) -> tuple[bool, str, str]:
    same = [other for other in all_of_them if _place(other) == _place(document)]
    machines = [other["machine"] for other in _whole(same) or same]
    latest = max(machine.get("began", machine["date"]) for machine in machines)
    return bool(_whole(same)), latest, _place(document)


def _whole(documents: list[Document]) -> list[Document]:
    """Those of whole runs: a file of some questions alone has empty rows where the project's README shows its
    numbers.
    """
    return [document for document in documents if "minutes" in document["machine"]]


def _place(document: Document) -> str:
    machine = document["machine"]
    place = f"{_processor(document)}, {machine['cores']} cores{_threads(document)}"
    return place + (f", {machine['gpu']}" if machine["gpu"] else "")


def _processor(document: Document) -> str:
    """With its numbers, which earlier files do not have: two processors of one name are two machines."""
    machine = document["machine"]
    family, model = machine.get("cpu_family"), machine.get("cpu_model")
    return f"{machine['cpu']} (family {family}, model {model})" if family is not None else str(machine["cpu"])


def _threads(document: Document) -> str:
    """Only where they are not as many as the cores."""
    cores, threads = document["machine"]["cores"], document["machine"]["threads"]
    return "" if threads == cores else f", {threads} threads"


def of_the_first_machine(documents: list[Document]) -> list[Document]:
    first = _first_machine(documents)
    return _whole(first) or first


def _first_machine(documents: list[Document]) -> list[Document]:
    """With the files of some questions alone."""
    return [document for document in documents if _place(document) == _place(documents[0])]


def _not_whole(documents: list[Document]) -> list[str]:
    """What the first machine was not asked as a whole.

    A processor with AVX-512, which a limited file is of as well, is asked twice.
    """
    first = _first_machine(documents)
    if any(_setting(document) == "AVX-512" or document["machine"].get("limits") for document in first):
        wanted = {"AVX-512": "AVX-512", "AVX2": "limited to AVX2"}
    else:
        wanted = {_setting(document): _setting(document) for document in first}
    asked = {_setting(document) for document in _whole(first)}
    return [f"{words}: not yet asked as a whole" for name, words in wanted.items() if name not in asked]


def sections(documents: list[Document]) -> dict[tuple[Path, str], str]:
    """(file, section) -> text, from what the results files hold."""
    first = of_the_first_machine(documents)
    profiles = {_setting(document): document["profile"] for document in first if "profile" in document}
    pictures = [
        f"![A step's time against batch, classes, examples and image size, {_setting(document)}]"
        f"(results/{document['machine']['name']}-scaling.png)"
        for document in first
        if (RESULTS / f"{document['machine']['name']}-scaling.png").exists()
    ]
    return {
        (HERE, "table"): side_by_side(documents),
        (HERE, "profile"): "\n\n".join(f"### {name}\n{text}" for name, text in profiles.items()),
        (HERE, "pictures"): "\n".join(pictures),
        (PROJECT, "speed"): speed(documents),
    }


def head(document: Document) -> str:
    machine, versions = document["machine"], document["versions"]
    limited = " ".join(f"{name}={value}" for name, value in machine.get("limits", {}).items())
    return (
        f"{machine['date']}, {versions['cfol_fast']}, {_processor(document)}, {machine['instructions']}"
        + (f" (limited by {limited})" if limited else "")
        + f", {machine['cores']} cores, {machine['threads']} threads, torch {versions['torch']}, float32"
    )


def page(document: Document) -> str:
    """All rows of one file, with times and notes."""
    minutes = document["machine"].get("minutes")
    whole = f" The whole run took {minutes} minutes." if minutes else ""
    text = (
        f"# {_place(document)},"
        f" {_setting(document)}\n\n{head(document)}.{whole}\n\n{markdown(_rows(document))}\n"
    )
    if "choices" in document:
        ways = Counter(way for layer, way in document["choices"].items() if not layer.startswith("layout"))
        told = ", ".join(f"{way} {count}" for way, count in ways.most_common())
        text += (
            f"\nWhat the races of the layers chose, how often: {told}. Each layer stands in the JSON file.\n"
        )
    return text + (f"\n## Where the time goes\n{document['profile']}\n" if "profile" in document else "")


def side_by_side(documents: list[Document]) -> str:
    """A column of ratios per file; a row that a file does not have is empty there."""
    lines = []
    for document in documents:
        minutes = document["machine"].get("minutes")
        whole = f"; the whole run took {minutes} minutes" if minutes else ""
        link = f"[times and notes](results/{document['machine']['name']}.md)"
        lines.append(f"- **{_column(document)}**: {head(document)}{whole}; {link}")
    lines += [
        "",
        f"| question | against | {' | '.join(map(_column, documents))} |",
        "|---" * (2 + len(documents)) + "|",
    ]
    columns = [{_key(row): row for row in _rows(document)} for document in documents]
    for name, against in dict.fromkeys(key for column in columns for key in column):
        cells = [_cell(column.get((name, against))) for column in columns]
        lines.append("| " + " | ".join(text.replace("|", "/") for text in (name, against, *cells)) + " |")
    return "\n".join(lines)


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    shown = f"**{ratio(row.ratio)}**" if row.reached is False else ratio(row.ratio)
    return shown + f" ({goal(row.target)})" * (row.target is not None) + mark(row.against)


def speed(documents: list[Document]) -> str:
    """One sentence on the first machine: each question, with each instruction set, against the fastest."""
    shown = of_the_first_machine(documents)
    settings = " and ".join(_setting(document) for document in shown)
    questions = []
    for name, against, words in SPOKEN:
        known = [row for document in shown if (row := _spoken(document, name, against)) is not None]
        if not known:
            continue
        ratios = " and ".join(ratio(row.ratio) for row in known)
        peers = "; ".join(dict.fromkeys(unmarked(row.against) for row in known))
        questions.append(f"{words} {ratios} (fastest peer measured: {peers})")
    experts = any(unmarked(row.against) == FOLDED for document in shown for row in _rows(document))
    without = "" if experts else f" A loop in {FOLDED}, may be faster than these peers: not measured yet."
    missing = "".join(f" {words[0].upper()}{words[1:]}." for words in _not_whole(documents))
    return (
        f"Measured in one interleaved run on a CPU ({_place(shown[0])}, {shown[0]['machine']['threads']}"
        f" threads, {settings}), cfol_fast is so many times as fast as the fastest peer measured:"
        f" {', '.join(questions)}.{without}{missing}"
    )


def _spoken(document: Document, name: str, against: str) -> Row | None:
    """None in a file that was not asked this question yet."""
    fitting = (row for row in _rows(document) if row.name.startswith(name) and _is_of(row, against))
    return next(fitting, None)


def _is_of(row: Row, against: str) -> bool:
    return row.against.startswith(against) if against else row.against.endswith(FASTEST)


def _rows(document: Document) -> list[Row]:
    return [Row(**row) for row in document["questions"]]


def _key(row: Row) -> tuple[str, str]:
    return row.name, unmarked(row.against)


def _setting(document: Document) -> str:
    return str(document["machine"]["instructions"])


def _column(document: Document) -> str:
    return f"{_processor(document)}, {_setting(document)}{_threads(document)}"


MISSED = "## Targets that were missed"


def unexplained(documents: list[Document], text: str) -> list[str]:
    """The missed rows of which the page does not say why, with ratio and target.

    A paragraph has their names up to a first ", " in bold and, of a whole run, the ratio as the table has it:
    what was said of one machine's number does not explain another's. The first whole runs, which kept no
    seconds of each question, need no ratio.
    """
    told = text.split(MISSED)[1].split("\n## ")[0].split("\n- ")[1:]
    paragraphs = [" ".join(paragraph.split()) for paragraph in told]
    return [
        f"{_column(document)}: {row.name}, against {row.against}: {ratio(row.ratio)} ({goal(row.target)})"
        for document in documents
        for row in _rows(document)
        if row.reached is False and not _explained(row, paragraphs, "seconds" in document["machine"])
    ]


def _explained(row: Row, paragraphs: list[str], by_number: bool) -> bool:
    about = [paragraph for paragraph in paragraphs if f"**{row.name.split(', ')[0]}**" in paragraph]
    number = re.compile(rf"(?<![\w.,]){re.escape(ratio(row.ratio))}(?!\w)")
    return any(number.search(paragraph) or not by_number for paragraph in about)


def update() -> None:
    """Writes all pages from the files that are stored, and says which missed targets nobody has explained."""
    documents = stored()
    for document in documents:
        atomic.write_text(RESULTS / f"{document['machine']['name']}.md", page(document))
    for (path, name), text in sections(documents).items():
        replace_section(path, name, text)
    if missing := unexplained(documents, HERE.read_text(encoding="utf-8")):
        print(f'missed, and not explained under "{MISSED[3:]}" in {HERE}:', *missing, sep="\n  ")


def replace_section(path: Path, name: str, text: str) -> None:
    """Puts `text` between the marks of the section `name`."""
    begin, end = marks(name)
    before, rest = path.read_text(encoding="utf-8").split(begin)
    after = rest.split(end)[1]
    atomic.write_text(path, f"{before}{begin}\n{text}\n{end}{after}")


def marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: written by python -m benchmarks -->", f"<!-- end of {name} -->"
