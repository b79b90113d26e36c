"""The groups of settings: `data`, `model`, `optimizer`, `attack`, ... Each field is all of a setting.

A setting that says OPEN follows the data set, the method or another setting: `cfol_fast.runs.defaults`.
"""

from __future__ import annotations

from dataclasses import dataclass

from cfol_fast.runs.spec import OPEN, refuses_assignment, setting, words_of
from cfol_fast.user_input import COUNT, WHITE, Range

# The limits are far beyond what is used. What lies outside is a slip (`--eps 8` for 8/255) or an attack on
# the machine.
STEPS = Range(1, 1_000_000_000)
ATTACK_STEPS = Range(1, 100_000)
# In linf a radius is at most 1 (`rules.check_radius`).
RADIUS = Range(0, 1e4, whole=False)
AVERAGED = Range(0, 0.99999, whole=False)
SHARE = Range(0, 1, whole=False)
MORE_THAN_NOTHING = Range(0, 1, whole=False, above=True)
NOT_ALL = Range(0, 0.999, whole=False)
NORMALISATIONS = ("imagenet", "dataset", "none")


@refuses_assignment
@dataclass(frozen=True, kw_only=True)
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
        OPEN,
        option="--holdout PART",
        help="images for early stopping: a share of the training images; 'val', the folder val/ or "
        "validation/ beside test/; another folder; 'test', as in some of the paper's tables; 'none' keeps "
        "the last epoch "
        "(default: val where a folder of images has val/ and test/, else 0.2)",
    )
    holdout_groups: str | None = setting(
        None,
        option="--holdout-groups RULE",
        help="for a folder of images: which images belong together, so that no hold-out divides them; a "
        "regular expression, found in the path <class>/<name>, whose parentheses hold the group, or FILE.csv "
        "with the columns path and group",
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
    augment: str = setting(
        OPEN,
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
    source: str = setting(
        "auto",
        choices=words_of("cfol_fast.data.stream.choice", "SOURCES"),
        option="--source KIND",
        help="where a folder's pixels come from. resident: decoded into memory before the run; stream: "
        "decoded while it goes on; beton: from FFCV files; auto: resident, or stream with data.lag=0 where "
        "they do not fit (default: auto)",
    )
    decode: str = setting(
        "whole",
        choices=words_of("cfol_fast.data.decoders", "WAYS"),
        help="for data.source=stream. whole: the pixels of data.source=resident; scaled: JPEG files at a "
        "smaller scale, faster and with other pixels; nvjpeg: on the GPU, with other pixels",
    )
    lag: int = setting(
        1,
        limits=Range(0, 1000),
        help="for FFCV files and data.source=stream: the number of batches drawn ahead of the update",
    )


@refuses_assignment
@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The network."""

    name: str = setting(
        OPEN,
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
    freeze: str | None = setting(
        None,
        option="--freeze REGEX",
        help="parameters in whose names this regular expression is found stay as they are, and so do the "
        "statistics of their BatchNorm layers",
    )


@refuses_assignment
@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimiser and its learning rate, which `cfol_fast.runs.schedules` computes."""

    name: str = setting(
        "sgd",
        choices=words_of("cfol_fast.runs.optimizers", "OPTIMIZERS"),
        help="the optimiser; transformers need adamw",
    )
    lr: float = setting(
        OPEN,
        limits=Range(0, 1e30, whole=False, above=True),
        option="--lr RATE",
        help="peak learning rate (default: 0.1; fashion-mini 0.05; images of your own 0.05, or 0.02 for "
        "demo-cnn and vgg16)",
    )
    head_lr: float | None = setting(
        None,
        limits=Range(0, 1e30, whole=False, above=True),
        help="peak learning rate of the last linear layer, which makes the logits; it follows the same "
        "schedule (default: that of all others)",
    )
    momentum: float = setting(0.9, limits=AVERAGED, help="of sgd; for adamw the decay of the first moment")
    weight_decay: float = setting(
        5e-4, limits=Range(0, 1e3, whole=False), help="how strongly weights are drawn to 0"
    )
    nesterov: bool = setting(False, help="for sgd: Nesterov's momentum")
    schedule: str = setting(
        OPEN,
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


@refuses_assignment
@dataclass(frozen=True, kw_only=True)
class AttackConfig:
    """The attack of the training step."""

    kind: str = setting(
        OPEN,
        choices=words_of("cfol_fast.attacks", "KINDS"),
        help="the attack of the training step (default: the method's)",
    )
    eps: float = setting(
        OPEN,
        limits=RADIUS,
        option="--eps EPS",
        help="radius of the attack, such as 8/255 (default; fashion-mini 0.1)",
    )
    step: float = setting(
        OPEN,
        limits=RADIUS,
        help="the size of a step (default: eps/4; 2.5 eps/7 for fashion-mini; 1.25 eps for fgsm, eps for "
        "n-fgsm)",
    )
    steps: int = setting(
        OPEN,
        limits=ATTACK_STEPS,
        help="the number of steps (default: 7 for pgd, 10 for trades, 1 for fgsm and n-fgsm)",
    )
    norm: str = setting(
        "linf",
        choices=words_of("cfol_fast.ops.pgd", "NORMS"),
        help="the norm in which eps is measured",
    )
    random_start: bool = setting(True, help="begin at a random point within eps of the image")


@refuses_assignment
@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """How the hold-out is tested during a run: with PGD."""

    every: int = setting(1, limits=COUNT, help="the hold-out is tested after every so many epochs")
    steps: int = setting(
        10, limits=ATTACK_STEPS, help="the steps of the hold-out's PGD, of size 2.5 * eps / steps"
    )


@refuses_assignment
@dataclass(frozen=True, kw_only=True)
class TestConfig:
    """The attack of the final test: PGD."""

    # pytest would take the class for a test because of its name.
    __test__ = False

    eps: float = setting(OPEN, limits=RADIUS, help="the radius of the final test (default: attack.eps)")
    step: float = setting(OPEN, limits=RADIUS, help="the size of its steps (default: 2.5 * eps / steps)")
    steps: int = setting(20, limits=ATTACK_STEPS, help="the number of its steps")
    batch_size: int = setting(250, limits=COUNT, incidental=True, help="how many images are tested at once")


@refuses_assignment
@dataclass(frozen=True, kw_only=True)
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


@refuses_assignment
@dataclass(frozen=True, kw_only=True)
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
