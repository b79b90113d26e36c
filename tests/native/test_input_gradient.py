"""The input gradient of a convolution with few input channels."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from cfol_fast import ops
from tests.reference import input_gradient as reference


def channels_last(t):
    return t.contiguous(memory_format=torch.channels_last)


def made(batch, outputs, h, w, channels, a, b, seed=0):
    g = torch.Generator().manual_seed(seed)
    return (
        channels_last(torch.randn(batch, outputs, h, w, generator=g)),
        torch.randn(outputs, channels, a, b, generator=g),
        channels_last(torch.randn(batch, outputs, h, w, generator=g).relu()),
    )


def test_the_literal_gradient(backend):
    grad = channels_last(torch.tensor([[[[1.0, 10.0], [100.0, 1000.0]]]]))
    weight = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    given = backend.op("input_gradient")(grad, weight, None, 0, 0)
    assert given.tolist() == [[[[1, 12, 20], [103, 1234, 2040], [300, 3400, 4000]]]]
    inside = backend.op("input_gradient")(grad, weight, None, 1, 1)
    assert inside.tolist() == [[[[1234]]]]
    relu = channels_last(torch.tensor([[[[5.0, 0.0], [-0.0, 1e-30]]]]))
    assert backend.op("input_gradient")(grad, weight, relu, 1, 1).tolist() == [[[[1000 + 4]]]]


@pytest.mark.parametrize(
    ("batch", "outputs", "h", "w", "channels", "a", "b", "pad_h", "pad_w"),
    [
        (0, 3, 4, 4, 1, 3, 3, 1, 1),
        (2, 16, 5, 13, 1, 3, 3, 1, 1),  # eight, four and single pixels of a row
        (1, 5, 4, 3, 3, 3, 3, 1, 1),
        (1, 33, 2, 5, 2, 2, 4, 0, 3),
        (3, 1, 3, 8, 4, 1, 1, 0, 0),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_every_bit_agrees_with_the_reference(
    backend, batch, outputs, h, w, channels, a, b, pad_h, pad_w, masked
):
    grad, weight, relu = made(batch, outputs, h, w, channels, a, b)
    mask = relu if masked else None
    result = backend.op("input_gradient")(grad, weight, mask, pad_h, pad_w)
    expected = torch.from_numpy(reference.input_gradient(grad, weight, mask, pad_h, pad_w))
    assert torch.equal(result, expected)


@settings(max_examples=40, deadline=None)
@given(
    outputs=st.integers(1, 40),
    size=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    channels=st.integers(1, 4),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    data=st.data(),
)
def test_it_is_what_autograd_finds(outputs, size, channels, kernel, data):
    padding = tuple(data.draw(st.integers(0, side - 1)) for side in kernel)
    if any(n + k - 1 - 2 * pad < 1 for n, k, pad in zip(size, kernel, padding, strict=True)):
        return
    grad, weight, _ = made(2, outputs, *size, channels, *kernel)
    shape = [n + k - 1 - 2 * pad for n, k, pad in zip(size, kernel, padding, strict=True)]
    x = torch.randn(2, channels, *shape, requires_grad=True)
    y = F.conv2d(x, weight, padding=padding).relu()
    expected = torch.autograd.grad(y, x, grad)[0]
    result = ops.input_gradient(grad.contiguous(), weight, padding, y.detach())
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-5)
    assert result.is_contiguous(memory_format=torch.channels_last)


def test_an_image_larger_than_the_buffer_is_done_in_bands():
    grad, weight, relu = made(2, 300, 70, 33, 1, 3, 3)
    x = torch.zeros(2, 1, 70, 33, requires_grad=True)
    expected = torch.autograd.grad(F.conv2d(x, weight, padding=1), x, grad * (relu > 0))[0]
    result = ops.input_gradient(grad, weight, (1, 1), relu)
    torch.testing.assert_close(result, expected, atol=1e-3, rtol=1e-5)


def test_the_threads_do_not_change_a_bit():
    grad, weight, relu = made(64, 16, 28, 28, 1, 3, 3)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(ops.input_gradient(grad, weight, (1, 1), relu))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grad": torch.zeros(2, 5, 4, 4)}, r"grad must be \(B, O, h, w\), channels_last"),
        ({"grad": torch.zeros(5, 4, 4)}, r"grad must be .* got \(5, 4, 4\)"),
        ({"weight": torch.zeros(3, 1, 3, 3)}, "weight must have the 5 outputs of grad, got 3"),
        ({"weight": torch.zeros(5, 3, 3, 1).transpose(1, 3)}, "weight must be .*contiguous"),
        ({"relu": torch.zeros(2, 5, 4, 3)}, "relu must have the shape of grad"),
        ({"relu": torch.zeros(2, 5, 4, 4)}, "relu must have the memory format of grad"),
        ({"pad_h": 3}, "padding must be at least 0 and less than the kernel, got 3 and 1"),
        ({"pad_w": -1}, "padding must be at least 0"),
        ({"weight": torch.zeros(5, 0, 3, 3)}, "no input is left"),
        ({"weight": torch.zeros(5, 1, 6, 9), "pad_h": 5, "pad_w": 8}, "no input is left"),
    ],
)
def test_bad_input_is_refused(backend, change, message):
    grad, weight, relu = made(2, 5, 4, 4, 1, 3, 3)
    arguments = {"grad": grad, "weight": weight, "relu": relu, "pad_h": 1, "pad_w": 1, **change}
    with pytest.raises(ValueError, match=message):
        backend.op("input_gradient")(*arguments.values())


def test_another_dtype_is_refused():
    grad, weight, _ = made(2, 5, 4, 4, 1, 3, 3)
    with pytest.raises(TypeError, match=r"grad .*got float64"):
        ops.input_gradient(grad.double(), weight, (1, 1))
