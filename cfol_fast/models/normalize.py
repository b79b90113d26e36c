"""The first layer of every model: pixels in [0, 1] come in, normalised values go on.

It is a layer of the model, not a step of the data path: attacks work on pixels, and eps has the paper's
meaning.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cfol_fast.errors import InputError


class Normalize(nn.Module):
    """(x - mean) / std for each channel; x: (B, C, H, W) in [0, 1].

    Without mean and std it changes nothing.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, channels: int, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        for name, given in (("mean", mean), ("std", std)):
            if given is not None and len(given) != channels:
                raise InputError(f"{name} has {len(given)} values, but the images have {channels} channel(s)")
        if std is not None and not all(value > 0 for value in std):
            raise InputError(f"std must be positive in every channel, got {list(std)}")
        self.register_buffer("mean", _per_channel([0.0] * channels if mean is None else mean))
        self.register_buffer("std", _per_channel([1.0] * channels if std is None else std))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std

    def extra_repr(self) -> str:
        return f"channels={self.mean.shape[1]}"


def _per_channel(values: Sequence[float]) -> Tensor:
    return torch.tensor([float(v) for v in values], dtype=torch.float32).view(1, -1, 1, 1)
