"""From a configuration to the parts of the step: data, model, sampler, attack, objective, optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast import attacks, data, methods, theory
from cfol_fast.errors import InputError
from cfol_fast.machine import bfloat16_trouble
from cfol_fast.models.spec import ModelSpec
from cfol_fast.runs.config import OptimizerConfig, TrainConfig
from cfol_fast.runs.defaults import holdout_fraction
from cfol_fast.training.step import DrawQueue, TrainingStep


@dataclass
class Splits:
    """Where the images of a run come from. `validation` is None with --holdout none."""

    classes: list[str]
    source: Any  # yields the training batches
    labels: Tensor  # of the training part, in the order of the sampler's indices
    rows: Tensor | None  # the source's row of each sampler index, where the two differ
    validation: Any | None
    validation_split: str
    test: Any
    spec: ModelSpec


@dataclass
class Parts:
    splits: Splits
    model: nn.Module
    queue: DrawQueue
    step: TrainingStep
    steps_per_epoch: int
    reservoir: theory.IterateReservoir | None  # the ensemble of Theorem 1, when it is asked for


def build(config: TrainConfig, previous: Tensor | None = None) -> Parts:
    """Everything a run is made of, on its device, seeded. previous: (k,) robust accuracies of the stage before."""
    device = torch.device(config.device)
    if config.precision == "bfloat16" and (trouble := bfloat16_trouble(device)):
        raise InputError(trouble)
    splits = load_splits(config, device)
    model = new_model(splits.spec, config, device)
    method, k = methods.get(config.method), len(splits.classes)
    steps_per_epoch = config.steps_per_epoch or max(1, round(len(splits.labels) / config.batch_size))
    steps = steps_per_epoch * (config.epochs or 0)
    sampler = method.sampler(splits.labels, k, config.params, config.seed, device, previous, steps)
    step = TrainingStep(
        model,
        training_attack(model, config),
        method.objective(config.params, k),
        new_optimizer(model, config.optimizer, device),
        sampler,
        k,
        device,
        config.precision,
        config.compile,
    )
    queue = DrawQueue(sampler, config.batch_size, splits.rows)
    reservoir = theory.IterateReservoir(config.ensemble, config.seed) if config.ensemble else None
    return Parts(splits, model, queue, step, steps_per_epoch, reservoir)


def new_model(spec: ModelSpec, config: TrainConfig, device: torch.device) -> nn.Module:
    """The network with its seeded start, in training mode."""
    torch.manual_seed(config.seed)
    model = spec.create().to(device)
    if config.model.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model.train()


def new_optimizer(model: nn.Module, chosen: OptimizerConfig, device: torch.device) -> torch.optim.SGD:
    """SGD in one op and one pass over memory on the CPU; on a GPU in the few ops of `foreach`, as torch does by itself."""
    return torch.optim.SGD(
        model.parameters(),
        lr=chosen.lr or 0.0,
        momentum=chosen.momentum,
        weight_decay=chosen.weight_decay,
        nesterov=chosen.nesterov,
        fused=device.type == "cpu",
        foreach=device.type != "cpu",
    )


def training_attack(model: nn.Module, config: TrainConfig) -> Any:
    """The attack of the training step, with its own random state."""
    chosen = config.attack
    if chosen.kind == "none":
        return attacks.create("none", model)
    params: dict[str, Any] = {"eps": chosen.eps, "norm": chosen.norm, "seed": config.seed}
    if chosen.kind in ("pgd", "trades"):
        params |= {"step": chosen.step, "steps": chosen.steps, "random_start": chosen.random_start}
        params |= {"dtype": torch.bfloat16 if config.precision == "bfloat16" else None}
    return attacks.create(str(chosen.kind), model, **params)


def load_splits(config: TrainConfig, device: torch.device) -> Splits:
    """Reads the data set and divides its training part."""
    wanted = config.data
    bundle = data.load(
        wanted.name,
        root=wanted.root,
        download=wanted.download,
        imbalance=wanted.imbalance,
        seed=config.seed,
        size=wanted.size,
        skip_corrupt=wanted.skip_corrupt,
    )
    height, width = bundle.size
    if height != width:
        raise InputError(f"the models take square images, {wanted.name} has {height}x{width}")
    fraction = holdout_fraction(wanted.holdout)

    def resident(images: data.ImageSet, augment: Any = None) -> data.ResidentSource:
        return data.ResidentSource(
            images,
            size=bundle.size,
            augment=augment,
            device=device,
            channels_last=config.model.channels_last,
            seed=config.seed,
        )

    kept, held = (
        (None, None) if fraction is None else data.holdout(bundle.train.labels, fraction, config.seed)
    )
    train = bundle.train if kept is None else bundle.train.subset(kept)
    test = resident(bundle.test)
    validation = (
        test if wanted.holdout == "test" else None if held is None else resident(bundle.train.subset(held))
    )
    augment = bundle.augment if wanted.augment else None
    source: Any
    if wanted.source == "ffcv":
        source, rows = ffcv_source(config, bundle, augment, device), kept
    else:
        source, rows = resident(train, augment), None
    return Splits(
        classes=list(bundle.classes),
        source=source,
        labels=train.labels,
        rows=None if rows is None else rows.to(device),
        validation=validation,
        validation_split="test" if wanted.holdout == "test" else "holdout",
        test=test,
        spec=ModelSpec(
            name=config.model.name or "",
            num_classes=len(bundle.classes),
            image_size=height,
            in_channels=bundle.channels,
            mean=tuple(bundle.mean),
            std=tuple(bundle.std),
        ),
    )


def ffcv_source(
    config: TrainConfig, bundle: data.ImageData, augment: Any, device: torch.device
) -> data.FFCVSource:
    """The training part from its FFCV file, which must hold the same images in the same order as the data set."""
    source = data.FFCVSource(
        config.data.beton or "",
        lag=config.data.lag,
        size=bundle.size,
        augment=augment,
        device=device,
        channels_last=config.model.channels_last,
        seed=config.seed,
    )
    if source.classes != list(bundle.classes) or not torch.equal(source.labels.cpu(), bundle.train.labels):
        raise InputError(
            f"{config.data.beton} was not written from the training part of {config.data.name}: labels or classes differ; "
            "write it with cfol-fast data to-ffcv and the same --dataset, --imbalance and --seed"
        )
    return source
