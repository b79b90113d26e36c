"""The gradient of a convolution with respect to an input of few channels: the last op of every attack step's backward pass."""

from __future__ import annotations

import torch
from torch import Tensor

from cfol_fast.ops.native import call, fake, library

_input_gradient = library.input_gradient.default


def input_gradient(
    grad: Tensor, weight: Tensor, padding: tuple[int, ...], relu_output: Tensor | None = None
) -> Tensor:
    """The gradient with respect to x of conv2d(x, weight, padding=padding), stride and dilation 1.

    grad: (B, O, h, w), the gradient of the output; weight: (O, C, a, b); both float32. relu_output: the output of the ReLU after
    the convolution, if there is one; `grad` is then the gradient of that. Returns (B, C, H, W) in channels_last.
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
