"""The convolution of a frozen network: constant weights, BatchNorm and bias inside, ReLU attached, input gradients only.

Nearly all of an attack's time is spent here. On the CPU three things make it faster than the same layers in a plain model: bias
and ReLU are applied while the result is in registers, small feature maps use the layout in which oneDNN is faster, and the
gradient of the first layer, whose few input channels leave oneDNN's vector registers mostly empty, is `ops.input_gradient`. On a
GPU all convolutions are cuDNN's: the CUDA kernel of `ops.input_gradient` gives the same gradient and is tested, but nothing here
calls it, since whether it is faster than cuDNN has not been measured on a GPU.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cfol_fast import ops
from cfol_fast.attacks import cudnn
from cfol_fast.machine import cpu_bfloat16

# Below this many output pixels oneDNN's blocked kernels, which it takes for contiguous tensors, beat those for channels_last:
# 12.6 ms against 20 ms for 512 channels on 4x4 maps; from 8x8 on they are equal or slower.
FEW_PIXELS = 16
# Up to this many input channels our op is faster than oneDNN's backward pass: benchmarks/input_gradient.py.
FEW_CHANNELS = 4

_fused_op = torch.ops.mkldnn._convolution_pointwise.default if torch.backends.mkldnn.is_available() else None


class FrozenConvolution:
    """The weights of one convolution for the time of one attack.

    own_gradient: the gradient of the output has no other user, so it may be masked in place.
    """

    __slots__ = (
        "_formats",
        "bias",
        "dilation",
        "groups",
        "own_gradient",
        "padding",
        "relu",
        "stride",
        "weight",
    )

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
        groups: int,
        relu: bool,
        own_gradient: bool,
    ) -> None:
        self.weight, self.bias = weight, bias
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.relu, self.own_gradient = relu, own_gradient
        self._formats: dict[torch.memory_format, Tensor] = {}

    def weight_in(self, memory_format: torch.memory_format) -> Tensor:
        if memory_format not in self._formats:
            # `contiguous` would not do: with one input channel both formats have the same strides, and oneDNN would take the other.
            laid_out = torch.empty_like(self.weight, memory_format=memory_format)
            self._formats[memory_format] = laid_out.copy_(self.weight)
        return self._formats[memory_format]

    @property
    def has_few_channels(self) -> bool:
        """Whether `ops.input_gradient` fits this layer."""
        plain = self.groups == 1 and set(self.stride) == set(self.dilation) == {1}
        fits = all(pad < size for pad, size in zip(self.padding, self.weight.shape[2:], strict=True))
        return plain and fits and self.weight.shape[1] <= FEW_CHANNELS

    def output_shape(self, x: Tensor) -> tuple[int, ...]:
        return len(x), len(self.weight), *self._output_size(x)

    def output_pixels(self, x: Tensor) -> int:
        return math.prod(self._output_size(x))

    def _output_size(self, x: Tensor) -> tuple[int, ...]:
        return tuple(
            (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
            for size, pad, dilation, kernel, stride in zip(
                x.shape[2:], self.padding, self.dilation, self.weight.shape[2:], self.stride, strict=True
            )
        )


def convolution(x: Tensor, layer: FrozenConvolution) -> Tensor:
    """x: (B, C, H, W) -> convolution, bias and, if the layer has it, ReLU."""
    if x.dtype != layer.weight.dtype:
        x = x.to(layer.weight.dtype)
    if _runs_fused(x):
        return _FusedConvolution.apply(x, layer)
    if cudnn.runs(x, layer):
        return cudnn.ConvolutionReLU.apply(x, layer)
    y = F.conv2d(x, layer.weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups)
    return F.relu_(y) if layer.relu else y


def convolution_add_relu(
    x: Tensor, layer: FrozenConvolution, other: Tensor, first: bool, in_place: bool
) -> Tensor:
    """The end of a residual block: the convolution's result and another one, added, with ReLU.

    first: the convolution comes first in the sum; in_place: the sum takes the place of what comes first.
    """
    if x.dtype == layer.weight.dtype and cudnn.adds(x, layer, other):
        return cudnn.ConvolutionAddReLU.apply(x, layer, other)
    y = convolution(x, layer)
    one, two = (y, other) if first else (other, y)
    return torch.relu_(operator.iadd(one, two) if in_place else one + two)


def _runs_fused(x: Tensor) -> bool:
    """Whether the layer runs on oneDNN and our op: on the CPU, outside of torch.compile, in a precision this CPU has there."""
    return (
        _fused_op is not None
        and x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.dim() == 4
        and x.numel() > 0
        and not torch.compiler.is_compiling()
        and (x.dtype == torch.float32 or cpu_bfloat16().fused)
    )


class _FusedConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: FrozenConvolution) -> Tensor:
        few = layer.output_pixels(x) <= FEW_PIXELS
        memory_format = torch.contiguous_format if few else torch.channels_last
        x = x.contiguous(memory_format=memory_format)
        weight = layer.weight_in(memory_format)
        assert _fused_op is not None
        y = _fused_op(
            x,
            weight,
            layer.bias,
            layer.padding,
            layer.stride,
            layer.dilation,
            layer.groups,
            "relu" if layer.relu else "none",
            [],
            "",
        )
        ctx.layer, ctx.memory_format = layer, memory_format
        ctx.save_for_backward(x, weight, *([y] if layer.relu else []))
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        layer: FrozenConvolution = ctx.layer
        x, weight, *rest = ctx.saved_tensors
        if layer.has_few_channels and grad.dtype == torch.float32:
            plain = layer.weight_in(torch.contiguous_format)
            return ops.input_gradient(grad, plain, layer.padding, *rest), None
        if layer.relu:
            mask = torch.ops.aten.threshold_backward
            # With two different layouts the mask takes 20 times as long; a copy into one layout costs a tenth of that.
            arrived, grad = grad, grad.contiguous(memory_format=ctx.memory_format)
            if layer.own_gradient or grad is not arrived:
                grad = mask.grad_input(grad, rest[0], 0, grad_input=grad)
            else:
                grad = mask(grad, rest[0], 0)
        return torch.ops.aten.convolution_backward(
            grad,
            x,
            weight,
            None,
            layer.stride,
            layer.padding,
            layer.dilation,
            False,
            [0, 0],
            layer.groups,
            [True, False, False],
        )[0], None
