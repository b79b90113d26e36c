"""Convolution, bias and ReLU as one launch of cuDNN, where it has that; written without a GPU, so tried
before it is used.

torch has the forward pass as `aten::cudnn_convolution_relu`, and with a residual block's sum as
`aten::cudnn_convolution_add_relu`, both without a derivative; those here give the gradients of input and
summand alone. They are called directly: an op of our own around them would cost more on the host than the
launches that it saves.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_fused_op = torch.ops.aten.cudnn_convolution_relu.default
_fused_add_op = torch.ops.aten.cudnn_convolution_add_relu.default
# Of the largest output: the two ways add up in different orders, in bfloat16 with 8 bits.
TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 3e-2, torch.float16: 1e-2}


@functools.cache
def fuses(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this GPU's cuDNN computes both in this precision, and the same as ops one by one.

    Tried once; reads from the device.
    """
    if device.type != "cuda" or dtype not in TOLERANCE:
        return False
    x = torch.linspace(-1, 1, 2 * 8 * 6 * 6).view(2, 8, 6, 6).to(device, dtype)
    weight = torch.linspace(-0.5, 0.7, 16 * 8 * 9).view(16, 8, 3, 3).to(device, dtype)
    summand = torch.linspace(9, -7, 2 * 16 * 6 * 6).view(2, 16, 6, 6).to(device, dtype)
    x, weight, summand = (t.contiguous(memory_format=torch.channels_last) for t in (x, weight, summand))
    bias = torch.linspace(-1, 1, 16).to(device, dtype)
    ones = [1, 1]
    try:
        fused = _fused_op(x, weight, bias, ones, ones, ones, 1).float()
        added = _fused_add_op(x, weight, summand, 1.0, bias, ones, ones, ones, 1).float()
    except RuntimeError:
        return False
    plain = F.conv2d(x, weight, bias, padding=1)
    return _close(fused, F.relu(plain), dtype) and _close(added, F.relu(plain + summand), dtype)


def _close(fused: Tensor, plain: Tensor, dtype: torch.dtype) -> bool:
    return bool((fused - plain.float()).abs().max() <= TOLERANCE[dtype] * plain.float().abs().max())


def runs(x: Tensor, layer: Any) -> bool:
    """Whether this layer is computed by the fused launch."""
    return layer.relu and _may_fuse(x, layer)


def adds(x: Tensor, layer: Any, summand: Any) -> bool:
    """Whether this layer, the sum and the ReLU after it are computed by the fused launch, which takes no
    summand of another shape.
    """
    return (
        _may_fuse(x, layer)
        and isinstance(summand, Tensor)
        and summand.dtype == x.dtype
        and summand.shape == layer.output_shape(x)
    )


def _may_fuse(x: Tensor, layer: Any) -> bool:
    """cuDNN does not promise the same bits for these launches every time."""
    return (
        not torch.compiler.is_compiling()
        and layer.bias is not None
        and not torch.are_deterministic_algorithms_enabled()
        and fuses(x.device, x.dtype)
    )


class ConvolutionReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Any) -> Tensor:
        y = _fused_op(x, layer.weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups)
        ctx.layer = layer
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        x, y = ctx.saved_tensors
        return _input_gradient(torch.ops.aten.threshold_backward(grad, y, 0), x, ctx.layer), None


class ConvolutionAddReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Any, summand: Tensor) -> Tensor:
        y = _fused_add_op(
            *(x, layer.weight, summand, 1.0, layer.bias),
            *(layer.stride, layer.padding, layer.dilation, layer.groups),
        )
        ctx.layer = layer
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, Tensor]:  # type: ignore[override]
        x, y = ctx.saved_tensors
        grad = torch.ops.aten.threshold_backward(grad, y, 0)
        return _input_gradient(grad, x, ctx.layer) if ctx.needs_input_grad[0] else None, None, grad


def _input_gradient(grad: Tensor, x: Tensor, layer: Any) -> Tensor:
    no_output_padding = [0] * (x.dim() - 2)
    return torch.ops.aten.convolution_backward(
        *(grad, x, layer.weight, None, layer.stride, layer.padding, layer.dilation, False),
        *(no_output_padding, layer.groups, [True, False, False]),
    )[0]
