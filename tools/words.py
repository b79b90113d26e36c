"""Finds expressions that readers had to read twice, in the pages and in the messages of the program.

`python -m tools.words` lists each with its place and a plain expression, and fails if it finds one. It reads
the Markdown pages and the string literals of the package; docstrings and comments are left out.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Expression -> what to write instead.
PLAIN = {
    r"told in": "explained in",
    r"of (?:it|this one|this class) alone": "unadjusted",
    r"after Holm": "Holm-adjusted",
    r"descriptively": "exploratory",
    r"fair table": "comparison of all methods",
    r"rivals?": "competitor, or baseline",
    r"races? (?:of|its|them)\b": "autotune",
    r"(?:by|without|short) (?:a )?race": "autotuning",
    r"goes with the next version": "deprecated; removed in the next version",
    r"whoever": "if you; users who",
    r"unless (?:told|you say otherwise|it is told)": "by default",
    r"has (?:not )?met (?:a real|one|a GPU)": "has not run on a GPU",
    r"is taken for\b|are taken for\b|was taken for\b": "is classified as",
    r"(?:pays?|say|says|tells?) the price": "trade-off",
    r"turn (?:it|them) round": "reverse",
    r"cumulated": "cumulative",
    r"what (?:it|that|this) gives and what not": "limits",
    r"(?:made|holds|loaded) anew": "again",
    r"asks with": "measures with",
    r"goes on with them": "continues with them",
    r"carried out\b": "run; executed",
}
PATTERN = {
    re.compile(rf"(?<![\w-]){expression}(?![\w-])", re.IGNORECASE): plain
    for expression, plain in PLAIN.items()
}
# The results' page is generated; its text changes with the recipes. The faults of tests/mutants quote code.
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/*.md", "docs/*.toml")
# The sentences of the recipes' generated tables are tested word for word beside the committed results.
SOURCES_LEFT_OUT = ("cfol_fast/recipes/",)
# What old releases wrote about themselves stays.
OLD_RELEASES = re.compile(r"^## 0\.1", re.MULTILINE)


def in_text(text: str) -> list[tuple[int, str, str]]:
    """(line, expression, plain expression) of each hit. An expression may go over the end of a line."""
    flat = re.sub(r"\s", " ", text)
    found = [
        (text.count("\n", 0, hit.start()) + 1, hit.group(0), plain)
        for pattern, plain in PATTERN.items()
        for hit in pattern.finditer(flat)
    ]
    return sorted(found)


def in_strings(source: str) -> list[tuple[int, str, str]]:
    """The same for the string literals of a module, without docstrings and without names of one word."""
    tree = ast.parse(source)
    left_out = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        (node.lineno + line - 1, expression, plain)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if id(node) not in left_out and " " in node.value
        for line, expression, plain in in_text(node.value)
    ]


def findings(root: Path) -> Iterator[str]:
    for pattern in PAGES:
        for path in sorted(root.glob(pattern)):
            text = (
                OLD_RELEASES.split(path.read_text())[0] if path.name == "CHANGELOG.md" else path.read_text()
            )
            yield from _lines(path.relative_to(root), in_text(text))
    for path in sorted(root.glob("cfol_fast/**/*.py")):
        name = path.relative_to(root)
        if not name.as_posix().startswith(SOURCES_LEFT_OUT):
            yield from _lines(name, in_strings(path.read_text()))


def _lines(name: Path, found: list[tuple[int, str, str]]) -> Iterator[str]:
    return (f"{name}:{line}: {text!r}: write {plain!r}" for line, text, plain in found)


def main() -> int:
    found = list(findings(ROOT))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
