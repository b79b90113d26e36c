"""The table of what found each fault, tests/mutants.md, and which of its rows still hold: each row has a
hash of all that its verdict depends on.

Of a fault in a kernel that is all of csrc, what compiles and runs it in tests, and the tests that it names.
Of any other fault it is its file, the tests that it names, what they import from tests, and their
conftest.py."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

# Raise it when a verdict means something else: all faults are then planted again.
VERSION = "1"
SOURCES = (".py", ".toml", ".h", ".cpp", ".cu")
KERNELS = (
    "csrc/**/*",
    "tests/emu/**/*",
    "tests/ptx/**/*",
    "tests/reference/**/*",
    "cfol_fast/ops/*.py",
    "setup.py",
)
# Of tests/native the tests of other ops have no part in a verdict.
KERNELS += ("tests/native/*.py", "!tests/native/test_*.py", "tests/native/test_sanitizers.py")


class Planted(Protocol):
    """What a verdict depends on, of a fault."""

    @property
    def operator(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def find(self) -> str: ...
    @property
    def replace(self) -> str: ...
    @property
    def tests(self) -> tuple[str, ...]: ...
    @property
    def equivalent(self) -> str: ...
    @property
    def in_a_kernel(self) -> bool: ...
    @property
    def line(self) -> int: ...
    @property
    def number(self) -> int: ...


def hash_of(fault: Planted, root: Path) -> str:
    """Changes with everything that its verdict depends on."""
    digest = hashlib.sha256()
    parts = [VERSION, fault.operator, fault.file, fault.find, fault.replace, *fault.tests, fault.equivalent]
    for path in sorted(_files(fault, root)):
        parts += [path.relative_to(root).as_posix(), path.read_text()]
    for part in map(str.encode, parts):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:16]


def _files(fault: Planted, root: Path) -> set[Path]:
    tests = [root / test.partition("::")[0] for test in fault.tests]
    paths = {root / fault.file, *tests}
    for test in tests:
        inside = test.relative_to(root)
        paths |= {root.joinpath(*inside.parts[:n], "conftest.py") for n in range(1, len(inside.parts))}
    paths |= set(_imported(paths, root))
    if fault.in_a_kernel or any("native" in test.parts for test in tests):
        for pattern in KERNELS:
            found = set(root.glob(pattern.removeprefix("!")))
            paths = paths - (found - set(tests)) if pattern.startswith("!") else paths | found
    return {path for path in paths if path.is_file() and path.suffix in SOURCES}


def _imported(paths: set[Path], root: Path) -> Iterator[Path]:
    """The modules of tests that these import, directly or not."""
    waiting, seen = sorted(path for path in paths if path.is_file() and path.suffix == ".py"), set(paths)
    while waiting:
        for node in ast.walk(ast.parse(waiting.pop().read_text())):
            names = (
                [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            )
            if isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module}.{name}" for name in names)]
            for name in names:
                path = root / f"{name.replace('.', '/')}.py"
                if name.startswith("tests.") and path.is_file() and path not in seen:
                    seen.add(path)
                    waiting.append(path)
                    yield path


def kept(table: Path) -> dict[str, str]:
    """hash -> what found the fault, of every row of a table; of one that is equivalent an empty string."""
    rows = table.read_text().splitlines() if table.exists() else []
    verdicts = {}
    for row in rows:
        cells = row.removeprefix("| ").removesuffix(" |").rsplit(" | ", 2)
        if row.startswith("| ") and len(cells) == 3 and re.fullmatch(r"`[0-9a-f]{16}`", cells[2]):
            found = cells[1].strip("`") if not cells[1].startswith("**") else ""
            verdicts[cells[2].strip("`")] = found
    return verdicts


def written(faults: list[Planted], finds: dict[int, str], hashes: dict[int, str]) -> str:
    """The table. A fault that was not planted, or that nothing found, has no hash: the next run plants it."""
    lines = [
        "# Planted faults and what found them",
        "",
        "Written by `make mutants` from `tests/mutants/faults`. Each fault is planted alone in a copy of the",
        "project; the tests named here pass without it. The last column is a hash of all that the verdict",
        "depends on: `make mutants MUTANTS_ARGS=--if-changed` plants a fault again when it has changed.",
        "",
        "| # | fault | file | found by | of |",
        "|---|---|---|---|---|",
    ]
    for fault in faults:
        found, hashed = finds.get(fault.number), f"`{hashes[fault.number]}`"
        verdict = f"`{found}`"
        if not found:
            verdict = f"**equivalent**: {fault.equivalent}" if fault.equivalent else "**NOT FOUND**"
            hashed = hashed if fault.equivalent else ""
        if found is None:
            verdict, hashed = "**not planted yet**", ""
        lines.append(
            f"| {fault.number} | {fault.operator} | {fault.file}:{fault.line} | {verdict} | {hashed} |"
        )
    lines += ["", f"{sum(map(bool, finds.values()))} of {len(faults)} found."]
    return "\n".join(lines) + "\n"
