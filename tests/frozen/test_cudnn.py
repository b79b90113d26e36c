"""Convolution + bias (+ sum) + ReLU as one launch: derivatives, and when it is used; with stand-ins for
cuDNN's ops on the CPU.
"""

import pytest
import torch
import torch.nn.functional as F

from cfol_fast import models
from cfol_fast.frozen import convolution, cudnn, proof
from cfol_fast.frozen.convolution import FrozenConvolution
from cfol_fast.frozen.network import frozen
from tests.attacks.small_models import awaken

CUDA = torch.device("cuda", 0)


def stand_in(x, weight, bias, stride, padding, dilation, groups):
    return F.relu(F.conv2d(x, weight, bias, stride, padding, dilation, groups))


def stand_in_with_sum(x, weight, z, alpha, bias, stride, padding, dilation, groups):
    return F.relu(F.conv2d(x, weight, bias, stride, padding, dilation, groups) + alpha * z)


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


@pytest.mark.parametrize(("stride", "groups"), [((1, 1), 1), ((2, 2), 1), ((1, 1), 2)])
def test_with_a_sum_both_gradients_are_those_of_the_plain_layers(monkeypatch, stride, groups):
    monkeypatch.setattr(cudnn, "_fused_add_op", stand_in_with_sum)
    monkeypatch.setattr(cudnn, "fuses", lambda device, dtype: True)
    frozen = layer(relu=False, stride=stride, groups=groups)
    results = []
    for fused in (True, False):
        x = torch.linspace(-1, 1, 3 * 4 * 64).view(3, 4, 8, 8).requires_grad_()
        z = torch.linspace(4, -4, 3 * 6 * 64 // stride[0] ** 2).view(frozen.output_shape(x)).requires_grad_()
        if fused:
            y = convolution.convolution_add_relu(x, frozen, z, True, False)
            assert "ConvolutionAddReLU" in type(y.grad_fn).__name__
        else:
            y = stand_in_with_sum(x, frozen.weight, z, 1, frozen.bias, stride, (1, 1), (1, 1), groups)
        y.backward(torch.sin(torch.arange(y.numel(), dtype=torch.float32)).view(y.shape))
        results.append((y.detach(), x.grad, z.grad))
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("z", [torch.ones(3, 6, 1, 1), torch.ones(3, 6, 8, 8, dtype=torch.float64), 2.0])
def test_a_summand_of_another_kind_is_added_by_torch(monkeypatch, z):
    monkeypatch.setattr(cudnn, "fuses", lambda device, dtype: True)
    x, frozen = torch.linspace(-1, 1, 3 * 4 * 64).view(3, 4, 8, 8), layer(relu=False)
    y = convolution.convolution_add_relu(x, frozen, z, True, False)
    expected = F.relu(F.conv2d(x, frozen.weight, frozen.bias, padding=1) + z)
    torch.testing.assert_close(y, expected)


def test_every_convolution_before_a_relu_is_fused_in_a_residual_network(monkeypatch):
    """17 ReLUs: one after the stem, and in each of 8 blocks one inside and one after the sum."""
    calls = []
    monkeypatch.setattr(convolution, "_runs_fused", lambda x: False)
    monkeypatch.setattr(proof, "due", lambda record, case: False)
    model = awaken(models.create("resnet18@0.125", 10).eval())
    x, results = torch.linspace(0, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32), []
    for fused in (False, True):
        monkeypatch.setattr(cudnn, "fuses", lambda device, dtype, fused=fused: fused)
        monkeypatch.setattr(cudnn, "_fused_op", lambda *a: calls.append("relu") or stand_in(*a))
        monkeypatch.setattr(
            cudnn, "_fused_add_op", lambda *a: calls.append("add_relu") or stand_in_with_sum(*a)
        )
        leaf = x.clone().requires_grad_()
        with frozen(model, x.device) as net:
            logits = net(leaf)
            results.append((logits.detach(), torch.autograd.grad(logits[:, 0].sum(), leaf)[0]))
    assert (calls.count("relu"), calls.count("add_relu")) == (9, 8)
    for plain, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain)


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
    monkeypatch.setattr(cudnn, "fuses", lambda device, dtype: device == CUDA and found)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    assert cudnn.runs(torch.zeros(1, 4, 8, 8).as_subclass(OnAGpu), layer(**changes)) is used
    assert not cudnn.runs(torch.zeros(1, 4, 8, 8), layer(**changes))
    # The ReLU after a sum is not the layer's own.
    with_sum = layer(**{**changes, "relu": False})
    x, z = torch.zeros(1, 4, 8, 8), torch.zeros(1, 6, 8, 8)
    assert cudnn.adds(x.as_subclass(OnAGpu), with_sum, z) is (used or "relu" in changes)
    assert not cudnn.adds(x, with_sum, z)


@pytest.fixture
def tried_on_the_cpu(monkeypatch):
    """`cudnn.fuses` for a GPU, whose tensors stay on the CPU."""
    to = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda t, device, dtype: to(t, dtype))

    def tried(op, dtype=torch.float32, with_sum=stand_in_with_sum):
        monkeypatch.setattr(cudnn, "_fused_op", op)
        monkeypatch.setattr(cudnn, "_fused_add_op", with_sum)
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
    assert not tried_on_the_cpu(stand_in, with_sum=refused)
    assert not tried_on_the_cpu(stand_in, with_sum=lambda x, w, z, a, b, *rest: stand_in(x, w, b, *rest))
    assert not tried_on_the_cpu(stand_in, with_sum=lambda x, w, z, a, b, *rest: F.conv2d(x, w, b, *rest) + z)


def test_a_cpu_is_not_asked():
    assert not cudnn.fuses(torch.device("cpu"), torch.float32)
