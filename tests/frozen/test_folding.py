"""Tracing and folding: the frozen network is the model, and a model that cannot be frozen runs as it is."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cfol_fast import models
from cfol_fast.attacks import PGD
from cfol_fast.frozen import tracing
from cfol_fast.frozen.convolution import FrozenConvolution, convolution
from cfol_fast.frozen.network import frozen
from cfol_fast.frozen.tracing import plan_for
from tests.attacks.small_models import SmallNet, Trained, awaken
from tests.training.replaying import Trace


def check_same(model: nn.Module, x: Tensor, classes: int = 10) -> None:
    """Logits and input gradients of the frozen network against the model's own."""
    awaken(model)
    torch.manual_seed(1)
    weight = torch.randn(len(x), classes)
    results = []
    for fast in (True, False):
        leaf = x.clone().requires_grad_()
        with frozen(model, x.device, fast) as net:
            logits = net(leaf)
            results.append((logits.detach(), torch.autograd.grad((logits * weight).sum(), leaf)[0]))
    for fast_result, plain_result in zip(*results, strict=True):
        scale = plain_result.abs().max()
        torch.testing.assert_close(fast_result / scale, plain_result / scale, atol=2e-5, rtol=0)


class Head(nn.Module):
    """Wraps feature layers into a classifier."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layers(x).flatten(1)
        return F.pad(out, (0, 10 - out.shape[1] % 10)).unflatten(1, (-1, 10)).sum(1)


def folds(model: nn.Module) -> list[tuple[str, bool, bool]]:
    plan = plan_for(model.eval())
    assert plan is not None
    return [(fold.conv.rpartition(".")[2], fold.norm is not None, fold.relu) for fold in plan.folds]


@pytest.mark.parametrize(
    ("name", "convolutions", "folded"),
    [
        ("demo-cnn", 3, 3),
        ("resnet18@0.125", 20, 20),
        ("resnet50@0.0625", 53, 53),
        ("preact-resnet18@0.125", 20, 8),  # BatchNorm before a convolution cannot be folded
        ("wrn-10-1@0.5", 9, 3),
        ("vgg16@0.125", 13, 13),
    ],
)
def test_our_networks_are_folded(name: str, convolutions: int, folded: int) -> None:
    torch.manual_seed(0)
    model = models.create(name, 10, mean=[0.5, 0.4, 0.3], std=[0.2, 0.3, 0.25])
    check_same(model, torch.rand(3, 3, 32, 32))
    plan = plan_for(model)
    assert plan is not None
    assert len(plan.folds) == convolutions
    assert sum(fold.norm is not None for fold in plan.folds) == folded


@pytest.mark.slow
def test_torchvisions_networks_are_folded() -> None:
    torch.manual_seed(0)
    model = models.create("mobilenet_v3_small", 10)
    check_same(model, torch.rand(2, 3, 32, 32))
    assert sum(norm for _, norm, _ in folds(model)) > 30


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False), nn.ReLU()], [("0", True, True)]),
        (
            [nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8, track_running_stats=False)],
            [("0", False, False)],
        ),
        ([nn.Conv2d(3, 6, 3, 2, 2, dilation=2, groups=3), nn.BatchNorm2d(6)], [("0", True, False)]),
        ([nn.Conv2d(3, 8, (3, 1), (1, 2), (0, 1)), nn.GELU(), nn.BatchNorm2d(8)], [("0", False, False)]),
        ([nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(8)], []),
        ([nn.Conv2d(3, 8, 3, padding="same"), nn.BatchNorm2d(8)], []),
        ([nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3, bias=False), nn.ReLU(inplace=True)], [("1", False, True)]),
        ([nn.Conv2d(3, 5, 7, 2, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.MaxPool2d(2)], [("0", True, True)]),
        ([nn.ConvTranspose2d(3, 8, 3), nn.BatchNorm2d(8)], []),
        (
            [nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()],
            [("0", False, True), ("2", False, True)],
        ),
    ],
)
def test_each_kind_of_layer_gives_the_same_result(layers: list[nn.Module], expected: list) -> None:
    torch.manual_seed(0)
    model = Head(*layers)
    check_same(model, torch.rand(4, 3, 9, 11))
    assert folds(model) == expected


class TwoReaders(nn.Module):
    """The convolution's own result is used besides BatchNorm's, and one module is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.again = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Conv2d(6, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        raw = self.conv(x)
        out = F.relu(self.bn(raw)) + raw
        out = F.relu(self.again(out)) + F.relu(self.again(out)).mul(2)
        return F.pad(out.mean((2, 3)), (0, 4))


def test_a_result_with_two_readers_is_not_folded_away() -> None:
    torch.manual_seed(0)
    check_same(TwoReaders(), torch.rand(4, 3, 8, 8))


class Overwriting(nn.Module):
    """In-place ReLU on a sum whose first part is read again afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 10, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv(x)
        total = out
        total += 0.3
        kept = torch.relu(total)
        return (kept + out).mean((2, 3))


def test_a_value_that_is_read_again_is_not_overwritten() -> None:
    torch.manual_seed(0)
    check_same(Overwriting(), torch.rand(4, 3, 8, 8))


class Branches(nn.Module):
    """Two ReLUs that get one and the same gradient tensor, and a sum that is read besides its ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 10, 3), nn.Conv2d(3, 10, 3)

    def forward(self, x: Tensor) -> Tensor:
        total = F.relu(self.left(x)) + F.relu(self.right(x))
        shifted = total - 0.5 + self.left(x)
        return (torch.relu(shifted) + shifted).mean((2, 3))


