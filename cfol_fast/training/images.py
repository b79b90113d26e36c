"""The images of a run: read, divided into training, hold-out and test, and put where the run computes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cfol_fast import data, ops
from cfol_fast.data.beton import open_beton
from cfol_fast.data.images import Images
from cfol_fast.data.source import Source, TrainingSource
from cfol_fast.errors import InputError
from cfol_fast.models.spec import ModelSpec
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.defaults import holdout_fraction


@dataclass
class RunImages:
    """What a run trains, validates and tests on, and the network that fits these images.

    labels: of the training images, on the CPU, in the order of the sampler's indices.
    validation: None with --holdout none. validation_split: "holdout", or "test" when the test set serves as one.
    """

    classes: list[str]
    train: TrainingSource
    labels: Tensor
    validation: Source | None
    validation_split: str
    test: Source
    spec: ModelSpec


def load_images(config: TrainConfig) -> RunImages:
    """Reads the data set and divides its training part."""
    wanted, device = config.data, torch.device(config.device)
    found = data.load(
        wanted.name,
        root=wanted.root,
        download=wanted.download,
        imbalance=wanted.imbalance,
        seed=config.seed,
        size=wanted.size,
        skip_corrupt=wanted.skip_corrupt,
    )
    if wanted.images is not None:
        part = data.stratified(found.train.labels, wanted.images)
        found = dataclasses.replace(found, train=found.train.subset(part))
    height, width = found.size
    if height != width:
        raise InputError(f"the models take square images, {wanted.name} has {height}x{width}")

    def source_of(images: Images, augment: ops.Augment | None = None) -> TrainingSource:
        return data.source_of(images, wanted.lag, augment, **options)

    options: dict[str, Any] = {
        "size": found.size,
        "device": device,
        "channels_last": config.model.channels_last,
        "seed": config.seed,
    }
    training_rows, validation = None, None
    test = source_of(found.test)
    fraction = holdout_fraction(wanted.holdout)
    if fraction is not None:
        training_rows, held_out = data.holdout(found.train.labels, fraction, config.seed)
        validation = source_of(found.train.subset(held_out))
    elif wanted.holdout == "test":
        validation = test
    images = found.train if training_rows is None else found.train.subset(training_rows)
    augment = found.augment if wanted.augment else None
    train: TrainingSource
    if wanted.source == "ffcv":
        file = open_beton(wanted.beton or "")
        written_labels = torch.from_numpy(file.labels)
        if file.description["classes"] != found.classes or not torch.equal(
            written_labels, found.train.labels
        ):
            raise InputError(
                f"{wanted.beton} was not written from the training part of {wanted.name}: labels or classes differ; "
                "write it with cfol-fast data to-ffcv and the same --dataset, --imbalance and --seed"
            )
        train = data.FFCVSource(file, wanted.lag, augment=augment, subset=training_rows, **options)
    else:
        train = source_of(images, augment)
    return RunImages(
        classes=list(found.classes),
        train=train,
        labels=images.labels,
        validation=validation,
        validation_split="test" if wanted.holdout == "test" else "holdout",
        test=test,
        spec=ModelSpec(
            name=config.model.name or "",
            num_classes=len(found.classes),
            image_size=height,
            in_channels=found.channels,
            mean=tuple(found.mean),
            std=tuple(found.std),
        ),
    )
