"""A linear layer after `flatten(1)`: maps stay in the layout they have, and the weights are put into its
order once an attack.

`flatten` itself would copy a map in channels_last into the contiguous layout, and its gradient back, at every
step. On the CPU torch's matrix products race with oneDNN's (`frozen.autotune`).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.autograd.function import once_differentiable

from cfol_fast.frozen.autotune import RACE_WORK, Deciding, choices

WAYS = ("torch", "onednn")
# So many images take part in a race however large the layer is.
RACE_IMAGES = 32

_onednn = torch.ops.mkldnn._linear_pointwise.default if torch.backends.mkldnn.is_available() else None


class FrozenLinear(Deciding):
    """The weights of one linear layer for the time of one attack."""

    __slots__ = ("_in_order", "_transposed", "bias", "weight")

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight = layer.weight.detach()
        self.bias = None if layer.bias is None else layer.bias.detach()
        self._in_order: dict[torch.Size, Tensor] = {}
        self._transposed: dict[int, Tensor] = {}

    def in_order_of(self, size: torch.Size) -> Tensor:
        """The weights for maps of this size, (C, H, W), whose channels come last."""
        if size not in self._in_order:
            ordered = self.weight.view(-1, *size).permute(0, 2, 3, 1)
            self._in_order[size] = ordered.reshape(self.weight.shape)
        return self._in_order[size]

    def transposed(self, weight: Tensor) -> Tensor:
        """weight: the layer's own, or in another order."""
        if id(weight) not in self._transposed:
            self._transposed[id(weight)] = weight.t().contiguous()
        return self._transposed[id(weight)]


def flat_linear(x: Tensor, layer: FrozenLinear) -> Tensor:
    """linear(x.flatten(1))."""
    channels_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    if not channels_last or x.is_contiguous():
        flat, weight = x.flatten(1), layer.weight
    else:
        flat, weight = x.permute(0, 2, 3, 1).flatten(1), layer.in_order_of(x.shape[1:])
    if _races(flat, weight):
        return _RacedLinear.apply(flat, weight, layer)
    return F.linear(flat, weight, layer.bias)


def _races(x: Tensor, weight: Tensor) -> bool:
    """On the CPU, in float32, outside of torch.compile and autocast; what takes no time cannot race."""
    return (
        _onednn is not None
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.dim() == 2
        and x.numel() > 0
        and not isinstance(x, FakeTensor)
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
    )


class _RacedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: FrozenLinear) -> Tensor:
        ctx.layer, ctx.weight = layer, weight
        return _product("linear", layer, x, weight, layer.bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        weight = ctx.layer.transposed(ctx.weight)
        return _product("linear backward", ctx.layer, grad.contiguous(), weight, None), None, None


def _product(what: str, layer: FrozenLinear, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x: (B, n), weight: (m, n) -> x weight^T + bias, by a race where nobody has decided yet."""

    def decide() -> str:
        threads = torch.get_num_threads()
        enough = max(RACE_IMAGES, math.ceil(RACE_WORK * threads / (2 * weight.numel())))
        images = 2 ** (min(len(x), enough).bit_length() - 1)
        described = f"{what}, {images} x {weight.shape[1]} -> {len(weight)}, float32, threads {threads}"
        return choices().choose(described, WAYS, lambda way: _by(way, x[:images], weight, bias))

    return _by(layer.decided((what, x.shape), decide), x, weight, bias)


def _by(way: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if way == "onednn":
        assert _onednn is not None
        found: Tensor = _onednn(x, weight, bias, "none", [], "")
        return found
    return F.linear(x, weight, bias)
