"""Every way to compute a frozen convolution gives what the others give, up to rounding: over layers that
hypothesis chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import cfol_fast.frozen.convolution as convolutions
from cfol_fast.frozen.autotune import Choices, using
from cfol_fast.frozen.convolution import FORMATS, FORWARD, OWN, WINOGRAD, FrozenConvolution, convolution

# All ways back.
BACKWARD = (*FORMATS, OWN, WINOGRAD)

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
    if draw(st.integers(0, 2)) == 0:
        # Hardly ever drawn, and most of a network's work: what Winograd fits.
        groups, (inputs, outputs) = 1, draw(st.sampled_from(((16, 32), (48, 16))))
        kernel, stride, dilation, padding = (3, 3), (1, 1), (1, 1), (1, 1)
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
        for backward in BACKWARD:
            found = passes(Pinned(forward, backward), x, layer, up)
            for result, right, size in zip(
                found, (expected, gradient), (forward_size.detach(), backward_size), strict=True
            ):
                assert (result.double() - right).abs().le(ROUNDING * size + 1e-12).all(), (forward, backward)


def a_layer(inputs: int, outputs: int) -> tuple[FrozenConvolution, Tensor]:
    weight = torch.randn(outputs, inputs, 3, 3, generator=torch.Generator().manual_seed(0))
    x = torch.rand(2, inputs, 9, 9, generator=torch.Generator().manual_seed(1))
    return FrozenConvolution(weight, None, (1, 1), (1, 1), (1, 1), 1, True, own_gradient=False), x


def taken(layer: FrozenConvolution, x: Tensor, *ways: str) -> tuple[str, ...]:
    chosen = Pinned(*ways)
    passes(chosen, x, layer, torch.ones(2, len(layer.weight), 9, 9))
    return tuple(chosen.taken)


@pytest.mark.parametrize(
    ("channels", "missing"), [((3, 4), ("channels_last winograd", WINOGRAD)), ((16, 32), (OWN,))]
)
def test_each_way_is_taken_where_it_is_pinned_and_fits(
    channels: tuple[int, int], missing: tuple[str, ...]
) -> None:
    layer, x = a_layer(*channels)
    usual = taken(layer, x)
    for forward in FORWARD:
        for backward in BACKWARD:
            found = taken(layer, x, forward, backward)
            assert found[0] == (usual[0] if forward in missing else forward)
            assert backward in missing or found[1] == backward
            assert not set(found) & set(missing)


@pytest.mark.parametrize(
    ("fast", "images", "raced"), [(True, 1, True), (False, 1, False), (True, 0, False), (False, 0, False)]
)
def test_winograd_races_where_it_may_pay_and_can_be_pinned_anywhere(
    fast: bool, images: int, raced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolutions, "WINOGRAD_IS_FAST", fast)
    layer, x = a_layer(16, 32)
    # 2 images of 25 tiles each, or of a single one.
    x = x if images else x[:, :, :2, :2].contiguous()
    entered: list[bool] = []

    class Looking(Choices):
        def choose(self, layer, names, run, others=()):  # type: ignore[no-untyped-def]
            entered.append(names[-1].endswith(WINOGRAD))
            assert any(other.endswith(WINOGRAD) for other in others)
            return names[0]

    passes(Looking("fixed"), x, layer, torch.ones(2, 32, *x.shape[2:]))
    assert entered == [raced, raced]


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "groups", "inputs", "outputs", "fits"),
    [
        (3, 1, 1, 1, 1, 16, 32, True),
        (5, 1, 1, 1, 1, 16, 32, False),
        (3, 2, 1, 1, 1, 16, 32, False),
        (3, 1, 0, 1, 1, 16, 32, False),
        (3, 1, 1, 2, 1, 16, 32, False),
        (3, 1, 1, 1, 2, 32, 32, False),
        (3, 1, 1, 1, 1, 24, 32, False),
        (3, 1, 1, 1, 1, 16, 40, False),
    ],
)
def test_only_what_winograd_can_compute_fits_it(
    kernel: int, stride: int, padding: int, dilation: int, groups: int, inputs: int, outputs: int, fits: bool
) -> None:
    geometry = (stride,) * 2, (padding,) * 2, (dilation,) * 2
    weight = torch.zeros(outputs, inputs // groups, kernel, kernel)
    layer = FrozenConvolution(weight, None, *geometry, groups, False, own_gradient=False)
    assert layer.fits_winograd is fits
    half = FrozenConvolution(weight.bfloat16(), None, *geometry, groups, False, own_gradient=False)
    assert not half.fits_winograd


@pytest.mark.parametrize(("setting", "made"), [("race", True), ("fixed", False)])
def test_taps_are_made_before_a_race_and_kept_if_they_win(
    setting: str, made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolutions, "WINOGRAD_IS_FAST", True)
    seen: list[set[bool]] = []

    class Looking(Choices):
        def choose(self, layer_text, names, run, others=()):  # type: ignore[no-untyped-def]
            seen.append(set(layer._taps))
            return names[-1] if layer_text.startswith("forward") else names[0]

    layer, x = a_layer(16, 32)
    passes(Looking(setting), x, layer, torch.ones(2, 32, 9, 9))
    # The forward pass has used them; the way back did not win.
    assert seen == ([{False}, {False, True}] if made else [set(), {False}])
    assert set(layer._taps) == {False}


def test_taps_are_not_made_where_all_is_known() -> None:
    class Knowing(Choices):
        def known(self, layer: str) -> str | None:
            return None if layer.startswith("layout") else "channels_last plain"

        def choose(self, layer_text, names, run, others=()):  # type: ignore[no-untyped-def]
            assert layer._taps == {}
            return names[0]

    layer, x = a_layer(16, 32)
    passes(Knowing("race"), x, layer, torch.ones(2, 32, 9, 9))
    assert layer._taps == {}


@pytest.mark.parametrize("backward", BACKWARD)
def test_a_second_derivative_is_refused_whichever_way_the_first_one_took(backward: str) -> None:
    layer, x = a_layer(16, 32)
    with using(Pinned(backward)):
        leaf = x.requires_grad_()
        (gradient,) = torch.autograd.grad(convolution(leaf, layer).square().sum(), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
