"""PTX, which nvcc makes of a .cu file, as C++ that runs on the stand-in of tests/emu: a function for each
kernel, a statement for each instruction (instructions.py).

Registers are local variables, and every basic block counts its visits. Every access of memory is checked for
its alignment, of shared memory for its bounds too, and what a launch reads through the read-only path
(ld.global.nc) must not be written by it. What the translation does not know is an error.
"""

from __future__ import annotations

import math
import re
import subprocess
from dataclasses import dataclass, field

from tests.ptx.instructions import TYPES, Scope, UnknownPtx, statement

_DIRECTIVES = tuple(
    f"{name} " for name in (".version", ".target", ".address_size", ".pragma", ".loc", ".file")
)
_PARAMETER = re.compile(
    r"\.param (?:\.align \d+ )?\.(\w+) (?:\.ptr (?:\.\w+ )*(?:\.align \d+ )?)?\w+_param_\d+(?:\[(\d+)\])?,?"
)


@dataclass
class Kernel:
    name: str
    scope: Scope
    declared: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    parameters: list[int] = field(default_factory=list)  # their sizes
    most_threads: int = 1024
    blocks: int = 0
    begins_a_block: bool = True

    def add(self, line: str) -> None:
        if self.begins_a_block:
            self.body.append(f"++visits[{self.blocks}];")
            self.blocks += 1
        self.begins_a_block = False
        self.body.append(line)


