"""Are the data those that a checkpoint was trained on?

Compared when a run is resumed, and between its stages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cfol_fast.data import content
from cfol_fast.training.images import RunImages


def data_change(
    images: RunImages, before: dict[str, Any], folder: Path, accept: bool
) -> tuple[str | None, str | None]:
    """What differs between the images and those of a checkpoint, or of a stage's result; and why the run
    cannot continue with it.

    accept: continue with other data. Another number of training images or classes, or another size, is
    refused all the same.
    """
    now = images.content or {}
    # Older checkpoints have the names of the classes alone.
    then = before.get("data") or {"train": {content.CLASSES: before["classes"]}}
    if before.get("data") is None:
        now = {"train": {content.CLASSES: images.classes}}
    different = content.differences(then, now)
    if not different:
        return None, None
    change = content.in_words(different, then, now)
    refusal = f"cannot resume {folder} with other data ({change})"
    kinds = different.get("train", [])
    classes = [len(part["train"][content.CLASSES]) for part in (then, now)]
    if content.COUNT in kinds or classes[0] != classes[1] or _other_shape(images, before):
        way_out = "Give it the data it began with, or start a new run: --init takes its weights"
        return change, f"{refusal}. {way_out}"
    if not accept:
        return change, f"{refusal}. Give it the data it began with, or add --changed-data"
    return change, None


def _other_shape(images: RunImages, before: dict[str, Any]) -> bool:
    """Whether the images have another size or other channels than those of the checkpoint."""
    then, now = before.get("spec") or {}, images.spec
    return any(
        then.get(name, getattr(now, name)) != getattr(now, name) for name in ("image_size", "in_channels")
    )
