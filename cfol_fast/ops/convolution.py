"""Convolutions of an attack: the gradient for an input of few channels, which is the last op of every
backward pass, and 3x3 kernels by Winograd's F(2x2, 3x3), with fewer than half of the multiplications."""

from __future__ import annotations

import torch
from torch import Tensor

from cfol_fast.ops.native import call, fake, library

_input_gradient = library.input_gradient.default
_winograd = library.winograd.default
_winograd_taps = library.winograd_taps.default

# `winograd` takes channels and outputs that are multiples of this.
WINOGRAD_LANES = 16


def input_gradient(
    grad: Tensor, weight: Tensor, padding: tuple[int, ...], relu_output: Tensor | None = None
) -> Tensor:
    """The gradient with respect to x of conv2d(x, weight, padding=padding), stride and dilation 1.

    grad: (B, O, h, w), the gradient of the output; weight: (O, C, a, b); both float32. relu_output: the
    output of the ReLU after the convolution, if there is one; `grad` is then the gradient of that. Returns
    (B, C, H, W) in channels_last.
    """
    grad = grad.contiguous(memory_format=torch.channels_last)
    if relu_output is not None:
        relu_output = relu_output.contiguous(memory_format=torch.channels_last)
    return call(_input_gradient, grad, weight.contiguous(), relu_output, *padding)


@fake("input_gradient")
def _(grad: Tensor, weight: Tensor, relu: Tensor | None, pad_h: int, pad_w: int) -> Tensor:
    (batch, _, h, w), (_, channels, a, b) = grad.shape, weight.shape
    height, width = h + a - 1 - 2 * pad_h, w + b - 1 - 2 * pad_w
    return grad.new_empty(batch, height, width, channels).permute(0, 3, 1, 2)


def winograd(
    x: Tensor,
    taps: Tensor,
    bias: Tensor | None = None,
    rectify: bool = False,
    relu_output: Tensor | None = None,
) -> Tensor:
    """conv2d(x, weight, bias, padding=1) of a 3x3 kernel with stride 1, and a ReLU if `rectify`, from
    `winograd_taps(weight)`.

    x: (B, C, H, W) float32 -> (B, O, H, W) in channels_last; C and O are multiples of 16. relu_output: like
    x; where it is not positive, x counts as 0. With the taps of the gradient, x the gradient of the output
    and relu_output what the ReLU gave, the result is the gradient of the input.
    """
    x = x.contiguous(memory_format=torch.channels_last)
    if relu_output is not None:
        relu_output = relu_output.contiguous(memory_format=torch.channels_last)
    return call(_winograd, x, taps, None if bias is None else bias.contiguous(), relu_output, rectify)


def winograd_taps(weight: Tensor, gradient: bool = False) -> Tensor:
    """weight: (O, C, 3, 3) float32 -> what `winograd` multiplies with, 16/9 as many numbers.

    gradient: for the convolution that takes the gradient of the output to that of the input.
    """
    return call(_winograd_taps, weight.contiguous(), gradient)


@fake("winograd")
def _(x: Tensor, taps: Tensor, bias: Tensor | None, relu: Tensor | None, rectify: bool) -> Tensor:
    batch, _, height, width = x.shape
    return x.new_empty(batch, height, width, taps.shape[1] * WINOGRAD_LANES).permute(0, 3, 1, 2)


@fake("winograd_taps")
def _(weight: Tensor, gradient: bool) -> Tensor:
    outputs, channels = weight.shape[:2]
    source, target = (outputs, channels) if gradient else (channels, outputs)
    return weight.new_empty(16, target // WINOGRAD_LANES, source, WINOGRAD_LANES)
