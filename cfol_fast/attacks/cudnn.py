"""Convolution, bias and ReLU as one launch of cuDNN, where it has that; written without a GPU, so tried before it is used.

torch has the forward pass as `aten::cudnn_convolution_relu`, without a derivative; the one here gives the input's gradient alone. It
is called directly: an op of our own around it would cost more on the host than the two launches that it saves.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_fused_op = torch.ops.aten.cudnn_convolution_relu.default
# Of the largest output: the two ways add up in different orders, in bfloat16 with 8 bits.
TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 3e-2, torch.float16: 1e-2}


@functools.cache
def fuses(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this GPU's cuDNN computes it in this precision, and the same as three ops. Tried once; reads from the device."""
    if device.type != "cuda" or dtype not in TOLERANCE:
        return False
    x = torch.linspace(-1, 1, 2 * 8 * 6 * 6).view(2, 8, 6, 6).to(device, dtype)
    weight = torch.linspace(-0.5, 0.7, 16 * 8 * 9).view(16, 8, 3, 3).to(device, dtype)
    x, weight = (t.contiguous(memory_format=torch.channels_last) for t in (x, weight))
    bias = torch.linspace(-1, 1, 16).to(device, dtype)
    ones = [1, 1]
    try:
        fused = _fused_op(x, weight, bias, ones, ones, ones, 1).float()
    except RuntimeError:
        return False
    plain = F.relu(F.conv2d(x, weight, bias, padding=1)).float()
    return bool((fused - plain).abs().max() <= TOLERANCE[dtype] * plain.abs().max())


def runs(x: Tensor, layer: Any) -> bool:
    """Whether this layer is computed by the fused launch. cuDNN does not promise the same bits for it every time."""
    return (
        layer.relu
        and layer.bias is not None
        and x.device.type == "cuda"
        and not torch.compiler.is_compiling()
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
        layer, (x, y) = ctx.layer, ctx.saved_tensors
        grad = torch.ops.aten.threshold_backward(grad, y, 0)
        no_output_padding = [0] * (x.dim() - 2)
        return torch.ops.aten.convolution_backward(
            *(grad, x, layer.weight, None, layer.stride, layer.padding, layer.dilation, False),
            *(no_output_padding, layer.groups, [True, False, False]),
        )[0], None
