"""Reading the JSON files of runs, evaluations and recipes. Every complaint names the file, the place in it and the problem."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cfol_fast.errors import InputError


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    return _parse(_read_text(path), path, first_line=1)


def read_object(path: Path) -> dict[str, Any]:
    """The content of a file that holds one JSON object."""
    return _as_object(read_json(path), str(path))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file that has one on each line. A last line without its newline is still being written: left out."""
    lines = _read_text(path).split("\n")[:-1]
    return [
        _as_object(_parse(line, path, number), f"{path}: line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, expected a JSON file") from None
    except UnicodeDecodeError as problem:
        raise InputError(f"{path}: not a text file (byte {problem.start} is not UTF-8)") from None


def _parse(text: str, path: Path, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as problem:
        line = first_line + problem.lineno - 1
        raise InputError(
            f"{path}: broken JSON at line {line}, column {problem.colno}: {problem.msg}"
        ) from None


def _as_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected a JSON object, found {type(value).__name__}")
    return value
