"""Reading the JSON files of runs, evaluations and recipes.

Every complaint names the file, the place in it and the problem.

Anybody may have edited them, so nesting, the size of numbers and, where a reader says what it expects, the
types are checked here.
"""

from __future__ import annotations

import contextlib
import json
import math
import stat
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cfol_fast.errors import InputError, one_line
from cfol_fast.user_input import shorten

# Ours nest six levels deep.
MOST_DEPTH = 32
# Torch, NumPy and other readers of JSON take no larger whole numbers.
LARGEST = 2**63

# What a file may hold: float (any number), int, str, bool or object (anything); [shape] is a list, {str:
# shape} an object with any names, {"name": shape} one where these names, if they are there and not null, have
# these shapes ("name!" must be there), and a tuple lists alternatives, None among them.
Shape = Any
_WORDS = {float: "a number", int: "a whole number", str: "text", bool: "true or false", None: "null"}


def read_json(path: Path, shape: Shape = object) -> Any:
    """The content of a JSON file."""
    value = _parse(_read_text(path), path, first_line=1)
    check_shape(value, shape, str(path))
    return value


def read_object(path: Path, shape: Shape = object) -> dict[str, Any]:
    """The content of a file that holds one JSON object."""
    value = _as_object(_parse(_read_text(path), path, first_line=1), str(path))
    check_shape(value, shape, str(path))
    return value


def read_lines(path: Path, shape: Shape = object) -> list[dict[str, Any]]:
    """The objects of a file that has one on each line.

    A last line without its newline is still being written: left out.
    """
    found = []
    for number, line in enumerate(_read_text(path).split("\n")[:-1], start=1):
        if line.strip():
            value = _as_object(_parse(line, path, number), f"{path}: line {number}")
            check_shape(value, shape, f"{path}: line {number}")
            found.append(value)
    return found


def parse_object(text: str, path: Path) -> dict[str, Any]:
    """A JSON object that stands inside the file `path`."""
    return _as_object(_parse(text, path, first_line=1), str(path))


def check_tree(value: Any, where: str) -> None:
    """Refuses nesting that no file of ours has, and numbers that other readers of JSON would refuse."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MOST_DEPTH:
            raise InputError(f"{where}: nested more than {MOST_DEPTH} levels deep")
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, float) and not math.isfinite(item):
                raise InputError(f"{where}: {item} is not a finite number")
            elif isinstance(item, int) and not -LARGEST <= item < LARGEST:
                raise InputError(f"{where}: a whole number of {item.bit_length()} bits, at most 64 are read")
        level = below


@contextlib.contextmanager
def made_from(place: Path) -> Iterator[None]:
    """For what is built of files with many parts that belong together: where they do not, the files are at
    fault, and named.
    """
    try:
        yield
    except InputError:
        raise
    # What Python raises for a part that is missing or of another kind, and torch for one of another shape.
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {one_line(error)[:100]}"
        raise InputError(
            f"{place} is not as cfol-fast wrote it ({reason}; CFOL_FAST_TRACEBACK=1 shows where): make it"
            " again"
        ) from error


def shape_of(hint: Any) -> Shape:
    """The shape that a type hint means, for files that become dataclasses."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return tuple(shape_of(one) for one in arguments)
    if typing.get_origin(hint) is list:
        return [shape_of(arguments[0])]
    if typing.get_origin(hint) is dict:
        return {str: shape_of(arguments[1])}
    return None if hint is type(None) else hint if hint in _WORDS else object


def check_shape(value: Any, shape: Shape, where: str) -> None:
    """Refuses a value of another shape than `shape`, and says where it is."""
    if isinstance(shape, tuple):
        wanted = next((one for one in shape if _is_kind(value, one)), shape[0])
        check_shape(value, wanted, where)
        return
    if not _is_kind(value, shape):
        raise InputError(f"{where}: expected {_word(shape)}, found {shorten(value)}")
    if isinstance(shape, list):
        for number, item in enumerate(value):
            check_shape(item, shape[0], f"{where}[{number}]")
    elif isinstance(shape, dict) and str in shape:
        for name, item in value.items():
            check_shape(item, shape[str], f"{where}: {name[:50]!r}")
    elif isinstance(shape, dict):
        for key, inner in shape.items():
            name = key.removesuffix("!")
            if value.get(name) is not None:
                check_shape(value[name], inner, f"{where}: {name}")
            elif key.endswith("!"):
                raise InputError(f"{where} has no {name!r}")


def _is_kind(value: Any, shape: Shape) -> bool:
    if shape is object:
        return True
    if isinstance(shape, list | dict):
        return isinstance(value, type(shape))
    if shape is None or isinstance(value, bool):
        return value is None if shape is None else shape is bool
    return isinstance(value, (int, float) if shape is float else shape)


def _word(shape: Shape) -> str:
    if isinstance(shape, list | dict):
        return "a list" if isinstance(shape, list) else "an object"
    return _WORDS[shape]


def _read_text(path: Path) -> str:
    try:
        # A pipe of that name would wait forever.
        if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
            raise InputError(f"{path}: expected a JSON file, it is no file")
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, expected a JSON file") from None
    except UnicodeDecodeError as problem:
        raise InputError(f"{path}: not a text file (byte {problem.start} is not UTF-8)") from None


def _parse(text: str, path: Path, first_line: int) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as problem:
        line = first_line + problem.lineno - 1
        raise InputError(
            f"{path}: broken JSON at line {line}, column {problem.colno}: {problem.msg}"
        ) from None
    except RecursionError:
        raise InputError(f"{path}: nested more than {MOST_DEPTH} levels deep") from None
    except ValueError as problem:
        # Python's limit on the digits of a whole number.
        raise InputError(f"{path}: {problem}") from None
    check_tree(value, f"{path}: line {first_line}" if first_line > 1 else str(path))
    return value


def _as_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected a JSON object, found {type(value).__name__}")
    return value