class _Reader:
    """Reads a file of PTX line by line."""

    def __init__(self) -> None:
        self.constants: dict[str, str] = {}
        self.kernels: list[Kernel] = []
        self.kernel: Kernel | None = None
        self.depth = 0
        self.waiting = ""

    def read(self, text: str) -> None:
        text = re.sub(r"//[^\n]*", "", text)
        # A scope for one register that nobody reads: the half of a pair.
        unread = r"\{\s*\.reg \.b32 tmp;\s*(mov\.b64 \{[^}]*\}, %\w+;)\s*\}"
        text = re.sub(unread, lambda m: re.sub(r"\btmp\b", "_", m[1]), text)
        for number, line in enumerate(text.splitlines(), 1):
            try:
                self.line(re.sub(r"\s+", " ", line).strip(), number)
            except UnknownPtx as error:
                raise UnknownPtx(f"line {number} of the PTX, {line.strip()!r}: {error}") from None
        if self.kernel is not None or self.waiting:
            raise UnknownPtx("the PTX ends inside a kernel")

    def line(self, line: str, number: int) -> None:
        if not line or (line.startswith(_DIRECTIVES) and not self.waiting):
            return
        if self.kernel is None:
            self.outside(line)
        elif self.depth == 0:
            self.header(line)
        elif line == "{":
            self.depth += 1
        elif line == "}":
            self.depth -= 1
            if self.depth == 0:
                self.kernel = None
        elif found := re.fullmatch(r"\$(\w+):", line):
            self.kernel.body.append(f"{found[1]}:;")
            self.kernel.begins_a_block = True
        elif line.startswith(".") and not self.waiting:
            self.declaration(self.kernel, line)
        else:
            self.instruction(self.kernel, line, number)

    def outside(self, line: str) -> None:
        array = r"\.(?:global|const) \.align (\d+) \.(\w+) (\w+)\[(\d+)\] = \{([^}]*)\};"
        if found := re.fullmatch(array, line):
            align, kind, name, count, values = found.groups()
            self.constants[name] = f"alignas({align}) const ptx::{kind} {name}[{count}] = {{{values}}};"
        elif found := re.fullmatch(r"(?:\.visible )?\.entry (\w+) ?\(?", line):
            self.kernel = Kernel(found[1], Scope(arrays=set(self.constants)))
            self.kernels.append(self.kernel)
        else:
            raise UnknownPtx("no kernel and no constant")

    def header(self, line: str) -> None:
        assert self.kernel is not None
        if found := _PARAMETER.fullmatch(line):
            self.kernel.parameters.append(TYPES[found[1]] * int(found[2] or 1))
        elif found := re.fullmatch(r"\.maxntid (\d+)(?:, (\d+), (\d+))?", line):
            self.kernel.most_threads = math.prod(int(n or 1) for n in found.groups())
        elif line == "{":
            self.depth = 1
        elif line not in ("(", ")"):
            raise UnknownPtx("not a parameter and not a limit of threads")

    def declaration(self, kernel: Kernel, line: str) -> None:
        scope = kernel.scope
        if found := re.fullmatch(r"\.reg \.(\w+) %(\w+)(?:<(\d+)>)?;", line):
            kind, stem, count = found.groups()
            if kind not in TYPES:
                raise UnknownPtx(f"the type {kind}")
            names = [f"{stem}{i}" for i in range(int(count))] if count else [stem]
            new = [name for name in names if f"%{name}" not in scope.registers]
            scope.registers.update({f"%{name}": kind for name in new})
            if new:
                listed = ", ".join(f"r_{name} = {{}}" for name in new)
                kernel.declared.append(f"[[maybe_unused]] ptx::{kind} {listed};")
        elif found := re.fullmatch(r"\.shared \.align (\d+) \.(\w+) (\w+)(?:\[(\d+)\])?;", line):
            align, size = int(found[1]), TYPES[found[2]] * int(found[4] or 1)
            scope.shared[found[3]] = -(-scope.shared_bytes // align) * align
            scope.shared_bytes = scope.shared[found[3]] + size
        elif found := re.fullmatch(r"\.local \.align (\d+) \.b8 (\w+)\[(\d+)\];", line):
            scope.arrays.add(found[2])
            # Unwritten memory holds anything: here NaN.
            filled = f"std::memset({found[2]}, 0xff, {found[3]});"
            kernel.declared.append(f"alignas({found[1]}) char {found[2]}[{found[3]}]; {filled}")
        else:
            raise UnknownPtx("the declaration")

    def instruction(self, kernel: Kernel, line: str, number: int) -> None:
        self.waiting = f"{self.waiting} {line}".strip()
        if not self.waiting.endswith(";"):
            return
        text, self.waiting = self.waiting.removesuffix(";").strip(), ""
        kernel.add(statement(text, kernel.scope, number))
        if re.fullmatch(r"(@!?%\w+ )?(bra|ret)\b.*", text):
            kernel.begins_a_block = True


def demangled(names: list[str]) -> list[str]:
    shown = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    # nvcc gives the unnamed namespace of each file a name of its own
    return [
        re.sub(r"_GLOBAL__N__\w+?(?=::)", "(anonymous namespace)", name) for name in shown.stdout.split("\n")
    ]


def translated(text: str) -> str:
    """The C++ of a file of PTX."""
    reader = _Reader()
    reader.read(text)
    names = demangled([kernel.name for kernel in reader.kernels])
    lines = ['#include "kernel.h"', "namespace {", *reader.constants.values()]
    for i, (kernel, name) in enumerate(zip(reader.kernels, names, strict=False)):
        sizes = ", ".join(map(str, kernel.parameters))
        count = len(kernel.parameters)
        lines += [
            f"uint64_t visits_{i}[{kernel.blocks}];",
            f"void kernel_{i}([[maybe_unused]] const void* const* parameters) {{",
            f"uint64_t* const visits = visits_{i};",
            *kernel.declared,
            *kernel.body,
            "}",
            f"const int sizes_{i}[] = {{{sizes or 0}}};",
            f'const ptx::Registration registration_{i}({{"{name}", kernel_{i}, ptx::begin_launch,'
            f" ptx::begin_block<{kernel.scope.shared_bytes}>, {kernel.most_threads}, sizes_{i}, {count},"
            f" visits_{i}, {kernel.blocks}}});",
        ]
    return "\n".join([*lines, "}  // namespace", ""])
