"""What describes a network in a checkpoint: enough to build it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from cfol_fast.models.zoo import create


@dataclass(frozen=True)
class ModelSpec:
    """What `models.create` needs to build the network of a checkpoint again."""

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
        return {
            "name": self.name,
            "num_classes": self.num_classes,
            "image_size": self.image_size,
            "in_channels": self.in_channels,
            "mean": list(self.mean),
            "std": list(self.std),
        }

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> ModelSpec:
        return cls(**{**facts, "mean": tuple(facts["mean"]), "std": tuple(facts["std"])})
