"""The description of a network that a checkpoint holds: enough to build it again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from cfol_fast.models.zoo import create


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
    def from_dict(cls, stored: dict[str, Any]) -> ModelSpec:
        return cls(**{**stored, "mean": tuple(stored["mean"]), "std": tuple(stored["std"])})
