"""One instruction of PTX as one statement of C++: a call of the function of instructions.h or kernel.h that
is named like it. An instruction that is not listed here is an error, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

SIZES = {"b": (8, 16, 32, 64), "u": (8, 16, 32, 64), "s": (8, 16, 32, 64), "f": (32, 64)}
TYPES = {f"{kind}{bits}": bits // 8 for kind, sizes in SIZES.items() for bits in sizes} | {"pred": 1}
INTEGERS = frozenset(name for name in TYPES if name[0] in "us")
BITS = frozenset(name for name in TYPES if name[0] == "b" and name != "b8")
FLOATS = frozenset(("f32", "f64"))
ANY = INTEGERS | BITS | FLOATS
COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}
UNORDERED = {"equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"}

# What each instruction takes: the types it is known for, and its operands (t: of its own type, w: twice as
# wide, u: u32, p: a predicate).
PLAIN: dict[str, tuple[frozenset[str], str]] = {
    **dict.fromkeys(("add", "sub"), (INTEGERS | FLOATS, "tt")),
    **dict.fromkeys(("add.rn", "sub.rn", "mul.rn", "mul", "div.rn"), (FLOATS, "tt")),
    "fma.rn": (FLOATS, "ttt"),
    **dict.fromkeys(("sqrt.rn", "rcp.rn"), (FLOATS, "t")),
    "rcp.approx.ftz": (frozenset(("f32",)), "t"),
    **dict.fromkeys(("mul.lo", "mul.hi"), (INTEGERS, "tt")),
    "mul.wide": (frozenset(("u16", "s16", "u32", "s32")), "tt"),
    "mad.lo": (INTEGERS, "ttt"),
    "mad.wide": (frozenset(("u16", "s16", "u32", "s32")), "ttw"),
    **dict.fromkeys(("min", "max"), (INTEGERS | FLOATS, "tt")),
    "neg": (INTEGERS | FLOATS, "t"),
    "abs": (frozenset(("s16", "s32", "s64")) | FLOATS, "t"),
    **dict.fromkeys(("and", "or", "xor"), (BITS | {"pred"}, "tt")),
    "not": (BITS | {"pred"}, "t"),
    "shl": (BITS, "tu"),
    "shr": (BITS | INTEGERS, "tu"),
    **dict.fromkeys(("shf.l.wrap", "shf.r.wrap"), (frozenset(("b32",)), "ttu")),
    "prmt": (frozenset(("b32",)), "ttt"),
    "bfi": (frozenset(("b32", "b64")), "ttuu"),
    "bfe": (frozenset(("u32", "u64")), "tuu"),
    "selp": (ANY, "ttp"),
}
DIVISIONS = ("div", "rem")
ATOMICS = ("add", "or", "max", "min", "exch")
SPECIAL = {
    f"%{name}.{axis}": f"ptx::machine->{of}[{i}]"
    for name, of in (("tid", "thread"), ("ntid", "block_size"), ("ctaid", "block"), ("nctaid", "grid_size"))
    for i, axis in enumerate("xyz")
}


class UnknownPtx(Exception):
    """The translation does not know this."""


@dataclass
class Scope:
    """The names that the instructions of one kernel use."""

    registers: dict[str, str] = field(default_factory=dict)  # name -> type
    shared: dict[str, int] = field(default_factory=dict)  # name -> offset
    arrays: set[str] = field(default_factory=set)  # local ones and constants
    shared_bytes: int = 0

    def register(self, text: str) -> str:
        if text not in self.registers:
            raise UnknownPtx(f"a register that was not declared: {text}")
        return "r_" + text[1:]

    def value(self, text: str, kind: str) -> str:
        """An operand as an expression of the C++ type that is named like the type in PTX."""
        if text in SPECIAL:
            return f"ptx::as<ptx::{kind}>({SPECIAL[text]})"
        if text.startswith("%"):
            return f"ptx::as<ptx::{kind}>({self.register(text)})"
        if found := re.fullmatch(r"0([fFdD])([0-9A-Fa-f]+)", text):
            bits = "b32" if found[1] in "fF" else "b64"
            return f"ptx::as<ptx::{kind}>(ptx::{bits}{{0x{found[2]}u}})"
        if kind == "pred" and re.fullmatch(r"-?\d+", text):
            return "true" if int(text) else "false"
        if re.fullmatch(r"-?(\d+|0x[0-9a-fA-F]+)", text):
            return f"ptx::as<ptx::{kind}>(ptx::b64{{{int(text, 0) % (1 << 64)}u}})"
        if text in self.shared:
            return f"ptx::as<ptx::{kind}>(ptx::b64{{{self.shared[text]}}})"
        if text in self.arrays:
            return f"ptx::as<ptx::{kind}>(reinterpret_cast<ptx::b64>({text}))"
        raise UnknownPtx(f"the operand {text}")

    def store(self, target: str, expression: str) -> str:
        if target == "_":
            return ""
        return f"{self.register(target)} = ptx::as<ptx::{self.registers[target]}>({expression});"

    def place(self, text: str, space: str, size: int, line: int) -> str:
        """Where [base+offset] of a memory lies, as a checked char*."""
        found = re.fullmatch(r"\[([%\w$]+)(?:\+(-?\d+))?\]", text)
        if not found:
            raise UnknownPtx(f"the address {text}")
        base, offset = found[1], int(found[2] or 0)
        if space == "param":
            number = re.search(r"_param_(\d+)$", base)
            if not number:
                raise UnknownPtx(f"the parameter {text}")
            return f"(static_cast<const char*>(parameters[{number[1]}]) + {offset})"
        if space == "shared":
            start = f"{self.shared[base]}u" if base in self.shared else self.value(base, "u32")
            return f"ptx::shared_at({start} + {offset % (1 << 32)}u, {size}, {self.shared_bytes}u, {line})"
        return f"ptx::global_at({self.value(base, 'b64')} + {offset % (1 << 64)}ull, {size}, {line})"


def statement(text: str, scope: Scope, line: int) -> str:
    """The C++ of one instruction, which may be guarded by a predicate."""
    found = re.fullmatch(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.]*)(?:\s+(.*))?", text, re.DOTALL)
    if not found:
        raise UnknownPtx(text)
    negated, guard, name, rest = found.groups()
    operands = [part.strip() for part in re.findall(r"\s*(\{[^}]*\}|\[[^\]]*\]|[^,]+)", rest or "")]
    body = _body(name, operands, scope, line)
    if body is None:
        raise UnknownPtx(text)
    return f"if ({negated}{scope.register(guard)}) {{ {body} }}" if guard else body


def _body(name: str, operands: list[str], scope: Scope, line: int) -> str | None:
    name = name.removesuffix(".uni") if name.startswith("bra") else name
    op, *modifiers = name.split(".")
    if (name, len(operands)) == ("bra", 1):
        return f"goto {operands[0].replace('$', '')};"
    if (name, operands) == ("ret", []):
        return "return;"
    if (name, operands) == ("bar.sync", ["0"]):
        return f"ptx::machine->wait_for_block({line});"
    if not modifiers or modifiers[-1] not in TYPES:
        return None
    special = _SPECIAL_FORMS.get(op)
    if special is not None:
        return special(modifiers, operands, scope, line)
    stem, kind = ".".join([op, *modifiers[:-1]]), modifiers[-1]
    if stem in DIVISIONS and kind in INTEGERS and len(operands) == 3:
        values = ", ".join(scope.value(operand, kind) for operand in operands[1:])
        return scope.store(operands[0], f"ptx::{stem}<ptx::{kind}>({values}, {line})")
    if stem not in PLAIN or kind not in PLAIN[stem][0] or len(operands) != 1 + len(PLAIN[stem][1]):
        return None
    kinds = (
        {"t": kind, "u": "u32", "p": "pred", "w": kind[0] + str(2 * int(kind[1:]))}
        if kind != "pred"
        else {"t": kind}
    )
    values = ", ".join(scope.value(o, kinds[k]) for o, k in zip(operands[1:], PLAIN[stem][1], strict=True))
    function = stem.replace(".", "_") + ("_" if stem in ("and", "or", "xor", "not") else "")
    return scope.store(operands[0], f"ptx::{function}<ptx::{kind}>({values})")


def _load(modifiers: list[str], operands: list[str], scope: Scope, line: int) -> str | None:
    *how, kind = modifiers
    space, size, names = _access(how, kind, operands[0], {"nc"})
    if space is None or len(operands) != 2:
        return None
    note = f"ptx::note(at, {size}, ptx::kReadOnly, {line}); " if "nc" in how else ""
    if "nc" in how and space not in ("global", "generic"):
        return None
    loads = [f"ptx::load<ptx::{kind}>(at + {i * TYPES[kind]})" for i in range(len(names))]
    moves = " ".join(map(scope.store, names, loads))
    return f"{{ const char* at = {scope.place(operands[1], space, size, line)}; {note}{moves} }}"


def _store(modifiers: list[str], operands: list[str], scope: Scope, line: int) -> str | None:
    *how, kind = modifiers
    space, size, names = _access(how, kind, operands[-1], set())
    if space is None or space == "param" or len(operands) != 2:
        return None
    note = f"ptx::note(at, {size}, ptx::kWritten, {line}); " if space in ("global", "generic") else ""
    moves = " ".join(
        f"ptx::store<ptx::{kind}>(at + {i * TYPES[kind]}, {scope.value(name, kind)});"
        for i, name in enumerate(names)
    )
    return f"{{ char* at = {scope.place(operands[0], space, size, line)}; {note}{moves} }}"


def _access(how: list[str], kind: str, data: str, allowed: set[str]) -> tuple[str | None, int, list[str]]:
    """(the memory, the access's bytes, the registers); None as the memory where a modifier is not known."""
    spaces = [m for m in how if m in ("global", "shared", "local", "param")]
    widths = [int(m[1:]) for m in how if m in ("v2", "v4")]
    known = len(spaces) <= 1 and len(widths) <= 1
    known &= set(how) <= {*spaces, "v2", "v4", *allowed}
    names = [part.strip() for part in data.strip("{}").split(",")]
    width = widths[0] if widths else 1
    known &= len(names) == width
    return (spaces[0] if spaces else "generic") if known else None, TYPES[kind] * width, names


def _atomic(modifiers: list[str], operands: list[str], scope: Scope, line: int) -> str | None:
    space, what, kind = modifiers if len(modifiers) == 3 else ("", "", "")
    if space not in ("global", "shared") or what not in ATOMICS or len(operands) != 3:
        return None
    note = f"ptx::note(at, {TYPES[kind]}, ptx::kWritten, {line}); " if space == "global" else ""
    result = f"ptx::atom_{what}<ptx::{kind}>(at, {scope.value(operands[2], kind)})"
    place = scope.place(operands[1], space, TYPES[kind], line)
    return f"{{ char* at = {place}; {note}{scope.store(operands[0], result) or result + ';'} }}"


def _shuffle(modifiers: list[str], operands: list[str], scope: Scope, line: int) -> str | None:
    if len(modifiers) != 3 or modifiers[0] != "sync" or modifiers[2] != "b32" or len(operands) != 5:
        return None
    if modifiers[1] not in ("bfly", "up", "down", "idx"):
        return None
    target, _, inside = operands[0].partition("|")
    values = ", ".join(scope.value(operand, "u32") for operand in operands[1:])
    call = f"ptx::shuffle(ptx::Shuffle::{modifiers[1]}, {values}, {line})"
    moves = scope.store(target, "s.value") + (scope.store(inside, "s.inside") if inside else "")
    return f"{{ const ptx::Shuffled s = {call}; {moves} }}"


def _move(modifiers: list[str], operands: list[str], scope: Scope, line: int) -> str | None:
    if len(modifiers) != 1 or len(operands) != 2:
        return None
    kind, (target, source) = modifiers[0], operands
    if "{" not in target + source:
        return scope.store(target, scope.value(source, kind))
    whole = source if target.startswith("{") else target
    parts = [part.strip() for part in (target if whole == source else source).strip("{}").split(",")]
    bits = 8 * TYPES[kind] // len(parts)
    if whole == source:
        moves = [
            scope.store(part, f"ptx::as<ptx::b{bits}>(all >> {bits * i})") for i, part in enumerate(parts)
        ]
        return f"{{ const ptx::{kind} all = {scope.value(source, kind)}; {' '.join(moves)} }}"
    shifted = [f"ptx::b64{{{scope.value(part, f'b{bits}')}}} << {bits * i}" for i, part in enumerate(parts)]
    return scope.store(target, " | ".join(f"({part})" for part in shifted))


def _to_global(modifiers: list[str], operands: list[str], scope: Scope, line: int) -> str | None:
    known = modifiers in (["to", "global", "u64"], ["local", "u64"], ["to", "local", "u64"])
    return scope.store(operands[0], scope.value(operands[1], "u64")) if known and len(operands) == 2 else None


def _convert(modifiers: list[str], operands: list[str], scope: Scope, line: int) -> str | None:
    *rounding, to, source = modifiers
    if to not in ANY or source not in ANY or len(operands) != 2 or len(rounding) > 1:
        return None
    how = rounding[0] if rounding else ""
    floats = to in FLOATS, source in FLOATS
    # Rounding to the nearest changes nothing between integers; to an integer a float must say how.
    allowed = {
        (False, False): {""},
        (True, False): {"rn"},
        (False, True): {"rni", "rzi", "rmi", "rpi"},
        (True, True): {"rn"} if TYPES[to] < TYPES[source] else {"", "rni", "rzi", "rmi", "rpi"},
    }[floats]
    if how not in allowed or (floats == (True, True) and not how and TYPES[to] == TYPES[source]):
        return None
    function = "cvt" + (f"_{how}" if how else "")
    return scope.store(operands[0], f"ptx::{function}<ptx::{to}>({scope.value(operands[1], source)})")


def _compare(modifiers: list[str], operands: list[str], scope: Scope, line: int) -> str | None:
    comparison, kind = modifiers if len(modifiers) == 2 else ("", "")
    known = COMPARISONS | (UNORDERED if kind in FLOATS else {"lo", "ls", "hi", "hs"})
    if comparison not in known or len(operands) != 3 or kind not in ANY:
        return None
    name = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(comparison, comparison)
    values = ", ".join(scope.value(operand, kind) for operand in operands[1:])
    return scope.store(operands[0], f"ptx::{name}<ptx::{kind}>({values})")


_SPECIAL_FORMS: dict[str, Callable[[list[str], list[str], Scope, int], str | None]] = {
    "ld": _load,
    "st": _store,
    "atom": _atomic,
    "shfl": _shuffle,
    "mov": _move,
    "cvta": _to_global,
    "cvt": _convert,
    "setp": _compare,
}
