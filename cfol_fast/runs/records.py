"""Reading what training and evaluation left behind: a run as its files tell it.

A run is its folder: `result.json`, `metrics.jsonl`, `config.json`, `gallery.json` and the evaluations that
were saved beside them. Everything a report shows comes from these files, so they are checked here once and
every complaint names the file and the place. A run that was stopped early is a run too: it has no test
result, but its hold-out accuracies so far are shown as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cfol_fast.errors import InputError
from cfol_fast.methods import METHODS
from cfol_fast.runs.accuracy import Accuracy
from cfol_fast.runs.config import flatten
from cfol_fast.runs.json_files import check_shape, read_json, read_object
from cfol_fast.runs.metrics_log import FILE as ROWS
from cfol_fast.runs.metrics_log import read_rows
from cfol_fast.runs.offset_file import ADJUSTED
from cfol_fast.runs.predictions import FILE as PREDICTIONS
from cfol_fast.runs.run_folder import CONFIG, GALLERY, RESULT, is_old

# What the files may hold; the accuracies check themselves.
_BOTH = {"clean": {str: object}, "robust": {str: object}}
_SETTINGS = {str: (str, float, bool, None, [object], {str: object})}
GALLERY_SHAPE = {
    "class": str,
    "shape": [int],
    "examples": [{"index": int, "predicted": str, "clean_predicted": str, "clean": str, "adversarial": str}],
}
RESULT_SHAPE = {
    "method": str,
    "title": str,
    "dataset": str,
    "classes": [str],
    "model": str,
    "seed": int,
    "holdout": str,
    "finished": bool,
    "checkpoints": {str: {"epoch": int, **_BOTH}},
    ADJUSTED: _BOTH,
    "attack": _SETTINGS,
    "versions": {str: (str, float, bool, None)},
    "seconds": float,
    "gallery": (str, GALLERY_SHAPE),
    "data": {str: {str: object}},
    "changed_data": [{str: object}],
}
EVALUATION_SHAPE = {
    "classes": [str],
    "attacks": [{"attack": (_SETTINGS, str), "robust": {str: object}}],
    "attack": (_SETTINGS, str),
    "settings": _SETTINGS,
    "curve": [{"eps": float, "robust": {str: object}}],
}


# Thirty thousand years: the times of many runs can still be added up.
MOST_SECONDS = 1e12


@dataclass(frozen=True)
class RadiusCurve:
    """Robust accuracies over the radius of an attack (`cfol-fast eval --eps 0,4/255,8/255`): (radius,
    accuracy), radii rising.
    """

    attack: dict[str, Any]
    points: list[tuple[float, Accuracy]]

    def in_order(self, classes: list[str]) -> RadiusCurve:
        return replace(self, points=[(eps, found.in_order(classes)) for eps, found in self.points])


@dataclass(frozen=True)
class SavedEvaluation:
    """An evaluation of a run's checkpoint under another attack (`cfol-fast eval --json`)."""

    path: Path
    attack: dict[str, Any]
    clean: Accuracy | None
    robust: Accuracy | None

    def in_order(self, classes: list[str]) -> SavedEvaluation:
        clean, robust = (found and found.in_order(classes) for found in (self.clean, self.robust))
        return replace(self, clean=clean, robust=robust)


@dataclass(frozen=True)
class Run:
    """A run as its files tell it. `clean` and `robust` are None when the run has no test result.

    checkpoints: by name, {"epoch": e, "clean": Accuracy, "robust": Accuracy}. train, validation: the rows of
    metrics.jsonl, the second with their "clean" and "robust" as Accuracy. root: of a folder of images, which
    has no name of its own but its path, or the digest of its images where the run is known by that.
    test_images: the digest of the images it was tested on; None for a run of version 0.2 or older. adjusted:
    {"clean", "robust"} with class offsets by the rule of all tables; empty where none were fitted.
    """

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
    checkpoints: dict[str, dict[str, Any]]
    attack: dict[str, Any]
    versions: dict[str, Any]
    seconds: float | None
    config: dict[str, Any]
    train: list[dict[str, Any]]
    validation: list[dict[str, Any]]
    gallery: dict[str, Any] | None
    evaluations: list[SavedEvaluation]
    curves: list[RadiusCurve]
    root: str | None = None
    test_images: str | None = None
    adjusted: dict[str, Any] = field(default_factory=dict)

    @property
    def epochs(self) -> tuple[int, int | None]:
        """Epochs done and epochs planned (None when the configuration does not say)."""
        done = max((int(row.get("epoch", 0)) for row in self.train + self.validation), default=0)
        planned = self.config.get("epochs")
        return done, int(planned) if isinstance(planned, (int, float)) else None

    @property
    def tested_epoch(self) -> int | None:
        """The epoch of the checkpoint behind the test result: the best average, or the last without a
        hold-out.
        """
        kept = self.checkpoints.get("best-average") or self.checkpoints.get("last") or {}
        return kept["epoch"] if isinstance(kept.get("epoch"), int) else None

    @property
    def tested(self) -> bool:
        return self.robust is not None


