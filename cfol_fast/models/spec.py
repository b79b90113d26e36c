"""The description of a network that a checkpoint holds: enough to build it again, and checked before anything
is built.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import nn

from cfol_fast.errors import InputError, one_line
from cfol_fast.models.factories import check_named
from cfol_fast.models.normalize import Normalize
from cfol_fast.models.zoo import create, create_without_numbers
from cfol_fast.user_input import shorten

COUNTS = ("num_classes", "image_size", "in_channels")
# A description that asks for more is not one of a network for images.
MOST = 1 << 20


@dataclass(frozen=True)
class ModelSpec:
    """What `models.create` is called with."""

    name: str
    num_classes: int
    image_size: int
    in_channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def create(self) -> nn.Module:
        return create(
            self.name, self.num_classes, self.image_size, self.in_channels, mean=self.mean, std=self.std
        )

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, stored: Any, named: str | None = None) -> ModelSpec:
        """The description in a file, with every value checked. named: the model that the user named, see
        `factories`.
        """
        names = {field.name for field in fields(cls)}
        if not isinstance(stored, Mapping) or set(stored) != names:
            raise InputError(f"its description of the model must have {', '.join(sorted(names))}")
        if not isinstance(stored["name"], str) or len(stored["name"]) > 100:
            raise InputError(f"its model has no name: {shorten(stored['name'])}")
        check_named(stored["name"], named, "its description of the model")
        for name in COUNTS:
            if type(stored[name]) is not int or not 1 <= stored[name] <= MOST:
                raise InputError(f"its {name} must be in 1..{MOST}, got {shorten(stored[name])}")
        for name in ("mean", "std"):
            values = stored[name]
            if not isinstance(values, list | tuple) or not all(
                isinstance(value, float | int) and math.isfinite(value) for value in values
            ):
                raise InputError(f"its {name} must be a list of numbers, got {shorten(values)}")
        return cls(**{**stored, "mean": tuple(stored["mean"]), "std": tuple(stored["std"])})

    def check_weights(self, weights: Any) -> None:
        """Refuses weights of other names or shapes than this network's, which has shapes but no numbers here
        (device "meta").
        """
        if not isinstance(weights, Mapping):
            raise InputError("it has no weights")
        try:
            # The network without numbers has not seen these.
            Normalize(self.in_channels, self.mean, self.std)
            shape = (self.num_classes, self.image_size, self.in_channels)
            wanted = create_without_numbers(self.name, *shape).state_dict()
        # A description that nobody wrote by training may fail anywhere.
        except Exception as error:
            raise InputError(f"its model {self.name!r} cannot be built: {one_line(error)[:200]}") from None
        differing = [
            str(name)
            for name in {**wanted, **weights}
            if name not in wanted or name not in weights or not _is_like(weights[name], wanted[name])
        ]
        if differing:
            raise InputError(
                f"its weights are not those of {self.name} with {self.num_classes} classes: "
                f"{len(differing)} differ, {shorten(differing[0])} among them"
            )


def _is_like(value: Any, wanted: torch.Tensor) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.shape == wanted.shape
        and value.layout == torch.strided
        and value.is_floating_point() == wanted.is_floating_point()
    )
