"""Every way to compute a frozen convolution gives what the others give, up to rounding: over layers that hypothesis chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from cfol_fast.attacks.choices import Choices, using
from cfol_fast.attacks.convolution import FORMATS, FORWARD, OWN, FrozenConvolution, convolution

# Of the sum of all products' sizes: a float32 has 6e-8, and sums are made in any order and in blocks.
ROUNDING = 2e-6
# Where the result is this near to zero, rounding may decide whether ReLU lets a gradient pass.
UNSURE = 1e-3


class Pinned(Choices):
    """Takes this way forward and that way back wherever the layer has it; the usual one elsewhere."""

    def __init__(self, *ways: str) -> None:
        super().__init__("fixed")
        self.ways, self.taken = ways, list[str]()

    def choose(self, layer, names, run, others=()):  # type: ignore[no-untyped-def]
        way = next((way for way in self.ways if way in (*names, *others)), names[0])
        self.taken.append(way)
        return way


@st.composite
def layers(draw: Any) -> tuple[FrozenConvolution, Tensor]:
    """A layer and images for it, in one layout or the other."""

    def pair(least: int, most: int) -> tuple[int, int]:
        return draw(st.integers(least, most)), draw(st.integers(least, most))

    groups = draw(st.sampled_from((1, 1, 1, 2, 3)))
    inputs, outputs = (groups * draw(st.sampled_from(sizes)) for sizes in ((1, 2, 3, 5, 16), (1, 4, 7, 16)))
    kernel, stride, dilation, padding = pair(1, 4), pair(1, 3), pair(1, 2), pair(0, 3)
    size, batch = pair(1, 12), draw(st.integers(1, 5))
    assume(
        all(
            side + 2 * pad > step * (reach - 1)
            for side, pad, step, reach in zip(size, padding, dilation, kernel, strict=True)
        )
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    weight = torch.randn(outputs, inputs // groups, *kernel, generator=generator)
    bias = torch.randn(outputs, generator=generator) if draw(st.booleans()) else None
    relu, own_gradient = draw(st.booleans()), draw(st.booleans())
    layer = FrozenConvolution(weight, bias, stride, padding, dilation, groups, relu, own_gradient)
    x = torch.randn(batch, inputs, *size, generator=generator)
    return layer, x.contiguous(memory_format=FORMATS[draw(st.sampled_from(sorted(FORMATS)))])


def plainly(x: Tensor, layer: FrozenConvolution, of: Callable[[Tensor], Tensor]) -> Tensor:
    """torch's own convolution with `of` the weights, without ReLU."""
    bias = None if layer.bias is None else of(layer.bias)
    return F.conv2d(x, of(layer.weight), bias, layer.stride, layer.padding, layer.dilation, layer.groups)


def passes(chosen: Choices, x: Tensor, layer: FrozenConvolution, up: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
    with using(chosen):
        y = convolution(leaf, layer)
        return y.detach().clone(), torch.autograd.grad(y, leaf, up.clone())[0]


@given(layers())
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_every_way_gives_the_same_result_and_gradient_up_to_rounding(case: Any) -> None:
    layer, x = case
    exact = x.double().requires_grad_()
    expected = plainly(exact, layer, Tensor.double)
    up = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0))
    up = up * (expected.detach().abs() > UNSURE)
    passed = up.double() * (expected.detach() > 0) if layer.relu else up.double()
    (gradient,) = torch.autograd.grad(expected, exact, passed)
    # The products of which a result is the sum, each with a plus sign.
    sizes = exact.detach().abs().requires_grad_()
    forward_size = plainly(sizes, layer, lambda part: part.double().abs())
    (backward_size,) = torch.autograd.grad(forward_size, sizes, passed.abs())
    expected = (expected.relu() if layer.relu else expected).detach()
    for forward in FORWARD:
        for backward in (*FORMATS, OWN):
            found = passes(Pinned(forward, backward), x, layer, up)
            for result, right, size in zip(
                found, (expected, gradient), (forward_size.detach(), backward_size), strict=True
            ):
                assert (result.double() - right).abs().le(ROUNDING * size + 1e-12).all(), (forward, backward)


def test_each_way_is_taken_where_it_is_pinned() -> None:
    weight = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(0))
    layer = FrozenConvolution(weight, None, (1, 1), (1, 1), (1, 1), 1, True, own_gradient=False)
    x = torch.rand(2, 3, 9, 9, generator=torch.Generator().manual_seed(1))
    for ways in ((forward, backward) for forward in FORWARD for backward in (*FORMATS, OWN)):
        chosen = Pinned(*ways)
        passes(chosen, x, layer, torch.ones(2, 4, 9, 9))
        assert tuple(chosen.taken) == ways
