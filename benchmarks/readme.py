"""The parts of benchmarks/README.md that measurements write."""

from __future__ import annotations

from pathlib import Path

README = Path(__file__).parent / "README.md"


def replace_section(name: str, text: str) -> None:
    """Puts `text` between the marks of the section `name`."""
    begin, end = f"<!-- {name}: written by python -m benchmarks -->", f"<!-- end of {name} -->"
    before, rest = README.read_text().split(begin)
    after = rest.split(end)[1]
    README.write_text(f"{before}{begin}\n{text}\n{end}{after}")
