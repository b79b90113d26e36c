"""The images of a run: read, divided into training, hold-out and test, and put where the run computes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cfol_fast import data, models, ops, processes
from cfol_fast.data import near_duplicates, room
from cfol_fast.data.content import PartContent, check_content, copies, copies_note, describe, records
from cfol_fast.data.fed_source import FedSource
from cfol_fast.data.images import Images, ImageSet
from cfol_fast.data.source import Source, TrainingSource
from cfol_fast.errors import InputError
from cfol_fast.models.spec import ModelSpec
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.defaults import holdout_fraction, is_folder
from cfol_fast.runs.rules import is_fed

# What is compared with the training images, in words.
PARTS = {"test": "test set", "holdout": "hold-out"}
# Images in which near copies are looked for: a second or two.
HELD_LOOKED_AT, LOOKED_AT = 250, 4000


@dataclass
class RunImages:
    """What a run trains, validates and tests on, and the network that fits these images.

    labels: of the training images, on the CPU, in the order of the sampler's indices.
    validation: None with --holdout none. validation_split: "holdout", or "test" when the test set serves as
    one.
    """

    classes: list[str]
    train: TrainingSource
    labels: Tensor
    validation: Source | None
    validation_split: str
    test: Source
    spec: ModelSpec
    # What is done to the training images, in words.
    augmentation: str
    # What to say when the run starts.
    notes: list[str] = field(default_factory=list)
    # The white point of images with more than 8 bits, where there are such.
    white: float | None = None
    # The digests of the parts, which the first process of a machine computes; and (copies, images looked at)
    # of "test" and "holdout".
    content: dict[str, dict[str, Any]] | None = None
    copies: dict[str, tuple[int, int]] = field(default_factory=dict)


def load_images(config: TrainConfig, progress: bool = False) -> RunImages:
    """Reads the data set and divides its training part. progress: shows how far reading is."""
    models.check_name(config.model.name)
    wanted, device = config.data, torch.device(config.device)
    if wanted.content is not None:
        check_content(wanted.root, wanted.content)
    found = data.load(
        wanted.name,
        root=wanted.root,
        download=wanted.download,
        imbalance=wanted.imbalance,
        seed=config.seed,
        size=wanted.size,
        skip_corrupt=wanted.skip_corrupt,
        white=wanted.white,
        cache=wanted.cache,
        source=wanted.source,
        decode=wanted.decode,
        device=device,
        holdout_folder=wanted.holdout if is_folder(wanted.holdout) else None,
        holdout_groups=wanted.holdout_groups,
        progress=progress,
    )
    if wanted.images is not None:
        part = data.stratified(found.train.labels, wanted.images)
        groups = None if found.groups is None else found.groups[part]
        found = dataclasses.replace(found, train=found.train.subset(part), groups=groups)
    content = describe(found) if processes.local_rank() == 0 else None
    height, width = found.size
    if height != width:
        raise InputError(
            f"the models take square images, {wanted.name} has {width}x{height} (width x height): "
            f"--set data.size={min(height, width)} takes their centre"
            if data.spec(wanted.name).size is None
            else f"the models take square images, {wanted.name} has {width}x{height}"
        )

    def source_of(images: Images, augment: ops.Augment | None = None) -> TrainingSource:
        return data.source_of(images, lag, augment, **options)

    lag = wanted.lag if is_fed(wanted) else 0
    options: dict[str, Any] = {
        "size": found.size,
        "device": device,
        "channels_last": config.model.channels_last,
        "seed": config.seed,
    }
    fraction = holdout_fraction(wanted.holdout)
    notes = [*found.notes, *_check_room(config, found, fraction is not None)]
    training_rows, held_out, validation = None, None, None
    test = source_of(found.test)
    if fraction is not None:
        training_rows, held_out = data.holdout(
            found.train.labels, fraction, config.seed, found.classes, found.groups
        )
        if found.groups is not None:
            notes.append(_groups_note(found.groups, held_out, fraction))
        validation = source_of(found.train.subset(held_out))
    elif wanted.holdout == "test":
        validation = test
    elif found.holdout is not None:
        validation = source_of(found.holdout)
    images = found.train if training_rows is None else found.train.subset(training_rows)
    held = found.holdout if held_out is None else found.train.subset(held_out)
    if held is not None and content is not None and data.is_own(wanted.name, wanted.root):
        notes += _near_copies_note(held, images)
    copied = {} if content is None else _copies(content, training_rows, held_out)
    notes += [f"warning: {copies_note(PARTS[part], *counts)}" for part, counts in copied.items()]
    word = wanted.augment
    augment = data.augmentation(word, min(found.size), found.paper_augment)
    if augment is not None and wanted.crop == "random-resized":
        augment = dataclasses.replace(
            augment, pad=0, crop=False, scale=wanted.crop_scale, ratio=wanted.crop_ratio
        )
    augmentation = word if augment is None else f"{word} ({augment})"
    notes.append(f"augmentation: {augmentation}")
    train = source_of(images, augment)
    memory = 0
    for source, width in ((train, config.batch_size // processes.count()), (test, config.test.batch_size)):
        if isinstance(source, FedSource):
            source.check_room(width)
            memory += source.batch_memory(width)
    if not isinstance(found.train, ImageSet) and not isinstance(found.test, ImageSet):
        on_disk = sum(part.bytes_on_disk() for part in (found.train, found.test))
        notes.append(
            f"{len(found.train) + len(found.test):,} images stay in their files, {room.size_text(on_disk)} on"
            f" the disk; {room.size_text(memory)} of memory for"
            f" batches{' in each process' * (processes.count() > 1)}"
        )
    spec = ModelSpec(
        name=config.model.name,
        num_classes=len(found.classes),
        image_size=height,
        in_channels=found.channels,
        mean=tuple(found.mean),
        std=tuple(found.std),
    )
    if config.batch_size > len(images.labels):
        count = len(images.labels)
        notes.append(
            f"batch_size={config.batch_size} is more than the {count:,} training images: "
            f"a batch draws each of them {config.batch_size / count:.3g} times"
        )
    return RunImages(
        classes=list(found.classes),
        train=train,
        labels=images.labels,
        validation=validation,
        validation_split="test" if wanted.holdout == "test" else "holdout",
        test=test,
        spec=spec,
        augmentation=augmentation,
        notes=notes,
        white=found.white,
        content=None if content is None else records(content),
        copies=copied,
    )


def _groups_note(groups: Tensor, held_out: Tensor, fraction: float) -> str:
    share, held, of = len(held_out) / len(groups), groups[held_out].unique(), groups.unique()
    return (
        f"hold-out by groups: {len(held):,} of {len(of):,} groups, {share:.1%} of"
        f" the images where {fraction:.1%} was asked for; no group is divided"
    )


def _near_copies_note(held: Images, train: Images) -> list[str]:
    """A warning where some of a sample of the hold-out look like training images. Of images that stay in
    files there is none: their decoding would take longer than a few seconds.
    """
    if not (isinstance(held, ImageSet) and isinstance(train, ImageSet)):
        return []
    mine, theirs = (
        near_duplicates.sampled(part, count) for part, count in ((held, HELD_LOOKED_AT), (train, LOOKED_AT))
    )
    like = len({row for row, _ in near_duplicates.pairs(mine, theirs).tolist()})
    if not like:
        return []
    return [
        f"warning: {like:,} of {len(mine):,} images of the hold-out look like one of {len(theirs):,} training"
        " images (near copies, of a sample): its accuracies may be too high. cfol-fast data check DIR shows"
        " such pairs; --holdout-groups keeps images that belong together on one side"
    ]


def _copies(
    content: dict[str, PartContent], training_rows: Tensor | None, held_out: Tensor | None
) -> dict[str, tuple[int, int]]:
    """How many images of the test set and of the hold-out are also trained on."""
    train, test = content["train"], content["test"]
    kept = training_rows.numpy() if training_rows is not None and train.whole else None
    found = {"test": copies(test, train, of_rows=kept)}
    if "holdout" in content:
        found["holdout"] = copies(content["holdout"], train)
    if held_out is not None and kept is not None:
        found["holdout"] = copies(train, train, held_out.numpy(), kept)
    return {part: counts for part, counts in found.items() if counts[0]}


def _check_room(config: TrainConfig, found: data.ImageData, divided: bool) -> list[str]:
    """Refuses images that do not fit, before they are divided and moved; and says what they need.

    divided: whether a part of the training images is held out, which copies them.
    """
    device, wanted = torch.device(config.device), config.data
    if not (isinstance(found.train, data.ImageSet) and isinstance(found.test, data.ImageSet)):
        # Of images in files only batches are in memory, which is checked with their sources.
        return []
    way_out = room.streaming(wanted.name, wanted.root, data.reads_files(wanted.name))
    train = found.train.nbytes
    others = [part for part in (found.test, found.holdout) if isinstance(part, data.ImageSet)]
    needed = train + sum(part.nbytes for part in others)
    what = f"{len(found.train) + sum(map(len, others)):,} images"
    room.check_device(what, needed, device, room.free_memory(device), way_out)
    # A table's subset shares the bytes until it goes to another device.
    copied = train if (divided and found.train.table is None) or device.type == "cuda" else 0
    room.check_memory(what, copied, way_out)
    return [
        f"{what}: {room.size_text(needed)} on {device}, {room.size_text(copied)} of memory to divide them"
    ]
