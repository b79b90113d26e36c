"""The 3x3 convolution by Winograd's transforms, and the taps it takes."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from cfol_fast import ops
from tests.reference import winograd as reference


def channels_last(t):
    return t.contiguous(memory_format=torch.channels_last)


def made(batch, channels, outputs, height, width, seed=0):
    g = torch.Generator().manual_seed(seed)
    return (
        channels_last(torch.randn(batch, channels, height, width, generator=g)),
        torch.randn(outputs, channels, 3, 3, generator=g),
        torch.randn(outputs, generator=g),
        channels_last(torch.randn(batch, channels, height, width, generator=g).relu()),
    )


def test_the_literal_convolution(backend):
    x = torch.zeros(1, 16, 3, 2).contiguous(memory_format=torch.channels_last)
    x[0, 2] = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    weight = torch.zeros(16, 16, 3, 3)
    weight[5, 2] = torch.tensor([[0.0, 2.0, 0.0], [1.0, 10.0, 100.0], [0.0, 0.0, 4.0]])
    taps = backend.op("winograd_taps")(weight, False)
    bias = torch.zeros(16)
    bias[5], bias[6] = -1000.0, 0.5
    result = backend.op("winograd")(x, taps, bias, None, False)
    assert (result[0, 5] + 1000).tolist() == [[226, 21], [456, 47], [656, 73]]
    assert set(result[0, 6].flatten().tolist()) == {0.5}
    assert result[0, [4, 7]].abs().max() == 0
    assert backend.op("winograd")(x, taps, bias, None, True)[0, 5].abs().max() == 0
    mask = torch.ones_like(x)
    mask[0, 2, 0, 0], mask[0, 2, 2, 1] = 0.0, -0.0
    masked = backend.op("winograd")(x, taps, None, mask, False)
    assert masked[0, 5].tolist() == [[216, 20], [430, 47], [56, 13]]


def test_the_literal_taps(backend):
    weight = torch.zeros(32, 16, 3, 3)
    weight[17, 3] = torch.tensor([[1.0, 2.0, 4.0], [0.0, 0.0, 0.0], [8.0, 16.0, 32.0]])
    taps = backend.op("winograd_taps")(weight, False)
    assert taps.shape == (16, 2, 16, 16)
    # down the columns: first row, halves of the sum and of the difference with the middle one, last row; then
    # along the rows
    row = torch.tensor([1.0, 3.5, 1.5, 4.0])
    assert torch.equal(taps[:, 1, 3, 1].view(4, 4), torch.stack([row, 4.5 * row, 4.5 * row, 8 * row]))
    assert taps.count_nonzero() == 16
    turned = backend.op("winograd_taps")(weight, True)
    assert turned.shape == (16, 1, 32, 16)
    # reversed along both axes, and from output 17 to channel 3
    row = torch.tensor([4.0, 3.5, 1.5, 1.0])
    assert torch.equal(turned[:, 0, 17, 3].view(4, 4), torch.stack([8 * row, 4.5 * row, 4.5 * row, row]))


@pytest.mark.parametrize(
    ("batch", "channels", "outputs", "height", "width"),
    [
        (0, 16, 16, 4, 4),
        (1, 16, 16, 1, 1),
        (2, 32, 48, 3, 5),  # two panels at once and one; an edge in both directions
        (1, 16, 32, 8, 2),
        (3, 48, 16, 6, 4),  # rows of a block that are not whole
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_every_bit_agrees_with_the_reference(backend, batch, channels, outputs, height, width, masked):
    x, weight, bias, relu = made(batch, channels, outputs, height, width)
    taps = backend.op("winograd_taps")(weight, masked and channels == outputs)
    assert torch.equal(
        taps, torch.from_numpy(reference.winograd_taps(weight, masked and channels == outputs))
    )
    given = (bias, relu, True) if masked else (None, None, False)
    result = backend.op("winograd")(x, taps, *given)
    assert torch.equal(result, torch.from_numpy(reference.winograd(x, taps, *given)))


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 5),
    channels=st.sampled_from([16, 32, 80]),
    outputs=st.sampled_from([16, 48, 64]),
    height=st.integers(1, 11),
    width=st.integers(1, 11),
    seed=st.integers(0, 99),
)
def test_it_is_a_convolution_and_its_gradient(batch, channels, outputs, height, width, seed):
    x, weight, bias, _ = made(batch, channels, outputs, height, width, seed)
    x = x.double().requires_grad_()
    y = F.conv2d(x, weight.double(), bias.double(), padding=1).relu()
    found = ops.winograd(x.detach().float(), ops.winograd_taps(weight), bias, rectify=True)
    torch.testing.assert_close(found.double(), y.detach(), atol=1e-4, rtol=1e-5)
    assert found.is_contiguous(memory_format=torch.channels_last)
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed))
    expected = torch.autograd.grad(y, x, grad.double())[0]
    back = ops.winograd(grad, ops.winograd_taps(weight, gradient=True), relu_output=y.detach().float())
    torch.testing.assert_close(back.double(), expected, atol=1e-4, rtol=1e-5)


def test_it_rounds_about_as_the_usual_way_does():
    x, weight, _, _ = made(2, 256, 256, 8, 8)
    exact = F.conv2d(x.double(), weight.double(), padding=1)
    usual = (F.conv2d(x, weight, padding=1).double() - exact).square().mean().sqrt()
    ours = (ops.winograd(x, ops.winograd_taps(weight)).double() - exact).square().mean().sqrt()
    assert ours < 1e-6 * exact.square().mean().sqrt()
    assert ours < 2 * usual


def test_many_tiles_are_done_in_blocks_whatever_the_threads():
    x, weight, bias, relu = made(33, 64, 32, 14, 13)
    taps, threads = ops.winograd_taps(weight), torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(ops.winograd(x, taps, bias, relu_output=relu))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    single = torch.cat(
        [ops.winograd(x[i : i + 1], taps, bias, relu_output=relu[i : i + 1]) for i in range(33)]
    )
    assert torch.equal(results[0], single)
    expected = F.conv2d(x * (relu > 0), weight, bias, padding=1)
    torch.testing.assert_close(results[0], expected, atol=1e-3, rtol=1e-4)


def test_what_is_not_a_number_stays_visible(backend):
    x, weight, bias, _ = made(1, 16, 16, 4, 4)
    x[0, 3, 1, 1] = float("nan")
    result = backend.op("winograd")(x, backend.op("winograd_taps")(weight, False), bias, None, True)
    assert result[0, :, 0:2, 0:2].isnan().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 16, 4, 4)}, r"x must be \(B, C, H, W\), channels_last"),
        ({"x": torch.zeros(16, 4, 4)}, r"x must be .* got \(16, 4, 4\)"),
        ({"x": channels_last(torch.zeros(2, 32, 4, 4))}, "taps must be .* the 32 channels of x"),
        (
            {"x": channels_last(torch.zeros(2, 8, 4, 4)), "taps": torch.zeros(16, 1, 8, 16)},
            "multiple of 16, got 8",
        ),
        ({"taps": torch.zeros(9, 1, 16, 16)}, "taps must be what winograd_taps makes"),
        ({"taps": torch.zeros(16, 0, 16, 16)}, "taps must be what winograd_taps makes"),
        ({"taps": torch.zeros(16, 1, 16, 32)[..., ::2]}, "taps must be what winograd_taps makes"),
        ({"taps": torch.zeros(16, 1, 16, 8)}, "taps must be what winograd_taps makes"),
        ({"bias": torch.zeros(32)}, r"bias must have shape \(16,\)"),
        ({"relu": torch.zeros(2, 16, 4, 3)}, "relu must have the shape of x"),
        ({"relu": torch.zeros(2, 16, 4, 4)}, "relu must have the memory format of x"),
    ],
)
def test_bad_input_is_refused(backend, change, message):
    x, weight, bias, relu = made(2, 16, 16, 4, 4)
    taps = ops.winograd_taps(weight)
    arguments = {"x": x, "taps": taps, "bias": bias, "relu": relu, "rectify": True, **change}
    with pytest.raises(ValueError, match=message):
        backend.op("winograd")(*arguments.values())


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.zeros(16, 16, 3, 1), r"weight must be \(O, C, 3, 3\), contiguous"),
        (torch.zeros(16, 16, 3, 3).transpose(0, 1), "contiguous"),
        (torch.zeros(8, 16, 3, 3), "the outputs of weight must be a multiple of 16, got 8"),
        (torch.zeros(16, 3, 3, 3), "the channels of weight must be a multiple of 16, got 3"),
        (torch.zeros(0, 16, 3, 3), "the outputs of weight must be a multiple of 16, got 0"),
    ],
)
def test_weights_that_do_not_fit_are_refused(backend, weight, message):
    with pytest.raises(ValueError, match=message):
        backend.op("winograd_taps")(weight, False)


def test_a_bias_may_lie_apart_in_memory():
    x, weight, bias, _ = made(1, 16, 16, 4, 4)
    apart = torch.stack([bias, bias], 1)[:, 0]
    taps = ops.winograd_taps(weight)
    assert torch.equal(ops.winograd(x, taps, apart), ops.winograd(x, taps, bias))


def test_another_dtype_is_refused():
    x, weight, _, _ = made(1, 16, 16, 4, 4)
    with pytest.raises(TypeError, match=r"weight .*got float64"):
        ops.winograd_taps(weight.double())
    with pytest.raises(TypeError, match=r"x .*got float64"):
        ops.winograd(x.double(), ops.winograd_taps(weight))
