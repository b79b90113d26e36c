"""The configuration of a run: one tree of typed dataclasses, written to the run folder as `config.json`.

Each setting says here all that there is to say of it (`cfol_fast.runs.spec`). The command line, a TOML file,
`--set key=value` and Python all set the same fields (`assign`). A field left at None follows the data set or
the method (`cfol_fast.runs.defaults`); the file in the run folder has every value filled in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cfol_fast.errors import InputError
from cfol_fast.runs.spec import Setting, setting, settings_of, words_of
from cfol_fast.runs.toml_files import read_toml
from cfol_fast.user_input import (
    COUNT,
    SEED,
    WHITE,
    Range,
    did_you_mean,
    parse_number,
    parse_parameter,
    parse_whole,
    shorten,
)

# The limits are far beyond what is used. What lies outside is a slip (`--eps 8` for 8/255) or an attack on
# the machine.
STEPS = Range(1, 1_000_000_000)
ATTACK_STEPS = Range(1, 100_000)
# In linf a radius is at most 1 (`limits.check_radius`).
RADIUS = Range(0, 1e4, whole=False)
AVERAGED = Range(0, 0.99999, whole=False)
SHARE = Range(0, 1, whole=False)
MORE_THAN_NOTHING = Range(0, 1, whole=False, above=True)
NOT_ALL = Range(0, 0.999, whole=False)
NORMALISATIONS = ("imagenet", "dataset", "none")


@dataclass
class DataConfig:
    """The data set, and how its images reach the step."""

    name: str = setting(
        "auto",
        option="--dataset NAME",
        help="fashion-mini (embedded), fashion-mnist, cifar10, cifar100, stl10, tiny-imagenet, imagenette, "
        "folder, beton (default: folder or beton, as --data is; without --data fashion-mini)",
    )
    root: str | None = setting(
        None, option="--data DIR", incidental=True, help="the folder with the data set's files"
    )
    holdout: str = setting(
        "0.2",
        option="--holdout SHARE",
        help="part of the training images for early stopping; 'test' uses the test set, as some of the "
        "paper's tables do, 'none' keeps the last epoch (default: 0.2)",
    )
    imbalance: float | None = setting(
        None,
        limits=Range(1, 1e6, whole=False),
        option="--imbalance FACTOR",
        help="thin the classes exponentially: the largest has FACTOR times the smallest",
    )
    images: int | None = setting(
        None,
        limits=Range(1, 1e9),
        help="so many of the training images, in each class its share of all; the same ones for every seed "
        "(default: all of them)",
    )
    download: bool = setting(
        False, option="--download", incidental=True, help="fetch the data set if it is missing"
    )
    size: int | None = setting(
        None,
        limits=Range(1, 4096),
        help="for a folder of images: the short side that images of different sizes are stored with",
    )
    content: str | None = setting(
        None,
        help="for a folder of images: the digest of its files. It names the images wherever they lie; "
        "others are refused",
    )
    skip_corrupt: bool = setting(
        False, help="for a folder of images: leave out images that cannot be decoded, and count them"
    )
    white: float | None = setting(
        None,
        limits=WHITE,
        help="for a folder of images: the value of white in images with more than 8 bits (default: decided "
        "by the largest value of all of them)",
    )
    cache: str = setting(
        "auto",
        incidental=True,
        help="where decoded images are kept: auto (beside the data), off, or a folder",
    )
    # It was true or false once, which are "paper" and "none".
    augment: str | None = setting(
        None,
        choices=words_of("cfol_fast.data.registry", "AUGMENTATIONS"),
        option="--augment KIND",
        help="of the training images: none; crop: a window of the padded image; crop-flip: mirrored too; "
        "paper: what the paper does to the data set (default: crop for images of your own, else paper)",
    )
    crop: str = setting(
        "own",
        choices=("own", "random-resized"),
        option="--crop KIND",
        help="random-resized: what ImageNet training does, for large images (data.crop_scale, "
        "data.crop_ratio); own: the data set's (default: own)",
    )
    crop_scale: float = setting(
        0.08,
        limits=MORE_THAN_NOTHING,
        help="for random-resized: the smallest share of the image's area",
    )
    crop_ratio: float = setting(
        4 / 3,
        limits=Range(1, 100, whole=False),
        help="for random-resized: the largest of width : height and of height : width",
    )
    lag: int = setting(
        1, limits=Range(0, 1000), help="for FFCV files: the number of batches drawn ahead of the update"
    )


@dataclass
class ModelConfig:
    """The network."""

    name: str | None = setting(
        None,
        option="--model NAME",
        help="for small images: resnet18 (34, 50, 101, 152), preact-resnet18, wrn-34-10 (any depth and "
        "width), vgg16, demo-cnn; resnet18@0.25 has a quarter of the width; torchvision:NAME, timm:NAME, or "
        "your own package.module:factory (default: the data set's)",
    )
    channels_last: bool = setting(True, help="keep the channels of an image side by side in memory")
    pretrained: bool = setting(
        False,
        option="--pretrained",
        help="start from the weights that torchvision or timm publish, with their normalisation and, for a "
        "folder of images, their size",
    )
    init: str | None = setting(
        None,
        option="--init CHECKPOINT",
        help="start from these weights: a run, a checkpoint, or another project's weights",
    )
    init_normalize: str | None = setting(
        None,
        choices=NORMALISATIONS,
        help="with --init: how the images of another project's weights were normalised, where its file does "
        "not say",
    )
    init_by_position: bool = setting(
        False,
        option="--classes-by-position",
        help="with --init: take a checkpoint's first class for the data's first, whatever their names are",
    )


@dataclass
class OptimizerConfig:
    """The optimiser and its learning rate, which `cfol_fast.runs.schedules` computes."""

    name: str = setting("sgd", choices=("sgd", "adamw"), help="the optimiser; transformers need adamw")
    lr: float | None = setting(
        None,
        limits=Range(0, 1e30, whole=False, above=True),
        option="--lr RATE",
        help="peak learning rate (default: 0.1; fashion-mini 0.05; images of your own 0.05, or 0.02 for "
        "demo-cnn and vgg16)",
    )
    momentum: float = setting(0.9, limits=AVERAGED, help="of sgd; for adamw the decay of the first moment")
    weight_decay: float = setting(
        5e-4, limits=Range(0, 1e3, whole=False), help="how strongly weights are drawn to 0"
    )
    nesterov: bool = setting(False, help="for sgd: Nesterov's momentum")
    schedule: str | None = setting(
        None,
        choices=("steps", "one-cycle", "cosine", "constant"),
        help="how the learning rate changes (default: steps; one-cycle for fashion-mini and images of your "
        "own)",
    )
    milestones: tuple[int, ...] | None = setting(
        None,
        limits=Range(0, 1_000_000),
        help="for steps: the epochs at which the rate falls (default: at one half and three quarters of the "
        "run)",
    )
    decay: float = setting(0.1, limits=MORE_THAN_NOTHING, help="for steps: the factor at each milestone")
    warmup: float = setting(
        0.3, limits=NOT_ALL, help="for one-cycle: the share of the run in which the rate climbs"
    )


@dataclass
class AttackConfig:
    """The attack of the training step."""

    kind: str | None = setting(
        None,
        choices=words_of("cfol_fast.attacks", "KINDS"),
        help="the attack of the training step (default: the method's)",
    )
    eps: float | None = setting(
        None,
        limits=RADIUS,
        option="--eps EPS",
        help="radius of the attack, such as 8/255 (default; fashion-mini 0.1)",
    )
    step: float | None = setting(
        None,
        limits=RADIUS,
        help="the size of a step (default: eps/4; 2.5 eps/7 for fashion-mini; 1.25 eps for fgsm, eps for "
        "n-fgsm)",
    )
    steps: int | None = setting(
        None,
        limits=ATTACK_STEPS,
        help="the number of steps (default: 7 for pgd, 10 for trades, 1 for fgsm and n-fgsm)",
    )
    norm: str = setting(
        "linf",
        choices=words_of("cfol_fast.ops.pgd", "NORMS"),
        help="the norm in which eps is measured",
    )
    random_start: bool = setting(True, help="begin at a random point within eps of the image")


@dataclass
class ValidationConfig:
    """How the hold-out is tested during a run: with PGD."""

    every: int = setting(1, limits=COUNT, help="the hold-out is tested after every so many epochs")
    steps: int = setting(
        10, limits=ATTACK_STEPS, help="the steps of the hold-out's PGD, of size 2.5 * eps / steps"
    )


@dataclass
class TestConfig:
    """The attack of the final test: PGD."""

    # pytest would take the class for a test because of its name.
    __test__ = False

    eps: float | None = setting(
        None, limits=RADIUS, help="the radius of the final test (default: attack.eps)"
    )
    step: float | None = setting(
        None, limits=RADIUS, help="the size of its steps (default: 2.5 * eps / steps)"
    )
    steps: int = setting(20, limits=ATTACK_STEPS, help="the number of its steps")
    batch_size: int = setting(250, limits=COUNT, incidental=True, help="how many images are tested at once")


@dataclass
class EmaConfig:
    """An exponential moving average of the weights, validated, kept and tested beside the trained ones."""

    decay: float = setting(
        0.0,
        limits=AVERAGED,
        option="--ema DECAY",
        help="also keep a moving average of the weights, such as 0.999, validated and tested beside them; "
        "--set ema.per=epoch and ema.gate=0.2 make it FAWA with 0.88 (default: 0, none)",
    )
    per: str = setting(
        "step", choices=("step", "epoch"), help="the weights are taken after every step or every epoch"
    )
    gate: float = setting(
        0.0,
        limits=SHARE,
        help="they are taken only while the worst class of the hold-out is at least this accurate under "
        "attack",
    )


@dataclass
class CheckpointConfig:
    """A run saves after each epoch, and also after every so many steps or seconds."""

    steps: int | None = setting(
        None, limits=STEPS, incidental=True, help="save also after every so many steps"
    )
    seconds: float | None = setting(
        None,
        limits=Range(0, 1e9, whole=False),
        incidental=True,
        help="save also after every so many seconds",
    )


@dataclass
class TrainConfig:
    """Everything that a run is a function of, and where it is carried out."""

    method: str = setting(
        "cfol", option="METHOD", help="erm, cfol, lcvar, ...; --list-methods shows them all"
    )
    params: dict[str, Any] = setting(
        factory=dict,
        help="the method's own parameters: params.eta, params.gamma, ...; --list-methods shows them with "
        "their defaults",
    )
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    attack: AttackConfig = field(default_factory=AttackConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    test: TestConfig = field(default_factory=TestConfig)
    ema: EmaConfig = field(default_factory=EmaConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    epochs: int | None = setting(
        None,
        limits=COUNT,
        option="--epochs N",
        help="default: 200 as in the paper, 12 for fashion-mini, 30 for images of your own",
    )
    batch_size: int = setting(
        128, limits=COUNT, option="--batch-size N", help="of all processes together (default: 128)"
    )
    shards: int | None = setting(
        None,
        limits=COUNT,
        option="--shards N",
        help="divide a batch into N parts for BatchNorm and gradients; the processes of torchrun must "
        "divide N (default: their number)",
    )
    batchnorm: str = setting(
        "shard",
        choices=("shard", "sync"),
        option="--batchnorm KIND",
        help="shard: BatchNorm sees a shard; sync: torch's SyncBatchNorm, on GPUs with one shard for each "
        "process (default: shard)",
    )
    label_smoothing: float = setting(
        0.0, limits=NOT_ALL, help="the share of every label that is spread evenly over all classes"
    )
    awp: float = setting(
        0.0,
        limits=SHARE,
        help="adversarial weight perturbation: how far each layer is moved, as a share of its norm; the "
        "authors take 0.005",
    )
    steps_per_epoch: int | None = setting(
        None,
        limits=STEPS,
        help="the steps of an epoch (default: as many as it takes to draw as many images as the training "
        "part has)",
    )
    seed: int = setting(0, limits=SEED, option="--seed S", help="default: 0")
    device: str = setting(
        "auto", option="--device DEV", incidental=True, help="auto, cpu, cuda, cuda:1 (default: auto)"
    )
    precision: str = setting(
        "auto",
        choices=lambda: ("auto", *words_of("cfol_fast.machine", "PRECISIONS")()),
        option="--precision KIND",
        help="float32, tf32, bfloat16 or auto: tf32 on a GPU that has it, else float32 (default: auto)",
    )
    compile: bool = setting(False, option="--compile", incidental=True, help="use torch.compile")
    graph: bool = setting(
        False,
        option="--graph on|off",
        incidental=True,
        help="on a GPU: capture the whole step as a CUDA graph and replay it; make test-gpu tells whether "
        "it pays (default: off)",
    )
    deterministic: bool = setting(
        False,
        option="--deterministic",
        incidental=True,
        help="on a GPU: only kernels that repeat their result bit for bit, without TF32; slower",
    )
    ensemble: int = setting(
        0,
        limits=Range(0, 10_000),
        option="--ensemble N",
        help="keep N members drawn from all steps, for the guarantee of the paper's Theorem 1",
    )
    out: str | None = setting(
        None,
        option="--out RUN",
        incidental=True,
        help="the run folder (default: runs/DATASET-METHOD-seedS)",
    )


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

    Text is read as the field's type; `8/255` is a number. `params.eta`, or `eta` alone, are the method's
    parameters; whether the method has them is checked when the run starts, since the method may be set later.
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
    setattr(owner, leaf, coerce(value, settings()[path]))


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


def settings() -> dict[str, Setting]:
    """Every setting by its path, in the order of the tree, with all that its field says of it."""
    return settings_of(TrainConfig)


def known_keys() -> list[str]:
    """Every field's path, in the order of the tree."""
    return [key for key in settings() if key != "params"]


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


def coerce(value: Any, chosen: Setting) -> Any:
    """The value as the setting's type, or an error that names the key and what it takes."""
    if value is None or (isinstance(value, str) and value.lower() == "none" and chosen.kind is not str):
        if chosen.is_open:
            return None
        raise InputError(f"{chosen.key} needs a value")
    try:
        return _as(value, chosen.kind)
    except (InputError, ValueError, TypeError, OverflowError):
        wanted = _WORDS.get(chosen.kind, "a list of whole numbers")
        raise InputError(f"{chosen.key} takes {wanted}, got {shorten(value)}") from None


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