def join_versions(versions: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What several runs were made with: each package with every version of it."""
    found: dict[str, set[str]] = {}
    for of_one_run in versions:
        for name, version in of_one_run.items():
            found.setdefault(name, set()).add(str(version))
    return {name: ", ".join(sorted(values)) for name, values in sorted(found.items())}


def with_floor(run: Run, floor: float) -> Run:
    """The run with another accuracy below which a class counts as failing."""
    return _with_accuracies(run, lambda held: replace(held, floor=floor))


def _with_accuracies(run: Run, change: Callable[[Accuracy], Accuracy]) -> Run:
    """The run with every accuracy in it changed."""

    def both(value: Mapping[str, Any]) -> dict[str, Any]:
        return {key: change(held) if isinstance(held, Accuracy) else held for key, held in value.items()}

    def evaluation(one: SavedEvaluation) -> SavedEvaluation:
        return replace(one, clean=one.clean and change(one.clean), robust=one.robust and change(one.robust))

    def curve(one: RadiusCurve) -> RadiusCurve:
        return replace(one, points=[(eps, change(held)) for eps, held in one.points])

    return replace(
        run,
        clean=run.clean and change(run.clean),
        robust=run.robust and change(run.robust),
        adjusted=both(run.adjusted),
        checkpoints={name: both(held) for name, held in run.checkpoints.items()},
        validation=[both(value) for value in run.validation],
        evaluations=[evaluation(one) for one in run.evaluations],
        curves=[curve(one) for one in run.curves],
    )


def in_class_order(run: Run, classes: list[str]) -> Run:
    """The run with its classes, which are the same, in this order."""
    if run.classes == classes:
        return run
    places = [run.classes.index(name) for name in classes]

    def row(value: Mapping[str, Any]) -> dict[str, Any]:
        """Its lists have a number for each class."""
        return {
            key: [held[place] for place in places]
            if isinstance(held, list) and len(held) == len(places)
            else held
            for key, held in value.items()
        }

    ordered = _with_accuracies(run, lambda held: held.in_order(classes))
    return replace(ordered, classes=classes, train=[row(value) for value in run.train])


def read_finished(folder: Path) -> dict[str, Any]:
    """The result of a finished run, checked: what a file holds may be made up."""
    path = folder / RESULT
    result = read_object(path, RESULT_SHAPE)
    if not 0 <= (result.get("seconds") or 0.0) <= MOST_SECONDS:
        raise InputError(f"{path}: a run takes from 0 to {MOST_SECONDS:g} seconds, got {result['seconds']}")
    return result


def is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (RESULT, ROWS))


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The run folders (and evaluation files) that `paths` mean: a run, a folder that holds runs, or an
    evaluation's JSON.

    In a folder that holds runs those that --overwrite set aside are left out.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise InputError(f"{path}: no such run folder")
        if path.is_file() or is_run(path):
            found.append(path)
            continue
        inside = sorted({file.parent for name in (RESULT, ROWS) for file in path.rglob(name)})
        # A run may keep its stages in folders of its own; those are part of it, not runs to compare.
        inside = [
            folder
            for folder in inside
            if not any(is_run(parent) for parent in folder.parents if parent.is_relative_to(path))
            and not is_old(folder.relative_to(path))
        ]
        if not inside:
            raise InputError(f"{path}: not a run folder (no {RESULT} or {ROWS} in it or below)")
        found.extend(inside)
    unique: dict[Path, Path] = {}
    for path in found:
        unique.setdefault(path.resolve(), path)
    return list(unique.values())


def load_run(path: Path) -> Run:
    """Reads a run folder, or an evaluation's JSON file as a run that has nothing but its result."""
    path = Path(path)
    if path.is_file():
        return _evaluation_as_run(path)
    if not is_run(path):
        raise InputError(f"{path}: not a run folder (no {RESULT} or {ROWS} in it)")
    config, result = (
        read_object(path / name, shape) if (path / name).exists() else {}
        for name, shape in ((CONFIG, _SETTINGS), (RESULT, object))
    )
    return _build(path, config, result, read_rows(path))


def run_from_result(result: Mapping[str, Any]) -> Run:
    """A run known by its result alone, as `train` returns it."""
    return _build(Path(RESULT), {}, dict(result), [])


def _build(path: Path, config: dict[str, Any], result: dict[str, Any], rows: list[dict[str, Any]]) -> Run:
    """result.json knows most about a run; without it, the configuration and the rows tell what they can."""
    where = path / RESULT if path.is_dir() else path
    check_shape(result, RESULT_SHAPE, str(where))
    settings = flatten(config)
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
            place = f"{path / ROWS}: validation of epoch {row.get('epoch')}"
            own = [found.classes for found in _both(row, place, None).values() if found is not None]
            if result.get("changed_data") and not set(*own[:1]) <= set(classes):
                # Of before the run went on with classes of other names.
                continue
            validation.append({**row, **_both(row, place, classes)})
    if not classes:
        classes = _guess_classes(final["robust"] or final["clean"], train, validation)
    method = str(result.get("method") or settings.get("method") or path.name)
    seed = result.get("seed", settings.get("seed"))
    gallery = (
        read_object(path / GALLERY, GALLERY_SHAPE) if (path / GALLERY).exists() else result.get("gallery")
    )
    dataset = str(result.get("dataset") or settings.get("data.name") or "unknown")
    root = settings.get("data.root") or (result.get("settings") or {}).get("data")
    if root:
        root = str(Path(str(root)).expanduser().resolve())
    # The same images may lie at another place on another machine.
    if content := settings.get("data.content"):
        root = f"images {str(content)[:12]}"
    evaluations, curves = _load_evaluations(path, classes) if path.is_dir() else ([], [])
    if result.get("curve"):
        curves.append(_curve(result, str(path), classes))
    return Run(
        path=path,
        method=method,
        title=str(result.get("title") or (METHODS[method].title if method in METHODS else method)),
        dataset=dataset,
        model=str(result.get("model") or settings.get("model.name") or ""),
        seed=int(seed) if isinstance(seed, (int, float)) else None,
        classes=classes,
        holdout=str(result.get("holdout") or settings.get("data.holdout") or ""),
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
        curves=curves,
        root=root if dataset == "folder" else None,
        test_images=_test_images(result),
        adjusted=_both(result[ADJUSTED], f"{where}: {ADJUSTED}", classes) if result.get(ADJUSTED) else {},
    )


def _test_images(result: Mapping[str, Any]) -> str | None:
    found = ((result.get("data") or {}).get("test") or {}).get("any pixels")
    return found if isinstance(found, str) else None


def _both(value: Any, where: str, classes: Sequence[str] | None) -> dict[str, Accuracy | None]:
    """The clean and the robust accuracy of an object that may have either."""
    if not isinstance(value, dict):
        raise InputError(f"{where} must be an object with 'clean' and 'robust'")
    return {
        split: Accuracy.from_json(value[split], f"{where}.{split}", classes)
        if value.get(split) is not None
        else None
        for split in ("clean", "robust")
    }


def _guess_classes(
    accuracy: Accuracy | None, train: list[dict[str, Any]], validation: list[dict[str, Any]]
) -> list[str]:
    """The class names of a run without a result: those of a validation, or as many numbers as there are class
    errors.
    """
    for row in validation:
        accuracy = accuracy or row["robust"] or row["clean"]
    if accuracy:
        return accuracy.classes
    lengths = [len(row[key]) for row in train for key in ("p", "class_error") if row.get(key)]
    return [str(number) for number in range(lengths[0])] if lengths else []


def _is_evaluation(value: Any) -> bool:
    return isinstance(value, dict) and any(
        isinstance(value.get(split), dict) for split in ("clean", "robust")
    )


def _attack_of(value: dict[str, Any], name: str) -> dict[str, Any]:
    """What an evaluation's `robust` was measured with: its attack, or the worst case over several, example by
    example.
    """
    listed = [
        entry["attack"] for entry in value.get("attacks") or [] if isinstance(entry.get("attack"), dict)
    ]
    # With the active set the worst iterate counts: the same attack is a stronger one.
    stronger = {"active_set": True} if (value.get("settings") or {}).get("active_set") else {}
    if len(listed) > 1:
        return {"kind": "worst case", "of": listed, **stronger}
    attack = listed[0] if listed else value.get("attack")
    return {**attack, **stronger} if isinstance(attack, dict) else {"kind": str(attack or name)}


# What an attack is called with and its result does not depend on, or only by chance.
_NOT_COMPARED = ("seed", "state", "batch_size")


def same_attack(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two descriptions name one attack.

    What only one of them mentions does not count: older files say less.
    """
    if bool(one.get("active_set")) != bool(other.get("active_set")):
        return False
    mine, theirs = one.get("of"), other.get("of")
    if isinstance(mine, list) and isinstance(theirs, list):
        return len(mine) == len(theirs) and all(map(same_attack, mine, theirs))
    shared = (one.keys() & other.keys()) - {*_NOT_COMPARED, "of"}

    def rounded(value: Any) -> Any:
        return float(f"{value:.9g}") if isinstance(value, float) else value

    return all(rounded(one[key]) == rounded(other[key]) for key in shared)


def _curve(value: dict[str, Any], where: str, classes: list[str]) -> RadiusCurve:
    points = [
        (
            float(point["eps"]),
            Accuracy.from_json(point.get("robust"), f"{where}: curve[{number}].robust", classes),
        )
        for number, point in enumerate(value["curve"])
    ]
    radii = [eps for eps, _ in points]
    if radii != sorted(set(radii)) or radii[0] < 0:
        raise InputError(f"{where}: the radii of a curve must rise from 0 on, got {radii[:5]}")
    attack = {key: given for key, given in _attack_of(value, "attack").items() if key != "eps"}
    return RadiusCurve(attack, points)


def _load_evaluations(folder: Path, classes: list[str]) -> tuple[list[SavedEvaluation], list[RadiusCurve]]:
    """The results of `cfol-fast eval --json` in a run's folder; of one with several attacks, each and the
    worst case.
    """
    found: list[SavedEvaluation] = []
    curves = []
    for file in sorted(folder.glob("*.json")):
        if file.name in (RESULT, CONFIG, GALLERY, PREDICTIONS):
            continue
        value = read_json(file)
        if not _is_evaluation(value):
            continue
        check_shape(value, EVALUATION_SHAPE, str(file))
        # Of data with the same classes in another order: its confusion has that order.
        order = [str(name) for name in value.get("classes") or []]
        ordered = classes if sorted(order) != sorted(classes) else order
        evaluations, of_file = _evaluations_in(value, file, ordered)
        found += [one.in_order(classes) for one in evaluations]
        curves += [curve.in_order(classes) for curve in of_file]
    return found, curves


def _evaluations_in(
    value: dict[str, Any], file: Path, classes: list[str]
) -> tuple[list[SavedEvaluation], list[RadiusCurve]]:
    found: list[SavedEvaluation] = []
    both = _both(value, str(file), classes)
    attacks = value.get("attacks") or []
    for number, entry in enumerate(attacks if len(attacks) > 1 else []):
        robust = Accuracy.from_json(entry.get("robust"), f"{file}: attacks[{number}].robust", classes)
        attack = _attack_of({"attacks": [entry], "settings": value.get("settings")}, file.stem)
        found.append(SavedEvaluation(file, attack, both["clean"], robust))
    found.append(SavedEvaluation(file, _attack_of(value, file.stem), both["clean"], both["robust"]))
    return found, [_curve(value, str(file), classes)] if value.get("curve") else []


def _evaluation_as_run(path: Path) -> Run:
    value = read_object(path)
    if "test" not in value:
        if not _is_evaluation(value):
            raise InputError(
                f"{path}: neither a run's result nor an evaluation: it has no 'test', 'clean' or 'robust'"
            )
        check_shape(value, EVALUATION_SHAPE, str(path))
        settings = value.get("settings") or {}
        value = {**value, "test": {split: value.get(split) for split in ("clean", "robust")}}
        value["attack"] = _attack_of(value, "") if value.get("robust") else {}
        value.setdefault("dataset", settings.get("dataset"))
    value.setdefault("title", path.stem)
    value.setdefault("method", path.stem)
    value.setdefault("finished", True)
    return _build(path, {}, value, [])
