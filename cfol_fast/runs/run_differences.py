"""What differs between two runs, or between two checkpoints: every tensor, every number and every setting,
with its size.

Two runs of one configuration on one machine are equal in all of it. Times, versions and where a run was
carried out do not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cfol_fast.errors import InputError
from cfol_fast.runs import checkpoints, run_folder
from cfol_fast.runs.identity import is_incidental
from cfol_fast.runs.json_files import read_object
from cfol_fast.runs.metrics_log import FILE as METRICS
from cfol_fast.runs.metrics_log import read_rows
from cfol_fast.runs.predictions import FILE as PREDICTIONS

# Keys that describe the machine, the clock or the place of a run, in every file.
IGNORED = frozenset(
    ("seconds", "epoch_seconds", "images_per_second", "versions", "provenance", "arithmetic", "metrics_size")
)
# Absent in one of the two.
MISSING = object()


@dataclass(frozen=True)
class Difference:
    """One entry that is not the same: its file, its key, its two values as text, and by how much numbers
    differ.

    largest: the largest absolute difference; 0 where only the sign of zero or the type differs, None for what
    is no number.
    """

    file: str
    key: str
    first: str
    second: str
    largest: float | None = None

    def to_json(self) -> dict[str, Any]:
        largest = self.largest if self.largest is None or math.isfinite(self.largest) else None
        return {
            "file": self.file,
            "key": self.key,
            "first": self.first,
            "second": self.second,
            "largest": largest,
        }


@dataclass(frozen=True)
class Comparison:
    """compared: how many entries of each file were compared; differences: those that are not equal."""

    compared: dict[str, int]
    differences: list[Difference]


def compare(first: Path, second: Path) -> Comparison:
    """Compares two run folders file by file, or two checkpoint files entry by entry."""
    if first.is_dir() != second.is_dir():
        raise InputError(f"{first} and {second}: compare two run folders or two checkpoint files")
    contents = [_files_of_run(path) if path.is_dir() else _checkpoint(path) for path in (first, second)]
    compared: dict[str, int] = {}
    differences: list[Difference] = []
    for file in dict.fromkeys([*contents[0], *contents[1]]):
        one, other = (dict(_entries(files[file])) if file in files else None for files in contents)
        if one is None or other is None:
            first_has, second_has = ("missing" if entries is None else "present" for entries in (one, other))
            differences.append(Difference(file, "", first_has, second_has))
            continue
        keys = list(dict.fromkeys([*one, *other]))
        compared[file] = len(keys)
        for key in keys:
            found = _difference(file, key, one.get(key, MISSING), other.get(key, MISSING))
            if found is not None:
                differences.append(found)
    return Comparison(compared, differences)


def _checkpoint(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise InputError(f"{path}: no such run folder or checkpoint. Name two run folders or two .pt files")
    return {"checkpoint": checkpoints.read_state(path)}


def _files_of_run(run: Path) -> dict[str, Any]:
    """The contents of a run's files by their names relative to the run; those of its stages too."""
    if not (run / run_folder.CONFIG).exists():
        raise InputError(f"{run} is not a run folder: it has no {run_folder.CONFIG}")
    # Read as it stands, so that runs of two versions can be compared.
    config = read_object(run / run_folder.CONFIG)
    files: dict[str, Any] = {run_folder.CONFIG: _essential(config), METRICS: read_rows(run)}
    result = run_folder.read_result(run)
    if result is not None:
        files[run_folder.RESULT] = result
    if (run / PREDICTIONS).exists():
        files[PREDICTIONS] = read_object(run / PREDICTIONS)
    for path in sorted((run / checkpoints.FOLDER).glob("*.pt")):
        files[f"{checkpoints.FOLDER}/{path.name}"] = checkpoints.read_state(path)
    for stage in sorted(run.glob(run_folder.STAGE)):
        files |= {f"{stage.name}/{name}": found for name, found in _files_of_run(stage).items()}
    return files


def _essential(config: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The settings that change what is computed."""
    found = {}
    for key, value in config.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            found[key] = _essential(value, f"{name}.")
        elif not is_incidental(name):
            found[key] = value
    return found


def _entries(tree: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(key, tensor or plain value) of everything in a tree of dictionaries and lists; what is ignored is left
    out.
    """
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            if name not in IGNORED:
                yield from _entries(value, f"{key}.{name}" if key else str(name))
    elif isinstance(tree, (list, tuple)):
        yield f"{key}.length", len(tree)
        for place, value in enumerate(tree):
            yield from _entries(value, f"{key}[{place}]")
    else:
        yield key, tree


def _difference(file: str, key: str, first: Any, second: Any) -> Difference | None:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return _tensor_difference(file, key, first, second)
    if type(first) is type(second) and (first == second or _both_nan(first, second)):
        return None
    largest = None
    if _is_number(first) and _is_number(second):
        largest = abs(first - second)
    return Difference(file, key, _shown(first), _shown(second), largest)


def _tensor_difference(file: str, key: str, first: Tensor, second: Tensor) -> Difference | None:
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return Difference(file, key, _shown(first), _shown(second))
    if torch.equal(_bits(first), _bits(second)):
        return None
    one, other = (tensor.to(torch.float64).flatten() for tensor in (first, second))
    distance = (one - other).abs()
    # Two NaN of other bits, and a NaN beside a number, have no distance.
    largest = float(distance.nan_to_num(nan=0.0).max()) if not distance.isnan().all() else math.nan
    count = int((_bits(first) != _bits(second)).view(first.numel(), -1).any(dim=1).sum())
    return Difference(file, key, f"{count} of {first.numel()} values", _shown(first), largest)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def _both_nan(first: Any, second: Any) -> bool:
    return isinstance(first, float) and isinstance(second, float) and math.isnan(first) and math.isnan(second)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    if value is MISSING:
        return "missing"
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
