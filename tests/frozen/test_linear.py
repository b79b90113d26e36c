"""Flatten and a linear layer on a map in channels_last: no copies, and the same logits and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from cfol_fast.frozen.autotune import Choices, using
from cfol_fast.frozen.linear import FrozenLinear, flat_linear
from cfol_fast.frozen.network import frozen
from cfol_fast.frozen.tracing import plan_for

CPU = torch.device("cpu")


class ByMethod(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 5 * 6, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.conv(x).relu().flatten(1))


class ByFunction(ByMethod):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.flatten(self.conv(x).relu(), 1))


class FromTheSecond(ByMethod):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5 * 6, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.conv(x).relu().flatten(2)).mean(1)


class ReadTwice(ByMethod):
    def forward(self, x: Tensor) -> Tensor:
        flat = self.conv(x).relu().flatten(1)
        return self.linear(flat) + flat.sum(1, keepdim=True)


def modules() -> nn.Module:
    conv, linear = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 5 * 6, 7, bias=False)
    return nn.Sequential(conv, nn.ReLU(), nn.Flatten(), linear)


@pytest.mark.parametrize(
    ("make", "merged"), [(ByMethod, 1), (ByFunction, 1), (modules, 1), (FromTheSecond, 0), (ReadTwice, 0)]
)
def test_logits_and_gradients_are_those_of_the_model(make, merged):
    torch.manual_seed(0)
    model = make().eval()
    plan = plan_for(model)
    assert plan is not None
    assert len(plan.linears) == merged
    for memory_format in (torch.contiguous_format, torch.channels_last):
        x = torch.rand(2, 3, 5, 6).contiguous(memory_format=memory_format).requires_grad_()
        up = torch.randn(2, 7)
        with frozen(model, CPU) as net:
            logits = net(x)
            (gradient,) = torch.autograd.grad(logits, x, up)
        expected = model(x)
        torch.testing.assert_close(logits, expected)
        torch.testing.assert_close(gradient, torch.autograd.grad(expected, x, up)[0])


@pytest.mark.parametrize("size", [(4, 5, 6), (1, 5, 6), (4, 1, 1)])
@pytest.mark.parametrize("images", [0, 1, 3])
def test_maps_of_any_size_and_layout(size, images):
    torch.manual_seed(0)
    layer = nn.Linear(torch.Size(size).numel(), 7)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        x = torch.rand(images, *size).contiguous(memory_format=memory_format)
        torch.testing.assert_close(flat_linear(x, FrozenLinear(layer)), layer(x.flatten(1)).detach())
    vectors = x.flatten(1)
    torch.testing.assert_close(flat_linear(vectors, FrozenLinear(layer)), layer(vectors).detach())


class Slow(Choices):
    """A race that the named way wins; asked: what raced."""

    def __init__(self, winner: str) -> None:
        super().__init__()
        self.winner, self.asked = winner, list[str]()

    def choose(self, layer, names, run, others=()):
        self.asked.append(layer)
        for name in names:
            run(name)
        return self.winner


class Products(TorchDispatchMode):
    """Counts the matrix products of each library."""

    only_watches = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._opname in ("addmm", "mm", "_linear_pointwise"):
            self.seen.append(func._opname)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("way", "ops"), [("torch", ["addmm", "mm"]), ("onednn", ["_linear_pointwise"] * 2)])
def test_both_ways_give_the_same_and_the_one_that_won_is_taken(way, ops):
    torch.manual_seed(0)
    layer, up = nn.Linear(4 * 5 * 6, 7), torch.randn(5, 7)
    x = torch.rand(5, 4, 5, 6).contiguous(memory_format=torch.channels_last).requires_grad_()
    expected = layer(x.flatten(1))
    held, chosen = FrozenLinear(layer), Slow(way)
    with using(chosen):
        for _ in range(2):
            with Products() as products:
                y = flat_linear(x, held)
                (gradient,) = torch.autograd.grad(y, x, up)
            torch.testing.assert_close(y, expected)
            torch.testing.assert_close(gradient, torch.autograd.grad(expected, x, up, retain_graph=True)[0])
    # The second time nothing races any more.
    assert products.seen == ops
    threads = torch.get_num_threads()
    assert chosen.asked == [
        f"linear, 4 x 120 -> 7, float32, threads {threads}",
        f"linear backward, 4 x 7 -> 120, float32, threads {threads}",
    ]


def test_in_another_precision_nothing_races():
    layer, chosen = nn.Linear(12, 3), Slow("onednn")
    with using(chosen):
        flat_linear(torch.rand(2, 12).double(), FrozenLinear(nn.Linear(12, 3).double()))
        with torch.autocast("cpu", torch.bfloat16):
            assert flat_linear(torch.rand(2, 12), FrozenLinear(layer)).dtype == torch.bfloat16
    assert chosen.asked == []


def test_the_weights_of_every_attack_are_those_of_the_model_then():
    model = ByMethod().eval()
    x = torch.rand(2, 3, 5, 6).contiguous(memory_format=torch.channels_last)
    for _ in range(2):
        with frozen(model, CPU) as net:
            torch.testing.assert_close(net(x), model(x))
        with torch.no_grad():
            model.linear.weight.mul_(-2.0)


class Copies(TorchDispatchMode):
    """Notes how many numbers each copy has."""

    only_watches = True

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.copy_, torch.ops.aten.clone):
            self.sizes.append(args[0].numel())
        return func(*args, **(kwargs or {}))


def test_maps_are_not_copied():
    model = ByMethod().eval()
    x = torch.rand(50, 3, 5, 6).contiguous(memory_format=torch.channels_last).requires_grad_()
    with frozen(model, CPU) as net:
        # What is laid out once an attack is laid out here.
        torch.autograd.grad(net(x).sum(), x)
        with Copies() as copies:
            torch.autograd.grad(net(x).sum(), x)
    assert 50 * 4 * 5 * 6 not in copies.sizes
