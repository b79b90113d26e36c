"""Reading what training and evaluation left behind.

A run is its folder: `result.json`, `metrics.jsonl`, `config.json`, `gallery.json` and the evaluations that were saved beside them.
Everything a report shows comes from these files, so they are checked here once and every complaint names the file and the place.
A run that was stopped early is a run too: it has no test result, but its hold-out accuracies so far are shown as such.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cfol_fast.errors import InputError

RUN_FILES = ("result.json", "metrics.jsonl", "config.json")
Z95 = 1.959963984540054  # the 97.5 % point of the normal distribution: two-sided 95 % intervals


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of `share` observed on `count` examples."""
    if count <= 0:
        return 0.0, 1.0
    z2 = Z95 * Z95
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z95 / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)


def tail_size(num_classes: int) -> int:
    """The number of classes in the 20 % tail, rounded up as in the paper (integers: 0.2 * 5 is not exact)."""
    return -(-num_classes // 5)


@dataclass(frozen=True)
class Accuracy:
    """One R of the JSON format: accuracies from 0 to 1, by class in the order of the data set's classes."""

    average: float
    tail: float
    worst: float
    worst_class: str
    per_class: dict[str, float]
    interval: dict[str, tuple[float, float]] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)
    confusion: list[list[int]] | None = None

    def metric(self, name: str) -> float:
        return {"average": self.average, "tail": self.tail, "worst": self.worst}[name]


@dataclass(frozen=True)
class Evaluation:
    """A saved evaluation of a checkpoint under another attack (`cfol-fast eval --json`)."""

    path: Path
    attack: dict[str, Any]
    clean: Accuracy | None
    robust: Accuracy | None


@dataclass(frozen=True)
class Run:
    """A run as its files tell it. `clean`/`robust` are None when the run has no test result."""

    path: Path
    method: str
    title: str
    dataset: str
    model: str
    seed: int | None
    classes: list[str]
    holdout: str
    finished: bool
    clean: Accuracy | None
    robust: Accuracy | None
    checkpoints: dict[str, dict[str, Any]]  # name -> {"epoch": e, "clean": Accuracy, "robust": Accuracy}
    attack: dict[str, Any]
    versions: dict[str, Any]
    seconds: float | None
    config: dict[str, Any]
    train: list[dict[str, Any]]
    validation: list[dict[str, Any]]  # rows with "clean" and "robust" as Accuracy
    gallery: dict[str, Any] | None
    evaluations: list[Evaluation]

    @property
    def epochs(self) -> tuple[int, int | None]:
        """Epochs done and epochs planned (None when the configuration does not say)."""
        done = max((int(row.get("epoch", 0)) for row in self.train + self.validation), default=0)
        return done, epochs_planned(self.config)

    @property
    def tested_epoch(self) -> int | None:
        """The epoch of the checkpoint behind the test result: the best average, or the last without a hold-out."""
        kept = self.checkpoints.get("best-average") or self.checkpoints.get("last") or {}
        return kept["epoch"] if isinstance(kept.get("epoch"), int) else None

    @property
    def tested(self) -> bool:
        return self.robust is not None


def epochs_planned(config: Mapping[str, Any]) -> int | None:
    value = find_key(config, "epochs")
    return int(value) if isinstance(value, (int, float)) else None


def find_key(tree: Mapping[str, Any], *names: str) -> Any:
    """The first of `names` that the tree has, looking at each level from the root down; a {"name": x} branch counts as x."""
    level: list[Mapping[str, Any]] = [tree]
    while level:
        for branch in level:
            for name in names:
                value = branch.get(name)
                if isinstance(value, Mapping):
                    value = value.get("name")
                if value is not None and not isinstance(value, list):
                    return value
        level = [value for branch in level for value in branch.values() if isinstance(value, Mapping)]
    return None


def read_json(path: Path) -> Any:
    """A JSON file's content; a broken file is named with line and column."""
    return _parse(_read_text(path), path, first_line=1)


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


