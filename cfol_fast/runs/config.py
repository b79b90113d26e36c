"""The configuration of a run: one tree of typed, frozen dataclasses, kept as `config.json`.

Each setting says here, or in its group (`runs.setting_groups`), all that there is to say of it (`runs.spec`).
What the user sets is a plain mapping, `{"attack": {"eps": "8/255"}}` or `{"attack.eps": 8 / 255}`, as Python,
a TOML file, the options and `--set` give it. Such layers are merged, and each value is checked, in
`runs.open_settings`. `TrainConfig(...)` fills in the rest (`runs.defaults`) and checks the rules between
settings (`runs.rules`). It is complete, and nothing changes it afterwards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cfol_fast.runs.setting_groups import (
    NOT_ALL,
    SHARE,
    STEPS,
    AttackConfig,
    CheckpointConfig,
    DataConfig,
    EmaConfig,
    ModelConfig,
    OptimizerConfig,
    TestConfig,
    ValidationConfig,
)
from cfol_fast.runs.spec import (
    OPEN,
    Parameters,
    Setting,
    fill,
    refuses_assignment,
    setting,
    settings_of,
    words_of,
)
from cfol_fast.user_input import COUNT, SEED, Range


@refuses_assignment
@dataclass(frozen=True, kw_only=True, init=False)
class TrainConfig:
    """Everything that a run is a function of, and where it is carried out."""

    method: str = setting(
        "cfol", option="METHOD", help="erm, cfol, lcvar, ...; --list-methods shows them all"
    )
    params: Parameters = setting(
        factory=Parameters,
        help="the method's own parameters: params.eta, params.gamma, ...; --list-methods shows them with "
        "their defaults",
    )
    data: DataConfig
    model: ModelConfig
    optimizer: OptimizerConfig
    attack: AttackConfig
    validation: ValidationConfig
    test: TestConfig
    ema: EmaConfig
    checkpoint: CheckpointConfig
    epochs: int = setting(
        OPEN,
        limits=COUNT,
        option="--epochs N",
        help="default: 200 as in the paper, 12 for fashion-mini, 30 for images of your own",
    )
    batch_size: int = setting(
        128, limits=COUNT, option="--batch-size N", help="of all processes together (default: 128)"
    )
    shards: int = setting(
        OPEN,
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
    out: str = setting(
        OPEN,
        option="--out RUN",
        incidental=True,
        help="the run folder (default: runs/DATASET-METHOD-seedS)",
    )

    def __init__(self, *layers: Mapping[str, Any], **settings: Any) -> None:
        """The complete configuration of open settings: TrainConfig(method="erm", attack={"steps": 1}).

        layers: mappings of settings, nested or by their paths. A later layer wins, and the keywords win over
        all. None stands for a setting that follows others again.
        """
        # Here, since --help reads the settings without torch.
        from cfol_fast.runs.defaults import resolved
        from cfol_fast.runs.open_settings import merged
        from cfol_fast.runs.rules import check

        given = merged(*layers, settings)
        self._set(resolved(given), given)
        check(self, given)

    @classmethod
    def recorded(cls, tree: Mapping[str, Any]) -> TrainConfig:
        """A configuration as config.json has it: complete, and of the machine that wrote it."""
        from cfol_fast.runs.open_settings import merged, with_defaults

        given = merged(tree)
        config = object.__new__(cls)
        config._set(with_defaults(given), given)
        return config

    def replace(self, *layers: Mapping[str, Any], **settings: Any) -> TrainConfig:
        """Another one, with other settings. What the user gave stays, and what follows them follows."""
        return TrainConfig(self.given, *layers, settings)

    def with_settled(self, values: Mapping[str, Any]) -> TrainConfig:
        """The same run with these values, by path, as they are: nothing follows or is checked again."""
        config = object.__new__(TrainConfig)
        config._set({**by_path(self), **values}, self.given)
        return config

    @property
    def given(self) -> dict[str, Any]:
        """What the user set, by path."""
        found: dict[str, Any] = self.__dict__["_given"]
        return dict(found)

    def _set(self, values: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        fill(self, values)
        object.__setattr__(self, "_given", dict(given))


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """Plain dicts, lists and numbers, ready for JSON."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value

    tree: dict[str, Any] = plain(dataclasses.asdict(config))
    return tree


def by_path(config: TrainConfig) -> dict[str, Any]:
    """Every value by its setting's path; `params` is one of them."""
    found: dict[str, Any] = {}
    for key in settings():
        value: Any = config
        for name in key.split("."):
            value = getattr(value, name)
        found[key] = value
    return found


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested tables by their paths: `attack.eps`."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def settings() -> dict[str, Setting]:
    """Every setting by its path, in the order of the tree, with all that its field says of it."""
    return settings_of(TrainConfig)
