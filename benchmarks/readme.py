"""The parts of two README files that are written from measurements: the whole table here, the main results in the project's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.rows import FASTEST, Row, markdown, ratio, seconds

HERE = Path(__file__).parent / "README.md"
PROJECT = Path(__file__).parent.parent / "README.md"

# The rows in the project's README: the beginning of a row's name, and what it was compared with ("": the fastest peer).
HEADLINES = (
    ("PGD-7, ResNet-18", ""),
    ("PGD-7, demo network", ""),
    ("PGD-20 evaluation with the active set", "torchattacks"),
    ("whole CFOL-AT step, ResNet-18", "bare passes"),
    ("one epoch end to end", "the usual way"),
    ("class bandit, draw + update of 128, k = 10", "batched in torch"),
    ("gather + flip + crop", "FFCV"),
    ("what CFOL costs over ERM: its draw + update, resnet18", "the whole ERM step"),
)


def sections(document: dict[str, Any]) -> dict[tuple[Path, str], str]:
    """(file, section) -> text, from what a results file holds."""
    rows = [Row(**row) for row in document["questions"]]
    machine, torch = document["machine"], document["versions"]["torch"]
    head = (
        f"{machine['date']}, {document['versions']['cfol_fast']}, {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['threads']} threads, torch {torch}, float32"
    )
    whole = f" The whole run took {machine['minutes']} minutes." if "minutes" in machine else ""
    return {
        (HERE, "table"): f"{head}.{whole}\n\n{markdown(rows)}",
        (PROJECT, "speed"): f"On the CPU ({head}):\n\n{headlines(rows)}",
    }


def headlines(rows: list[Row]) -> str:
    lines = ["| what | against | ratio | ours | theirs |", "|---|---|---|---|---|"]
    for name, against in HEADLINES:
        row = next(r for r in rows if r.name.startswith(name) and _is_of(r, against))
        peer = row.against.split(" (")[0].split(":")[0] + FASTEST * (not against)
        lines.append(
            f"| {row.name} | {peer} | {ratio(row.ratio)} | {seconds(row.ours_seconds)} | {seconds(row.theirs_seconds)} |"
        )
    return "\n".join(lines)


def _is_of(row: Row, against: str) -> bool:
    return row.against.startswith(against) if against else row.against.endswith(FASTEST)


def update(document: dict[str, Any]) -> None:
    for (path, name), text in sections(document).items():
        replace_section(path, name, text)


def replace_section(path: Path, name: str, text: str) -> None:
    """Puts `text` between the marks of the section `name`."""
    begin, end = marks(name)
    before, rest = path.read_text(encoding="utf-8").split(begin)
    after = rest.split(end)[1]
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: written by python -m benchmarks -->", f"<!-- end of {name} -->"