def test_branches_that_share_a_gradient_do_not_disturb_each_other() -> None:
    torch.manual_seed(0)
    check_same(Branches(), torch.rand(4, 3, 8, 8))


class Options(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 10, 3), nn.BatchNorm2d(10)

    def forward(
        self, x: Tensor, with_latent: bool = False, scale: float | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        latent = self.bn(self.conv(x))
        if scale is not None:
            latent = latent * scale
        out = latent.mean((2, 3))
        return (out, latent) if with_latent else out


def test_options_of_the_forward_pass_keep_their_defaults() -> None:
    model = Options()
    check_same(model, torch.rand(4, 3, 8, 8))
    assert folds(model) == [("conv", True, False)]


class DataDependent(SmallNet):
    def forward(self, x: Tensor) -> Tensor:
        if x.mean() > 10:
            x = x / 255
        return super().forward(x)


class Noisy(SmallNet):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 0.1 * torch.randn(3, 10, 10))


def test_a_module_that_cannot_be_traced_runs_as_it_is(trained: Trained) -> None:
    model = DataDependent().eval()
    model.load_state_dict(trained.model.state_dict())
    assert plan_for(model) is None
    adv = PGD(model, 0.03, random_start=False)(trained.x, trained.y)
    assert torch.equal(adv, PGD(trained.model, 0.03, random_start=False, fast=False)(trained.x, trained.y))


def test_noise_inside_the_model_is_not_frozen(trained: Trained) -> None:
    model = Noisy().eval()
    before = set(vars(model))
    assert plan_for(model) is None
    assert set(vars(model)) == before
    with frozen(model, trained.x.device) as net:
        assert not torch.equal(net(trained.x), net(trained.x))


def test_hooks_are_still_called(trained: Trained) -> None:
    model, x, y = trained
    seen: list[int] = []
    handle = model.block1.register_forward_hook(lambda *_: seen.append(1))
    PGD(model, 0.03, steps=3)(x, y)
    assert len(seen) == 3
    handle.remove()
    PGD(model, 0.03, steps=3)(x, y)
    assert len(seen) == 3
    assert plan_for(model) is not None


