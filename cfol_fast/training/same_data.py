"""Are the data those that a checkpoint was trained on?

Compared when a run is resumed, and between its stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cfol_fast.data import content
from cfol_fast.models import ModelSpec
from cfol_fast.runs.checkpoint_contents import Checkpoint
from cfol_fast.training.images import RunImages


@dataclass(frozen=True)
class Before:
    """What a checkpoint, or the result of a stage, says of its data: the digests (None in those of version
    0.2 or older), the classes, the step, and where its run went on with other data.
    """

    data: dict[str, Any] | None
    classes: list[str]
    spec: ModelSpec | None = None
    step: int = 0
    changed_data: Sequence[dict[str, Any]] = ()

    @classmethod
    def of_checkpoint(cls, stored: Checkpoint) -> Before:
        run = stored.run
        if run is None:
            return cls(None, stored.classes, stored.spec)
        return cls(
            run.data, stored.classes, stored.spec, int(run.position["step"]), tuple(run.changed_data or ())
        )

    @classmethod
    def of_result(cls, result: dict[str, Any]) -> Before:
        return cls(result["data"], result["classes"], changed_data=tuple(result.get("changed_data") or ()))


def data_change(
    images: RunImages, before: Before, folder: Path, accept: bool
) -> tuple[str | None, str | None]:
    """What differs between the images and those of before; and why the run cannot continue with it.

    accept: continue with other data. Another number of training images or classes, classes in other places,
    or another size, is refused all the same.
    """
    now, then = images.content or {}, before.data
    if not then:
        # The names of the classes are all that is known.
        now, then = ({"train": {content.CLASSES: names}} for names in (images.classes, before.classes))
    different = content.differences(then, now)
    if not different:
        return None, None
    change = content.in_words(different, then, now)
    refusal = f"cannot resume {folder} with other data ({change})"
    kinds = different.get("train", [])
    classes = [part["train"][content.CLASSES] for part in (then, now)]
    way_out = "Give it the data it began with, or start a new run: --init takes its weights"
    if content.COUNT in kinds or len(classes[0]) != len(classes[1]) or _other_shape(images, before):
        return change, f"{refusal}. {way_out}"
    if moved := [name for name, new in zip(*classes, strict=True) if name != new and name in classes[1]]:
        # Their outputs, and the bandit's p, would be taken for other classes.
        named = ", ".join(map(repr, moved[:3])) + (" and others" if moved[3:] else "")
        return change, f"{refusal}: {named} would have another place among the classes. {way_out}"
    if not accept:
        return change, f"{refusal}. Give it the data it began with, or add --changed-data"
    return change, None


def _other_shape(images: RunImages, before: Before) -> bool:
    """Whether the images have another size or other channels than those of the checkpoint."""
    now, then = images.spec, before.spec or images.spec
    return (then.image_size, then.in_channels) != (now.image_size, now.in_channels)
