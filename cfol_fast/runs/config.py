"""The configuration of a run: one tree of typed dataclasses, written to the run folder as `config.json`.

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
from cfol_fast.user_input import did_you_mean, parse_number, parse_parameter, parse_whole, shorten


@dataclass
class DataConfig:
    """The data set, and how its images reach the step."""

    # "auto": what `root` holds, a folder of images or FFCV files; without a root the embedded images, fashion-mini.
    name: str = "auto"
    # The folder with the data set's files; fashion-mini takes none.
    root: str | None = None
    # The share of the training part kept for early stopping, or "test", or "none".
    holdout: str = "0.2"
    # An exponential class profile: the largest class has this many times the images of the smallest.
    imbalance: float | None = None
    # So many of the training images, in each class its share of all: the same ones for every seed. None: all of them.
    images: int | None = None
    download: bool = False
    # For "folder" only: the short side that images of different sizes are stored with.
    size: int | None = None
    # For "folder" only: the digest of its files (data.content.content_of). It names the images wherever they lie; others are refused.
    content: str | None = None
    skip_corrupt: bool = False
    # For folders of image files: the value of white in images with more than 8 bits. None: decided by the largest value of all of them.
    white: float | None = None
    # Where decoded images are kept: "auto" (beside the data), "off", or a folder.
    cache: str = "auto"
    # "none", "crop", "crop-flip" or "paper", what the paper does to this data set. None: "paper" for published data sets, "crop" for
    # images of the user's own. It was true or false once, which are "paper" and "none".
    augment: str | None = None
    # "own": as the data set's row says. "random-resized": a window of random area, shape and place, resampled to the batch's size.
    crop: str = "own"
    # For "random-resized": the smallest share of the image's area, and the largest of width : height and height : width.
    crop_scale: float = 0.08
    crop_ratio: float = 4 / 3
    # For FFCV files: the number of batches drawn ahead of the update.
    lag: int = 1


@dataclass
class ModelConfig:
    """The network."""

    name: str | None = None
    channels_last: bool = True
    # For timm:NAME and torchvision:NAME: start from the weights that the library publishes.
    pretrained: bool = False
    # Weights to start from: a run, a checkpoint of ours, or another project's weights for the same network.
    init: str | None = None
    # For another project's weights that do not say how their images were normalised: "imagenet", "dataset" or "none".
    init_normalize: str | None = None
    # Takes the classes of a checkpoint of ours by position, whatever their names are; otherwise the same names are matched.
    init_by_position: bool = False


@dataclass
class OptimizerConfig:
    """The optimiser and its learning rate, which `cfol_fast.runs.schedules` computes."""

    # "sgd" or "adamw", which transformers need.
    name: str = "sgd"
    lr: float | None = None
    # For "adamw": the decay of the first moment.
    momentum: float = 0.9
    weight_decay: float = 5e-4
    nesterov: bool = False
    # "steps", "one-cycle", "cosine" or "constant".
    schedule: str | None = None
    # For "steps": the epochs at which the rate falls; None: at one half and three quarters of the run.
    milestones: tuple[int, ...] | None = None
    # For "steps": the factor at each milestone.
    decay: float = 0.1
    # For "one-cycle": the share of the run in which the rate climbs.
    warmup: float = 0.3


@dataclass
class AttackConfig:
    """The attack of the training step."""

    # "pgd", "trades", "fgsm", "n-fgsm" or "none"; None: the method's own.
    kind: str | None = None
    eps: float | None = None
    step: float | None = None
    # None: the attack's own number, 7 for "pgd", 10 for "trades", 1 for the two single-step attacks.
    steps: int | None = None
    norm: str = "linf"
    random_start: bool = True


@dataclass
class ValidationConfig:
    """The hold-out is tested after every so many epochs, with PGD of so many steps of size 2.5 * eps / steps."""

    every: int = 1
    steps: int = 10


@dataclass
class TestConfig:
    """The attack of the final test: PGD. eps follows the training attack, step is 2.5 * eps / steps."""

    # pytest would take the class for a test because of its name.
    __test__ = False

    eps: float | None = None
    step: float | None = None
    steps: int = 20
    batch_size: int = 250


@dataclass
class EmaConfig:
    """An exponential moving average of the weights, validated, kept and tested beside the trained ones. FAWA: 0.88, "epoch", 0.2."""

    # 0: no average.
    decay: float = 0.0
    # The weights are taken after every "step" or every "epoch".
    per: str = "step"
    # They are taken only while the worst class of the hold-out is at least this accurate under attack.
    gate: float = 0.0


@dataclass
class CheckpointConfig:
    """A run saves after each epoch, and also after every so many steps or seconds."""

    steps: int | None = None
    seconds: float | None = None


@dataclass
class TrainConfig:
    """Everything that a run is a function of, and where it is carried out."""

    method: str = "cfol"
    # The method's own parameters: eta, gamma, alpha, ...
    params: dict[str, Any] = field(default_factory=dict)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    attack: AttackConfig = field(default_factory=AttackConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    test: TestConfig = field(default_factory=TestConfig)
    ema: EmaConfig = field(default_factory=EmaConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    epochs: int | None = None
    batch_size: int = 128
    # Into how many parts a batch is divided for BatchNorm and gradients. None: as many as there are processes at the start.
    shards: int | None = None
    # "shard": BatchNorm sees a shard. "sync": torch's SyncBatchNorm, on GPUs with one shard for each process.
    batchnorm: str = "shard"
    # The share of every label that is spread evenly over all classes.
    label_smoothing: float = 0.0
    # Adversarial weight perturbation: how far each layer is moved, as a share of its norm. 0: not at all; the authors take 0.005.
    awp: float = 0.0
    # None: as many as it takes to draw as many images as the training part has.
    steps_per_epoch: int | None = None
    seed: int = 0
    device: str = "auto"
    # "float32", "tf32" or "bfloat16"; "auto" is settled when the run is created.
    precision: str = "auto"
    compile: bool = False
    # On a GPU: the whole step is captured once and replayed.
    graph: bool = False
    # On a GPU: only kernels that give the same result every time, no TF32.
    deterministic: bool = False
    # The number of members kept for the ensemble of the paper's Theorem 1.
    ensemble: int = 0
    # The run folder.
    out: str | None = None


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
    if path == "data.augment":
        value = augmentation_word(value)
    owner: Any = config
    *groups, leaf = path.split(".")
    for group in groups:
        owner = getattr(owner, group)
    setattr(owner, leaf, coerce(value, typing.get_type_hints(type(owner))[leaf], path))


def augmentation_word(value: Any) -> Any:
    """`data.augment` as a word, where an older file or program says true or false."""
    try:
        return "paper" if _as(value, bool) else "none"
    except TypeError:
        return value


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
    except (InputError, ValueError, TypeError, OverflowError):
        raise InputError(
            f"{key} takes {_WORDS.get(target, 'a list of whole numbers')}, got {shorten(value)}"
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
        if isinstance(value, str) and value.lower() in ("true", "false", "1", "0", "yes", "no", "on", "off"):
            return value.lower() in ("true", "1", "yes", "on")
        raise TypeError
    if isinstance(value, bool):
        raise TypeError
    if target is float:
        return parse_number(value) if isinstance(value, str) else float(value)
    if target is int:
        number = parse_whole(value) if isinstance(value, str) else value
        if int(number) != number:
            raise ValueError
        return int(number)
    if target is str:
        if not isinstance(value, str | int | float):
            raise TypeError
        return str(value)
    items = value.strip("[]()").split(",") if isinstance(value, str) else value
    return tuple(_as(item, int) for item in items if str(item).strip())
