"""What a run is: one tree of typed dataclasses, written to the run folder as `config.json`.

The command line, a TOML file, `--set key=value` and Python all set the same fields (`assign`). A field left at None
follows the data set or the method (`cfol_fast.runs.defaults`); the file in the run folder has every value filled in.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cfol_fast.errors import InputError
from cfol_fast.runs.toml_files import read_toml
from cfol_fast.user_input import did_you_mean, parse_number, parse_parameter


@dataclass
class DataConfig:
    name: str = "fashion-mini"
    root: str | None = None  # the folder with the data set's files; fashion-mini needs none
    holdout: str = "0.2"  # share of the training part kept for early stopping, or "test", or "none"
    imbalance: float | None = (
        None  # exponential class profile: the largest class has this many times the smallest
    )
    download: bool = False
    size: int | None = None  # "folder" only: the short side that images of different sizes are stored with
    skip_corrupt: bool = False
    augment: bool = True
    source: str = "resident"  # or "ffcv"
    beton: str | None = None  # the FFCV file with the training part
    lag: int = 1  # FFCV: batches drawn ahead of the update


@dataclass
class ModelConfig:
    name: str | None = None
    channels_last: bool = True


@dataclass
class OptimizerConfig:
    lr: float | None = None
    momentum: float = 0.9
    weight_decay: float = 5e-4
    nesterov: bool = False
    schedule: str | None = None  # "steps", "one-cycle" or "constant"
    milestones: tuple[int, ...] | None = (
        None  # "steps": epochs; None: at one half and three quarters of the run
    )
    decay: float = 0.1  # "steps": the factor at each milestone
    warmup: float = 0.3  # "one-cycle": the share of the run that climbs


@dataclass
class AttackConfig:
    """The attack of the training step."""

    kind: str | None = None  # None: the method's own; "pgd", "trades", "fgsm", "n-fgsm", "none"
    eps: float | None = None
    step: float | None = None
    steps: int = 7
    norm: str = "linf"
    random_start: bool = True


@dataclass
class ValidationConfig:
    every: int = 1  # epochs
    steps: int = 10  # of PGD, each 2.5 * eps / steps


@dataclass
class TestConfig:
    __test__ = False  # not a test class, whatever pytest thinks of the name

    eps: float | None = None  # None: the training attack's
    step: float | None = None  # None: 2.5 * eps / steps
    steps: int = 20
    batch_size: int = 250


@dataclass
class CheckpointConfig:
    """Beside the checkpoint after each epoch: every so many steps or seconds."""

    steps: int | None = None
    seconds: float | None = None


@dataclass
class TrainConfig:
    method: str = "cfol"
    params: dict[str, Any] = field(default_factory=dict)  # the method's own: eta, gamma, alpha, ...
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    attack: AttackConfig = field(default_factory=AttackConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    test: TestConfig = field(default_factory=TestConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    epochs: int | None = None
    batch_size: int = 128
    steps_per_epoch: int | None = (
        None  # None: as many as it takes to see as many images as the training part has
    )
    seed: int = 0
    device: str = "auto"
    precision: str = "float32"  # or "bfloat16"
    compile: bool = False
    ensemble: int = 0  # members kept for the ensemble of the paper's Theorem 1
    out: str | None = None  # the run folder


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """Plain dicts, lists and numbers, ready for JSON."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value

    return plain(dataclasses.asdict(config))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested tables by their paths: `attack.eps`."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def from_dict(tree: dict[str, Any]) -> TrainConfig:
    """The inverse of `to_dict`; also takes the nested tables of a TOML file. Unknown keys are refused."""
    config = TrainConfig()
    merge(config, tree)
    return config


def from_toml(path: str | Path) -> TrainConfig:
    """A configuration from a TOML file; keys as in `config.json`, fractions as strings (`eps = "8/255"`)."""
    config = TrainConfig()
    merge_toml(config, path)
    return config


def merge_toml(config: TrainConfig, path: str | Path) -> None:
    """Sets what a TOML file sets."""
    merge(config, read_toml(Path(path)))


