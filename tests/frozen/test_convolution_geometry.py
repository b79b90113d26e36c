"""Layers of shapes that few networks have: what the fused convolution gives for them is what torch gives in
double precision.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from cfol_fast.frozen.convolution import FrozenConvolution, convolution

CASES = {
    # oneDNN's kernel for channels_last gives other numbers here, on processors with AVX-512.
    "one channel, a stride, results of width 1": ((8, 4), (3, 3), (1, 2), (1, 0), (1, 1), 1),
    "one channel, dilated, results of width 1": ((8, 3), (3, 5), (1, 2), (1, 1), (2, 1), 1),
    # The fused convolution ended the process here.
    "results that see padding alone": ((8, 1), (3, 1), (1, 2), (4, 1), (1, 2), 3),
    "groups": ((5, 7), (3, 3), (2, 1), (1, 2), (1, 1), 4),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("relu", [True, False])
def test_a_frozen_convolution_of_any_shape_is_right(case: str, relu: bool) -> None:
    size, kernel, stride, padding, dilation, channels = CASES[case]
    groups = 2 if case == "groups" else 1
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, channels, *size, generator=generator).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(16, channels // groups, *kernel, generator=generator)
    bias = torch.randn(16, generator=generator)
    layer = FrozenConvolution(weight, bias, stride, padding, dilation, groups, relu, own_gradient=False)
    exact, leaf = x.double().requires_grad_(), x.clone().requires_grad_()
    expected = F.conv2d(exact, weight.double(), bias.double(), stride, padding, dilation, groups)
    expected = expected.relu() if relu else expected
    found = convolution(leaf, layer)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    up = torch.randn(found.shape, generator=generator)
    (gradient,), (right,) = (
        torch.autograd.grad(found, leaf, up),
        torch.autograd.grad(expected, exact, up.double()),
    )
    torch.testing.assert_close(gradient.double(), right, rtol=1e-4, atol=1e-4)