def _read_object(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file. A last line without its newline is still being written and left out."""
    rows = []
    text = _read_text(path)
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not line.strip():
            continue
        try:
            row = _parse(line, path, first_line=number)
        except InputError:
            if not line.endswith("\n"):
                break
            raise
        if not isinstance(row, dict):
            raise InputError(f"{path}: line {number}: expected a JSON object, found {type(row).__name__}")
        rows.append(row)
    return rows


def _share(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InputError(f"{where} must be a number from 0 to 1, got {value!r}")
    return float(value)


def parse_accuracy(value: Any, where: str, classes: Sequence[str] | None = None) -> Accuracy:
    """Check one R. `where` is the file and the key, for the message; `classes` the names it must have, if they are known."""
    if not isinstance(value, dict):
        raise InputError(
            f"{where} must be an object with 'average' and 'per_class', got {type(value).__name__}"
        )
    for key in ("average", "per_class"):
        if key not in value:
            raise InputError(f"{where} has no {key!r}")
    if not isinstance(value["per_class"], dict) or not value["per_class"]:
        raise InputError(f"{where}.per_class must be an object of class names and accuracies")
    names = list(classes) if classes else list(value["per_class"])
    per_class = {}
    for name in names:
        # A class without examples in the split has no accuracy (null); it cannot be the worst one.
        number = value["per_class"].get(name)
        if number is not None:
            per_class[name] = _share(number, f"{where}.per_class[{name!r}]")
    unknown = [name for name in value["per_class"] if name not in names]
    if unknown or not per_class:
        raise InputError(
            f"{where}.per_class has {unknown or 'no accuracies'}, but the classes are {names[:5]}..."
        )
    ranked = sorted(per_class, key=per_class.__getitem__)
    lowest = ranked[: tail_size(len(ranked))]
    tail = value.get("tail")
    worst = value.get("worst")
    interval = value.get("interval") or {}
    count = value.get("count") or {}
    confusion = value.get("confusion") or None
    if confusion is not None and (
        len(confusion) != len(names) or any(len(row) != len(names) for row in confusion)
    ):
        raise InputError(f"{where}.confusion must be {len(names)} rows of {len(names)} numbers")
    return Accuracy(
        average=_share(value["average"], f"{where}.average"),
        tail=_share(tail, f"{where}.tail")
        if tail is not None
        else sum(per_class[name] for name in lowest) / len(lowest),
        worst=_share(worst, f"{where}.worst") if worst is not None else per_class[ranked[0]],
        worst_class=str(value.get("worst_class") or ranked[0]),
        per_class=per_class,
        interval={
            name: (
                _share(pair[0], f"{where}.interval[{name!r}]"),
                _share(pair[1], f"{where}.interval[{name!r}]"),
            )
            for name, pair in interval.items()
            if pair is not None
        }
        or {name: wilson(per_class[name], int(count[name])) for name in per_class if name in count},
        count={name: int(number) for name, number in count.items()},
        confusion=confusion,
    )


def _both(value: Any, where: str, classes: Sequence[str] | None) -> dict[str, Accuracy | None]:
    """The clean and robust R of an object that may have either."""
    if not isinstance(value, dict):
        raise InputError(f"{where} must be an object with 'clean' and 'robust'")
    return {
        split: parse_accuracy(value[split], f"{where}.{split}", classes)
        if value.get(split) is not None
        else None
        for split in ("clean", "robust")
    }


def is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("result.json", "metrics.jsonl"))


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The run folders (and evaluation files) that `paths` mean: a run, a folder that holds runs, or an evaluation's JSON."""
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise InputError(f"{path}: no such run folder")
        if path.is_file() or is_run(path):
            found.append(path)
            continue
        inside = sorted(
            {file.parent for name in ("result.json", "metrics.jsonl") for file in path.rglob(name)}
        )
        # A run may keep its stages in folders of its own; those are part of it, not runs to compare.
        inside = [folder for folder in inside if not any(is_run(parent) for parent in _between(path, folder))]
        if not inside:
            raise InputError(f"{path}: not a run folder (no result.json or metrics.jsonl in it or below)")
        found.extend(inside)
    unique: dict[Path, Path] = {}
    for path in found:
        unique.setdefault(path.resolve(), path)
    return list(unique.values())


def _between(top: Path, folder: Path) -> list[Path]:
    parents = []
    for parent in folder.parents:
        parents.append(parent)
        if parent == top:
            break
    return parents


def load_run(path: Path) -> Run:
    """Read a run folder, or an evaluation's JSON file as a run that has nothing but its result."""
    path = Path(path)
    if path.is_file():
        return _evaluation_as_run(path)
    if not is_run(path):
        raise InputError(f"{path}: not a run folder (no result.json or metrics.jsonl in it)")
    config = _read_object(path / "config.json") if (path / "config.json").is_file() else {}
    has_result = (path / "result.json").is_file()
    result = _read_object(path / "result.json") if has_result else {}
    rows = _read_rows(path / "metrics.jsonl") if (path / "metrics.jsonl").is_file() else []
    return _build(path, config, result, rows)


def run_from_result(result: Mapping[str, Any], path: Path | None = None) -> Run:
    """A run known by its result alone: what the demo holds in memory before any page is written."""
    return _build(path or Path("result.json"), {}, dict(result), [])


def _build(path: Path, config: dict[str, Any], result: dict[str, Any], rows: list[dict[str, Any]]) -> Run:
    where = path / "result.json" if path.is_dir() else path
    classes = [str(name) for name in result.get("classes") or []]
    test = result.get("test")
    final = _both(test, f"{where}: test", classes) if test else {"clean": None, "robust": None}
    checkpoints = {}
    for name, value in (result.get("checkpoints") or {}).items():
        both = _both(value, f"{where}: checkpoints[{name!r}]", classes)
        checkpoints[name] = {"epoch": value.get("epoch"), **both}
    train = [row for row in rows if row.get("kind") == "train"]
    validation = []
    for row in rows:
        if row.get("kind") == "validation":
            place = f"{path / 'metrics.jsonl'}: validation of epoch {row.get('epoch')}"
            validation.append({**row, **_both(row, place, classes)})
    if not classes:
        classes = _guess_classes(final["robust"] or final["clean"], train, validation)
    method = str(result.get("method") or find_key(config, "method") or path.name)
    seed = result.get("seed", find_key(config, "seed"))
    evaluations = _load_evaluations(path, classes) if path.is_dir() else []
    gallery = (
        _read_object(path / "gallery.json") if (path / "gallery.json").is_file() else result.get("gallery")
    )
    return Run(
        path=path,
        method=method,
        title=str(result.get("title") or find_key(config, "title") or default_title(method)),
        dataset=str(result.get("dataset") or find_key(config, "dataset", "data") or "unknown"),
        model=str(result.get("model") or find_key(config, "model") or ""),
        seed=int(seed) if isinstance(seed, (int, float)) else None,
        classes=classes,
        holdout=str(result.get("holdout") or find_key(config, "holdout") or ""),
        finished=bool(result.get("finished", bool(test))),
        clean=final["clean"],
        robust=final["robust"],
        checkpoints=checkpoints,
        attack=dict(result.get("attack") or {}),
        versions=dict(result.get("versions") or {}),
        seconds=result.get("seconds"),
        config=config,
        train=train,
        validation=validation,
        gallery=gallery if isinstance(gallery, dict) else None,
        evaluations=evaluations,
    )


def default_title(method: str) -> str:
    """A heading for a method whose run did not leave one: the table of methods knows, the name itself otherwise."""
    try:
        from cfol_fast.methods import METHODS
    except ImportError:
        return method
    return METHODS[method].title if method in METHODS else method


def _guess_classes(
    accuracy: Accuracy | None, train: list[dict[str, Any]], validation: list[dict[str, Any]]
) -> list[str]:
    """The class names of a run without a result: of a validation, or numbers as many as p has."""
    for row in validation:
        accuracy = accuracy or row["robust"] or row["clean"]
    if accuracy:
        return list(accuracy.per_class)
    lengths = [len(row[key]) for row in train for key in ("p", "class_error") if row.get(key)]
    return [str(number) for number in range(lengths[0])] if lengths else []


def _is_evaluation(value: Any) -> bool:
    return isinstance(value, dict) and any(
        isinstance(value.get(split), dict) for split in ("clean", "robust")
    )


def _attack_of(value: dict[str, Any], name: str) -> dict[str, Any]:
    """What an evaluation's `robust` was measured with: its attack, or the worst case over several, example by example."""
    listed = [
        entry["attack"] for entry in value.get("attacks") or [] if isinstance(entry.get("attack"), dict)
    ]
    if len(listed) > 1:
        return {"kind": "worst case", "of": listed}
    attack = listed[0] if listed else value.get("attack")
    return attack if isinstance(attack, dict) else {"kind": str(attack or name)}


def _load_evaluations(folder: Path, classes: list[str]) -> list[Evaluation]:
    """The results of `cfol-fast eval --json` in a run's folder; of one with several attacks, each and the worst case."""
    found = []
    for file in sorted(folder.glob("*.json")):
        if file.name in ("result.json", "config.json", "gallery.json"):
            continue
        value = read_json(file)
        if not _is_evaluation(value):
            continue
        both = _both(value, str(file), classes)
        attacks = value.get("attacks") or []
        for number, entry in enumerate(attacks if len(attacks) > 1 else []):
            robust = parse_accuracy(entry.get("robust"), f"{file}: attacks[{number}].robust", classes)
            found.append(Evaluation(file, _attack_of({"attacks": [entry]}, file.stem), both["clean"], robust))
        found.append(Evaluation(file, _attack_of(value, file.stem), both["clean"], both["robust"]))
    return found


def _evaluation_as_run(path: Path) -> Run:
    value = _read_object(path)
    if "test" not in value:
        if not _is_evaluation(value):
            raise InputError(
                f"{path}: neither a run's result nor an evaluation: it has no 'test', 'clean' or 'robust'"
            )
        settings = value.get("settings") or {}
        value = {**value, "test": {split: value.get(split) for split in ("clean", "robust")}}
        value["attack"] = _attack_of(value, "") if value.get("robust") else {}
        value.setdefault("dataset", settings.get("dataset"))
    value.setdefault("title", path.stem)
    value.setdefault("method", path.stem)
    value.setdefault("finished", True)
    return _build(path, {}, value, [])