def merge(config: TrainConfig, tree: dict[str, Any], prefix: str = "") -> None:
    """Sets every leaf of a nested dict."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            if path != "params" and path not in _groups():
                raise InputError(f"unknown configuration group {path!r}{did_you_mean(path, _groups())}")
            merge(config, value, f"{path}.")
        else:
            assign(config, path, value)


def assign(config: TrainConfig, key: str, value: Any) -> None:
    """Sets one field by its path (`attack.eps`) or, where only one field has it, by its last name (`eps`).

    Text is read as the field's type; `8/255` is a number. `params.eta`, or `eta` alone, are the method's parameters;
    whether the method has them is checked when the run starts, since the method may be set later.
    """
    path = _resolve_key(key)
    if path.startswith("params."):
        config.params[path.removeprefix("params.")] = parse_parameter(value)
        return
    owner: Any = config
    *groups, leaf = path.split(".")
    for group in groups:
        owner = getattr(owner, group)
    setattr(owner, leaf, coerce(value, typing.get_type_hints(type(owner))[leaf], path))


def assign_text(config: TrainConfig, assignment: str) -> None:
    """One `key=value` of the command line's --set."""
    key, equals, value = assignment.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set takes key=value, got {assignment!r}; example: --set attack.eps=8/255")
    assign(config, key.strip(), value.strip())


def known_keys() -> list[str]:
    """Every field's path, in the order of the tree."""
    keys: list[str] = []

    def walk(kind: type, prefix: str) -> None:
        hints = typing.get_type_hints(kind)
        for item in dataclasses.fields(kind):
            if dataclasses.is_dataclass(hints[item.name]):
                walk(hints[item.name], f"{prefix}{item.name}.")
            elif item.name != "params":
                keys.append(prefix + item.name)

    walk(TrainConfig, "")
    return keys


def _groups() -> list[str]:
    return sorted({key.rpartition(".")[0] for key in known_keys() if "." in key})


def _method_parameters() -> set[str]:
    from cfol_fast.methods import METHODS

    return {name for method in METHODS.values() for name in method.defaults}


def _resolve_key(key: str) -> str:
    keys = known_keys()
    parameters = sorted(f"params.{name}" for name in _method_parameters())
    if key in keys or key in parameters:
        return key
    matches = [path for path in keys + parameters if path.rpartition(".")[2] == key]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise InputError(f"{key!r} could be {' or '.join(matches)}: give the whole key")
    raise InputError(f"unknown configuration key {key!r}{did_you_mean(key, keys + parameters)}")


def coerce(value: Any, kind: Any, key: str) -> Any:
    """The value as the field's type, or an error that names the key and what it takes."""
    options = typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)
    if value is None or (isinstance(value, str) and value.lower() == "none" and str not in options):
        if type(None) in options:
            return None
        raise InputError(f"{key} needs a value")
    (target,) = (option for option in options if option is not type(None))
    try:
        return _as(value, target)
    except (InputError, ValueError, TypeError):
        raise InputError(
            f"{key} takes {_WORDS.get(target, 'a list of whole numbers')}, got {value!r}"
        ) from None


_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number such as 0.1, 1e-4 or 8/255",
    bool: "true or false",
    str: "text",
}


def _as(value: Any, target: Any) -> Any:
    if target is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false", "1", "0", "yes", "no"):
            return value.lower() in ("true", "1", "yes")
        raise TypeError
    if isinstance(value, bool):
        raise TypeError
    if target is float:
        return parse_number(value) if isinstance(value, str) else float(value)
    if target is int:
        number = parse_number(value) if isinstance(value, str) else value
        if int(number) != number:
            raise ValueError
        return int(number)
    if target is str:
        if isinstance(value, (list, dict)):
            raise TypeError
        return str(value)
    items = value.strip("[]()").split(",") if isinstance(value, str) else value
    return tuple(_as(item, int) for item in items if str(item).strip())