def test_changed_weights_are_used_without_tracing_again(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, y = trained
    traced: list[int] = []
    original = tracing._trace
    monkeypatch.setattr(tracing, "_trace", lambda *a: traced.append(1) or original(*a))
    attack = PGD(model, 0.03, random_start=False)
    attack(x, y)
    with torch.no_grad():
        model.stem[0].weight.mul_(-1)
        model.block2.bn1.running_var.mul_(3)
        model.linear.weight.mul_(-0.5)
    changed = attack(x, y)
    assert len(traced) == 1
    expected = PGD(model, 0.03, random_start=False, fast=False)(x, y)
    assert ((changed - expected).abs() < 1e-6).float().mean() > 0.99


def test_a_part_that_was_exchanged_is_noticed(trained: Trained) -> None:
    model, x, y = trained
    attack = PGD(model, 0.03, random_start=False)
    attack(x, y)
    model.stem[2] = nn.Tanh()
    expected = PGD(model, 0.03, random_start=False, fast=False)(x, y)
    assert ((attack(x, y) - expected).abs() < 1e-6).float().mean() > 0.99


def test_a_plan_does_not_keep_its_model_alive() -> None:
    model = SmallNet().eval()
    assert plan_for(model) is not None
    watch = weakref.ref(model)
    del model
    gc.collect()
    assert watch() is None


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (5, 3)])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation"),
    [((1, 1), (0, 0), (1, 1)), ((1, 1), (2, 2), (1, 1)), ((2, 3), (2, 0), (1, 2))],
)
@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("relu", [False, True])
def test_the_input_gradient_of_a_frozen_convolution_is_the_convolutions(
    kernel: tuple, stride: tuple, padding: tuple, dilation: tuple, channels: int, relu: bool
) -> None:
    torch.manual_seed(0)
    x = torch.rand(2, channels, 12, 13, requires_grad=True)
    weight = torch.randn(6, channels, *kernel)
    y = F.conv2d(x, weight, None, stride, padding, dilation)
    y = y.relu() if relu else y
    grad = torch.randn_like(y)
    layer = FrozenConvolution(weight, None, stride, padding, dilation, 1, relu, False)
    assert layer.output_pixels(x) == y.shape[2] * y.shape[3]
    frozen = convolution(x, layer)
    torch.testing.assert_close(frozen, y)
    torch.testing.assert_close(
        torch.autograd.grad(frozen, x, grad)[0], torch.autograd.grad(y, x, grad)[0], atol=1e-4, rtol=1e-4
    )


def test_folding_costs_one_op_a_layer_and_a_few_for_all_of_them() -> None:
    """On a GPU every op is a launch, at every training step."""
    model = models.create("resnet18@0.125", 10).eval().to(memory_format=torch.channels_last)
    plan = plan_for(model)
    assert plan is not None
    for dtype, casts in ((None, 0), (torch.bfloat16, 1)):
        with plan.frozen(model, dtype):
            pass
        with Trace() as trace, plan.frozen(model, dtype):
            pass
        views = ("detach", "view", "alias", "empty")
        kernels = [name for name, _ in trace.ops if not any(view in name for view in views)]
        assert len(plan.folds) == 20
        assert len(kernels) <= len(plan.folds) + 7 + casts, kernels
        assert not any("empty" in name for name, _ in trace.ops)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_folded_weights_stay_where_they_are_from_step_to_step(
    dtype: torch.dtype | None, memory_format: torch.memory_format
) -> None:
    """A captured step writes to the addresses that it was recorded with."""
    model = models.create("preact-resnet18@0.125", 10).eval().to(memory_format=memory_format)
    plan = plan_for(model)
    assert plan is not None
    places, values = [], []
    for _ in range(3):
        with plan.frozen(model, dtype) as layers:
            folded = [t for layer in layers for t in (layer.weight, layer.bias) if t is not None]
            places.append([t.data_ptr() for t in folded])
            values.append([t.clone() for t in folded])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.5)
    assert places[0] == places[1] == places[2]
    assert not any(torch.equal(one, two) for one, two in zip(*values[:2], strict=True))


def test_two_attacks_at_the_same_time_do_not_write_to_each_others_weights() -> None:
    model = SmallNet().eval()
    plan = plan_for(model)
    assert plan is not None
    with plan.frozen(model, None) as outer, plan.frozen(model, None) as inner:
        assert not {layer.bias.data_ptr() for layer in outer} & {layer.bias.data_ptr() for layer in inner}


def test_weights_of_another_precision_get_memory_of_their_own() -> None:
    model = SmallNet().eval()
    for kind in (torch.float32, torch.float64, torch.float32):
        check_same(model.to(kind), torch.rand(2, 3, 10, 10, dtype=kind))


class ResidualEnds(nn.Module):
    """Sums before a ReLU that look like a residual block's: in place, with one number a channel, twice the
    same, read again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.ModuleList(nn.Conv2d(3 if i == 0 else 10, 10, 3, padding=1) for i in range(6))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.conv[0](x))
        branch = self.conv[1](out)
        branch += out
        out = F.relu(branch)
        short = self.conv[2](out)
        short += self.conv[3](out)
        out = F.relu(short)
        pooled = out.mean((2, 3), keepdim=True)
        out = F.relu(pooled + self.conv[4](out))
        last = self.conv[5](out)
        total = 2 * out
        total += last
        return (F.relu(total) + total + F.relu(last + last)).mean((2, 3))


def test_the_ends_of_residual_blocks_give_the_same_result() -> None:
    torch.manual_seed(0)
    check_same(ResidualEnds(), torch.rand(4, 3, 8, 8))
