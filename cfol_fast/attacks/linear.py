"""A linear layer after `flatten(1)`: maps stay in the layout they have, and the weights are put into its order once an attack.

`flatten` itself would copy a map in channels_last into the contiguous layout, and its gradient back, at every step.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FrozenLinear:
    """The weights of one linear layer for the time of one attack."""

    __slots__ = ("_in_order", "bias", "weight")

    def __init__(self, layer: nn.Linear) -> None:
        self.weight = layer.weight.detach()
        self.bias = None if layer.bias is None else layer.bias.detach()
        self._in_order: dict[torch.Size, Tensor] = {}

    def in_order_of(self, size: torch.Size) -> Tensor:
        """The weights for maps of this size, (C, H, W), whose channels come last."""
        if size not in self._in_order:
            ordered = self.weight.view(-1, *size).permute(0, 2, 3, 1)
            self._in_order[size] = ordered.reshape(self.weight.shape)
        return self._in_order[size]


def flat_linear(x: Tensor, layer: FrozenLinear) -> Tensor:
    """linear(x.flatten(1))."""
    channels_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    if not channels_last or x.is_contiguous():
        return F.linear(x.flatten(1), layer.weight, layer.bias)
    return F.linear(x.permute(0, 2, 3, 1).flatten(1), layer.in_order_of(x.shape[1:]), layer.bias)
