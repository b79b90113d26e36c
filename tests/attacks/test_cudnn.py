"""Convolution + bias + ReLU as one launch: its derivative, and when it is used; with a stand-in for cuDNN's op on the CPU."""

import pytest
import torch
import torch.nn.functional as F

from cfol_fast.attacks import cudnn
from cfol_fast.attacks.convolution import FrozenConvolution

CUDA = torch.device("cuda", 0)


def stand_in(x, weight, bias, stride, padding, dilation, groups):
    return F.relu(F.conv2d(x, weight, bias, stride, padding, dilation, groups))


def layer(relu=True, bias=True, stride=(1, 1), groups=1):
    torch.manual_seed(0)
    weight = torch.randn(6, 4 // groups, 3, 3).contiguous(memory_format=torch.channels_last)
    return FrozenConvolution(
        weight, torch.randn(6) if bias else None, stride, (1, 1), (1, 1), groups, relu, False
    )


@pytest.mark.parametrize(("stride", "groups"), [((1, 1), 1), ((2, 2), 1), ((1, 1), 2)])
def test_output_and_input_gradient_are_those_of_the_plain_layers(monkeypatch, stride, groups):
    monkeypatch.setattr(cudnn, "_fused_op", stand_in)
    frozen = layer(stride=stride, groups=groups)
    fused, plain = (torch.linspace(-1, 1, 3 * 4 * 64).view(3, 4, 8, 8).requires_grad_() for _ in range(2))
    y = cudnn.ConvolutionReLU.apply(fused, frozen)
    expected = stand_in(plain, frozen.weight, frozen.bias, stride, (1, 1), (1, 1), groups)
    cotangent = torch.sin(torch.arange(y.numel(), dtype=torch.float32)).view(y.shape)
    y.backward(cotangent)
    expected.backward(cotangent)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(fused.grad, plain.grad)


class OnAGpu(torch.Tensor):
    device = CUDA


@pytest.mark.parametrize(
    ("changes", "found", "deterministic", "used"),
    [
        ({}, True, False, True),
        ({}, False, False, False),
        ({}, True, True, False),
        ({"relu": False}, True, False, False),
        ({"bias": False}, True, False, False),
    ],
)
def test_it_is_used_where_it_was_tried_and_repetition_is_not_asked_for(
    monkeypatch, changes, found, deterministic, used
):
    monkeypatch.setattr(cudnn, "fuses", lambda device, dtype: found)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    assert cudnn.runs(torch.zeros(1, 4, 8, 8).as_subclass(OnAGpu), layer(**changes)) is used
    assert not cudnn.runs(torch.zeros(1, 4, 8, 8), layer(**changes))


@pytest.fixture
def tried_on_the_cpu(monkeypatch):
    """`cudnn.fuses` for a GPU, whose tensors stay on the CPU."""
    to = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda t, device, dtype: to(t, dtype))

    def tried(op, dtype=torch.float32):
        monkeypatch.setattr(cudnn, "_fused_op", op)
        return cudnn.fuses.__wrapped__(CUDA, dtype)

    return tried


def refused(*_):
    raise RuntimeError("CUDNN_STATUS_NOT_SUPPORTED")


def test_what_cudnn_refuses_or_computes_otherwise_is_not_used(tried_on_the_cpu):
    assert tried_on_the_cpu(stand_in)
    assert not tried_on_the_cpu(refused)
    assert not tried_on_the_cpu(lambda x, w, b, *rest: F.conv2d(x, w, b, *rest))
    assert not tried_on_the_cpu(lambda x, w, b, *rest: F.relu(F.conv2d(x, w, None, *rest)))
    assert not tried_on_the_cpu(stand_in, torch.float64)


def test_a_cpu_is_not_asked():
    assert not cudnn.fuses(torch.device("cpu"), torch.float32)
