"""Habits of people who write models, each around any network, and how an attack runs on it: fast, plainly
with a reason, or not at all.

The table of docs/fast-attack.md is made of this list: `python -m tests.frozen.idioms` writes it, and a test
compares.
"""

from __future__ import annotations

import copy
import enum
import functools
import itertools
import logging
import math
import os
import random
import time
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

from cfol_fast.atomic import write_text

FAST, PLAIN, ERROR = "fast", "plain", "error"


@dataclass(frozen=True)
class Idiom:
    """name: as the table says it. wrap: the network in, the model with the habit out. runs: FAST, PLAIN or
    ERROR.

    why: the reason in the table. random: the model draws numbers from the process's generators. slow: `make
    check` leaves it out.
    """

    name: str
    wrap: Callable[[nn.Module], nn.Module]
    runs: str
    why: str = ""
    random: bool = False
    slow: bool = False


IDIOMS: dict[str, Idiom] = {}


def idiom(name: str, runs: str = FAST, why: str = "", **more: bool) -> Callable[[Any], Any]:
    def add(wrap: Callable[[nn.Module], nn.Module]) -> Callable[[nn.Module], nn.Module]:
        assert name not in IDIOMS
        IDIOMS[name] = Idiom(name, wrap, runs, why, **more)
        return wrap

    return add


def model(forward: Callable[..., Any], network: nn.Module, **parts: Any) -> nn.Module:
    """A model of a class of its own around a network."""
    made = type("Model", (nn.Module,), {"forward": forward, "__module__": __name__})()
    for name, part in {"network": network, **parts}.items():
        setattr(made, name, part)
    return made


def convolutions(network: nn.Module) -> list[nn.Conv2d]:
    return [module for module in network.modules() if isinstance(module, nn.Conv2d)]


def layer(network: nn.Module) -> nn.Module:
    """A layer with weights that the images go through: a convolution where there is one."""
    found = [m for m in network.modules() if isinstance(getattr(m, "weight", None), nn.Parameter)]
    return (convolutions(network) or found)[0]


# How a network is put together.


@idiom("The network as it is")
def _(network: nn.Module) -> nn.Module:
    return network


@idiom("`nn.Sequential(Normalize(), network)`")
def _(network: nn.Module) -> nn.Module:
    class Normalize(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1))
            self.register_buffer("std", torch.tensor([0.2, 0.3, 0.25]).view(1, 3, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return (x - self.mean) / self.std

    return nn.Sequential(Normalize(), network)


@idiom("`super().forward(x)` of a class of one's own")
def _(network: nn.Module) -> nn.Module:
    class Own(type(network)):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Any:
            return super().forward(2 * x - 1)

    network.__class__ = Own
    return network


@idiom("A copy by `copy.deepcopy`")
def _(network: nn.Module) -> nn.Module:
    return copy.deepcopy(network)


@idiom("Members of an ensemble in a `ModuleList`")
def _(network: nn.Module) -> nn.Module:
    other = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.8)

    def forward(self: Any, x: Tensor) -> Tensor:
        return torch.stack([_logits(member(x)) for member in self.members]).mean(0)

    return model(forward, nn.Identity(), members=nn.ModuleList([network, other]))


def _logits(output: Any) -> Tensor:
    if isinstance(output, dict):
        return output["logits"]
    if isinstance(output, types.SimpleNamespace):
        return output.logits
    return output[0] if isinstance(output, tuple) else output


@idiom("`hasattr(output, 'logits')`", PLAIN, "it asks what a value is")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        output = self.network(x)
        return output.logits if hasattr(output, "logits") else output

    return model(forward, network)


@idiom("`**kwargs` and defaults: `forward(self, x, y=None, **kwargs)`")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor, y: Tensor | None = None, *, scale: float = 2.0, **kwargs: Any) -> Any:
        if y is not None:
            raise ValueError("not here")
        return self.network(x * scale)

    return model(forward, network)


@idiom("Several outputs: `return logits, features`")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        return _logits(self.network(x)), x

    return model(forward, network)


@idiom("Branches on flags and numbers of the model")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        if self.inverted and not self.training and self.mode in ("eval", "test"):
            x = 1 - x
        return self.network(x / self.temperature)

    return model(forward, network, inverted=True, mode="eval", temperature=0.7)


@idiom("A configuration object, closures, module globals")
def _(network: nn.Module) -> nn.Module:
    gain = 1.2

    def scaled(x: Tensor) -> Tensor:
        return gain * x

    def forward(self: Any, x: Tensor) -> Any:
        return self.network(scaled(x) * self.config.scale + OFFSET)

    return model(forward, network, config=types.SimpleNamespace(scale=0.9))


OFFSET = 0.1


@idiom("`@property`, `@staticmethod` and helpers of the class")
def _(network: nn.Module) -> nn.Module:
    class Helped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        @property
        def gain(self) -> float:
            return 1.3

        @staticmethod
        def centred(x: Tensor) -> Tensor:
            return x - 0.5

        def scaled(self, x: Tensor) -> Tensor:
            return self.gain * x

        def forward(self, x: Tensor) -> Any:
            return self.network(self.scaled(self.centred(x)))

    return Helped()


# Shapes and memory layout.


@idiom("`x.view(x.size(0), -1)` and back")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        flat = x.view(x.size(0), -1)
        return self.network((flat * 2 - 1).view(x.size()))

    return model(forward, network)


@idiom("`permute`, `contiguous`, `view`")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        b, c, h, w = x.shape
        rows = x.permute(0, 2, 3, 1).contiguous().view(b * h * w, c)
        return self.network((rows @ self.mix).view(b, h, w, c).permute(0, 3, 1, 2))

    return model(forward, network, mix=nn.Parameter(torch.eye(3) + 0.2 * torch.ones(3, 3)))


@idiom(
    "Branches on shapes: `if x.shape[-1] != 8: x = F.interpolate(...)`",
    PLAIN,
    "it decides on what the images are",
)
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        if x.shape[-1] != 8 or x.ndim != 4:
            x = F.interpolate(x, size=(8, 8))
        if x.size(1) == 1:
            x = x.repeat(1, 3, 1, 1)
        return self.network(x)

    return model(forward, network)


@idiom("`assert x.is_contiguous()`", PLAIN, "it depends on the memory layout")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        assert x.is_contiguous()
        return self.network(x)

    return model(forward, network)


@idiom("`x.stride()` and `torch.as_strided`", PLAIN, "it depends on the memory layout")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        x = torch.as_strided(x, x.size(), x.stride()) + 0.1 * torch.as_strided(
            x, (4, 3, 8, 8), (192, 64, 1, 8)
        )
        return self.network(x)

    return model(forward, network)


@idiom("`x.contiguous(memory_format=torch.channels_last)`")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        return self.network(x.contiguous(memory_format=torch.channels_last))

    return model(forward, network)


# Work in place.


@idiom("`h += 1`, `h *= 2`, `h **= 2` with an alias")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        h = x + 0.1
        alias = h
        h **= 2
        h *= 3
        h -= alias / 2
        return self.network(h + alias)

    return model(forward, network)


@idiom("`h.view(...).mul_(2)`, and `h` is read again", PLAIN, "it depends on the memory layout")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        h = x * 1.5
        flat = h.view(h.size(0), -1)
        flat.mul_(2).sub_(0.5)
        h[:, 0].add_(0.3)
        return self.network(h)

    return model(forward, network)


@idiom("`h[:, 0] = ...`", PLAIN, "the trace cannot follow it")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        h = x.clone()
        h[:, 0] = 1 - x[:, 0]
        h[:, 1, 2:4] *= 0.5
        return self.network(h)

    return model(forward, network)


@idiom("`x.clamp_(0, 1)` or `x.sub_(mean)` on the images")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        x.clamp_(0.1, 0.9).sub_(0.5)
        return self.network(x)

    return model(forward, network)


# Gradients.


@idiom("Straight-through: `x + (x.round() - x).detach()`")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        return self.network(x + ((16 * x).round() / 16 - x).detach())

    return model(forward, network)


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x * 16).round() / 16

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad


@idiom("A `torch.autograd.Function`", PLAIN, "it has a gradient of its own")
def _(network: nn.Module) -> nn.Module:
    return model(lambda self, x: self.network(StraightThrough.apply(x)), network)


@idiom("`with torch.no_grad():` around a part", PLAIN, "the trace would lose the block")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        with torch.no_grad():
            scale = x.abs().mean((1, 2, 3), keepdim=True)
        return self.network(x / scale)

    return model(forward, network)


@idiom("`x.detach()` and `x.data` for a statistic")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        return self.network(x / x.detach().amax((1, 2, 3), keepdim=True) - x.data.mean())

    return model(forward, network)


@idiom("`torch.is_grad_enabled()`", PLAIN, "the forward pass asks for the state of autograd")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        return self.network(x * (1.5 if torch.is_grad_enabled() else 0.5))

    return model(forward, network)


@idiom("`torch.utils.checkpoint`")
def _(network: nn.Module) -> nn.Module:
    return model(lambda self, x: checkpoint(self.network, x, use_reentrant=False), network)


@idiom("`x.register_hook` in the forward pass", PLAIN, "it has a gradient of its own")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        h = x * 1.0
        if h.requires_grad:
            h.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))
        return self.network(h)

    return model(forward, network)


# Precision.


@idiom("`torch.autocast` inside the forward pass", PLAIN, "the trace would lose the block")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            mixed = x.flatten(2) @ self.mix
        return self.network(x + mixed.to(x.dtype).view_as(x))

    return model(forward, network, mix=nn.Parameter(torch.eye(64) * 0.3))


@idiom("`x.to(self.weight.dtype)`, `x.type_as(...)`, `.to(x.device)`")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        x = x.to(self.gain.dtype).type_as(self.gain).to(x.device)
        return self.network(x * self.gain.to(x.device))

    return model(forward, network, gain=nn.Parameter(torch.tensor(1.3)))


# Tensors that are made during the pass.


@idiom("`torch.zeros_like(x)`, `x.new_ones(...)`")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        bright = torch.cat([x[:, :1], torch.zeros_like(x[:, 1:])], 1)
        return self.network(x + 0.5 * bright + x.new_ones(1, 3, 1, 1))

    return model(forward, network)


@idiom("`torch.tensor([...])`, `torch.arange(n)`")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        mean = torch.tensor([0.4, 0.5, 0.6], dtype=x.dtype).view(1, 3, 1, 1)
        return self.network(x - mean + 0.01 * torch.arange(8, dtype=x.dtype))

    return model(forward, network)


@idiom("A tensor that is no buffer: `self.mean = torch.tensor(...)`")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        return self.network((x - self.mean.to(x)) / self.stds[0])

    mean = torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1)
    return model(forward, network, mean=mean, stds=[0.3])


@idiom("Noise in the forward pass", PLAIN, "it draws numbers", random=True)
def _(network: nn.Module) -> nn.Module:
    return model(lambda self, x: self.network(x + 0.1 * torch.randn_like(x)), network)


@idiom("Dropout that stays on", PLAIN, "it draws numbers", random=True)
def _(network: nn.Module) -> nn.Module:
    return model(lambda self, x: self.network(F.dropout(x, 0.3, training=True)), network)


@idiom("Random decisions of Python", PLAIN, "it draws numbers", random=True)
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        return self.network(x * float(torch.rand(())) + 0.5)

    return model(forward, network)


@idiom("Stochastic depth, in training only")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        if not self.training or torch.rand(()) < 0.5:
            x = x + torch.tanh(self.branch(x))
        return self.network(x)

    return model(forward, network, branch=nn.Conv2d(3, 3, 3, padding=1))


# State that the forward pass changes.


@idiom("A buffer that counts calls", PLAIN, "the forward pass changes a buffer")
def _(network: nn.Module) -> nn.Module:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Tensor) -> Any:
            self.calls += 1
            return self.network(x * (1 + 0.2 * self.calls))

    return Counting()


@idiom("An attribute that counts calls", PLAIN, "the forward pass changes an attribute")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        self.calls += 1
        return self.network(x * (1 + 0.2 * self.calls))

    return model(forward, network, calls=0)


@idiom("Features kept on the model: `self.features = h`")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        self.seen = x * 2
        return self.network(self.seen)

    return model(forward, network, seen=None)


@idiom("A list that grows: `self.log.append(h)`", PLAIN, "the forward pass changes an attribute")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        self.log.append(float(len(self.log)))
        return self.network(x * (1 + 0.1 * len(self.log)))

    return model(forward, network, log=[])


# Decisions on values.


@idiom("Branches on values: `if x.mean() > 0.5`", PLAIN, "it decides on values")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        return self.network(x if x.mean() > 10 else 1 - x)

    return model(forward, network)


@idiom("`x.max().item()`")
def _(network: nn.Module) -> nn.Module:
    return model(lambda self, x: self.network(x / x.max().item()), network)


@idiom("`x.detach().numpy()` for a statistic", PLAIN, "it decides on values")
def _(network: nn.Module) -> nn.Module:
    return model(lambda self, x: self.network(x - float(np.median(x.detach().numpy()))), network)


# Other code between a layer and its call.


@idiom("`conv.forward` replaced on the instance (LoRA, accelerate, quantisation)")
def _(network: nn.Module) -> nn.Module:
    patched = layer(network)
    torch.manual_seed(3)
    down, forward = 1 + 0.5 * torch.randn(3).view(1, 3, 1, 1), patched.forward

    def adapted(x: Tensor) -> Tensor:
        return forward(x) + forward(x * down.to(x)[:, : x.shape[1]]) / 2

    patched.forward = adapted  # type: ignore[method-assign]
    return network


@idiom("`types.MethodType(functools.partial(...), model)`", PLAIN, "`forward` was replaced")
def _(network: nn.Module) -> nn.Module:
    def converted(function: Callable[..., Any], self: nn.Module, x: Tensor) -> Any:
        return function(2 * x)

    bound = functools.partial(converted, network.forward)
    network.forward = types.MethodType(bound, network)  # type: ignore[method-assign]
    return network


@idiom("`@torch.autocast(...)` and other decorators on `forward`", PLAIN, "the trace would lose the block")
def _(network: nn.Module) -> nn.Module:
    class Decorated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        @torch.autocast("cpu", torch.bfloat16)
        def forward(self, x: Tensor) -> Any:
            return self.network(x)

    return Decorated()


@idiom("`__call__` of one's own")
def _(network: nn.Module) -> nn.Module:
    class Calling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def __call__(self, x: Tensor) -> Any:
            return super().__call__(1 - x)

        def forward(self, x: Tensor) -> Any:
            return self.network(x)

    return Calling()


@idiom("A forward hook that changes the output", PLAIN, "it has hooks")
def _(network: nn.Module) -> nn.Module:
    layer(network).register_forward_hook(lambda module, args, output: 1.5 * output)
    return network


@idiom("A forward hook that keeps features", PLAIN, "it has hooks")
def _(network: nn.Module) -> nn.Module:
    kept: list[Tensor] = []
    layer(network).register_forward_hook(lambda module, args, output: kept.append(output.detach()))
    return network


@idiom("A forward pre-hook", PLAIN, "it has hooks")
def _(network: nn.Module) -> nn.Module:
    layer(network).register_forward_pre_hook(lambda module, args: (1 - args[0],))
    return network


@idiom("A backward hook", PLAIN, "it has hooks")
def _(network: nn.Module) -> nn.Module:
    layer(network).register_full_backward_hook(lambda module, inward, outward: None)
    return network


@idiom("`torch.nn.utils.weight_norm` (by a hook)", PLAIN, "it has hooks")
def _(network: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(layer(network))
    return network


@idiom("`parametrizations.weight_norm`")
def _(network: nn.Module) -> nn.Module:
    parametrizations.weight_norm(layer(network))
    return network


@idiom("`parametrizations.spectral_norm`")
def _(network: nn.Module) -> nn.Module:
    parametrizations.spectral_norm(layer(network))
    return network


@idiom("`parametrize.register_parametrization`")
def _(network: nn.Module) -> nn.Module:
    class Rounded(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return (weight * 8).round() / 8

    parametrize.register_parametrization(layer(network), "weight", Rounded())
    return network


@idiom("`torch.nn.utils.prune`", PLAIN, "it has hooks")
def _(network: nn.Module) -> nn.Module:
    from torch.nn.utils import prune

    prune.l1_unstructured(layer(network), "weight", amount=0.3)
    return network


@idiom("`torch.func.functional_call`", PLAIN, "the trace cannot follow it")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        state = {name: 1.2 * value for name, value in self.network.named_parameters()}
        return torch.func.functional_call(self.network, state, (x,))

    return model(forward, network)


@idiom(
    "A network that is no submodule: `self.members = [network]`", PLAIN, "it calls modules it does not own"
)
def _(network: nn.Module) -> nn.Module:
    made = model(lambda self, x: self.members[0](x), nn.Identity())
    made.members = [network.double()]
    return made


@idiom("A part that is `torch.jit.script`ed", PLAIN, "it has compiled parts")
def _(network: nn.Module) -> nn.Module:
    class Part(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if bool(x.mean() > 10):
                return x
            return 1 - x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(torch.jit.script(Part()), network)


@idiom("A part that is `torch.jit.trace`d", PLAIN, "it has compiled parts")
def _(network: nn.Module) -> nn.Module:
    class Part(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x - 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(torch.jit.trace(Part(), torch.rand(1, 3, 8, 8)), network)


@idiom("`logging`, `print`, f-strings of shapes", PLAIN, "it decides on what the images are")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        logging.getLogger("somebody").debug("images of %s", f"{tuple(x.shape)}")
        return self.network(x * 1.1)

    return model(forward, network)


@idiom("`try ... except` around a layer")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        try:
            x = self.missing(x)
        except (AttributeError, TypeError):
            x = 2 * x
        return self.network(x)

    return model(forward, network)


@idiom("`math`, `np` and `functools` on Python numbers")
def _(network: nn.Module) -> nn.Module:
    @functools.lru_cache
    def gain(size: int) -> float:
        return math.sqrt(size) / float(np.pi)

    return model(lambda self, x: self.network(x * gain(3)), network)


@idiom("Layers made by name: `getattr(self, f'layer{i}')`")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        for number in range(2):
            x = x + torch.tanh(getattr(self, f"layer{number}")(x))
        return self.network(x)

    return model(forward, network, layer0=nn.Conv2d(3, 3, 1), layer1=nn.Conv2d(3, 3, 3, padding=1))


@idiom("`for layer in self.children()`, `self.modules()`, `named_children()`")
def _(network: nn.Module) -> nn.Module:
    class Walking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = nn.Conv2d(3, 3, 1), nn.Tanh(), network

        def forward(self, x: Tensor) -> Any:
            for _, part in self.named_children():
                x = part(x)
            return x

    return Walking()


@idiom("`self.apply_layers(x)` of a base class with `isinstance` branches")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        for part in (self.first, self.second):
            x = part(2 * x) if isinstance(part, nn.Conv2d) else part(x)
        return self.network(x)

    return model(forward, network, first=nn.Conv2d(3, 3, 1), second=nn.Hardtanh())


@idiom("`__getattr__` of one's own")
def _(network: nn.Module) -> nn.Module:
    class Wrapping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.network, name)

        def forward(self, x: Tensor) -> Any:
            return self.network(x * (1.0 + len(list(self.parameters())) / 10))

    return Wrapping()


@idiom("`nn.DataParallel(network)`")
def _(network: nn.Module) -> nn.Module:
    return nn.DataParallel(network)


@idiom("`nn.utils.fuse_conv_bn_eval`, `fx.symbolic_trace(network)`")
def _(network: nn.Module) -> nn.Module:
    return torch.fx.symbolic_trace(network.eval())


@idiom("`isinstance(x, torch.Tensor)`, `torch.is_tensor(x)`", PLAIN, "it asks what a value is")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        if isinstance(x, Tensor) and torch.is_tensor(x):
            x = 1 - x
        return self.network(x)

    return model(forward, network)


@idiom("`x.requires_grad`, `x.is_leaf`, `x.grad_fn`", PLAIN, "it asks what a value is")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        if x.requires_grad or x.grad_fn is not None:
            x = 1 - x
        return self.network(x)

    return model(forward, network)


@idiom("`torch.jit.is_tracing()`, `torch.compiler.is_compiling()`")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        if torch.jit.is_tracing() or torch.jit.is_scripting() or torch.compiler.is_compiling():
            x = 1 - x
        return self.network(x * 1.2)

    return model(forward, network)


@idiom("`len(x)`, `x.numel()`, `for image in x`", PLAIN, "it asks what a value is")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        x = torch.stack([image / image.numel() * 200 for image in x])
        return self.network(x * (1 + 0.1 * len(x)))

    return model(forward, network)


@idiom("A batch size written into the model: `x.view(4, -1)`")
def _(network: nn.Module) -> nn.Module:
    return model(lambda self, x: self.network(x.view(4, -1).mul(1.5).view(4, 3, 8, 8)), network)


@idiom("Test-time augmentation: the mean over flips")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        views = (x, x.flip(-1), torch.roll(x, (1, 1), (2, 3)))
        return sum(_logits(self.network(view)) for view in views) / len(views)

    return model(forward, network)


@idiom("`torch.fft`, `F.unfold`, `F.grid_sample`")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        low = torch.fft.irfft2(torch.fft.rfft2(x) * 0.5, s=(8, 8))
        patches = F.fold(F.unfold(x, 2, stride=2), (8, 8), 2, stride=2)
        grid = F.affine_grid(self.turn.expand(x.shape[0], -1, -1), x.shape, align_corners=False)
        return self.network(low + patches + F.grid_sample(x, grid, align_corners=False))

    return model(forward, network, turn=nn.Parameter(torch.tensor([[[0.9, 0.1, 0.0], [-0.1, 0.9, 0.0]]])))


@idiom("`torch.mul(x, 2, out=h)`", ERROR, "PyTorch refuses it where gradients are asked for")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        h = torch.empty_like(x)
        torch.mul(x, 2, out=h)
        return self.network(h)

    return model(forward, network)


@idiom("A layer made in the first pass: `if self.fc is None`")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        if self.mix is None:
            self.mix = nn.Linear(x.shape[-1], x.shape[-1]).to(x)
            nn.init.constant_(self.mix.weight, 0.2)
            nn.init.zeros_(self.mix.bias)
        return self.network(self.mix(x) + x)

    return model(forward, network, mix=None)


@idiom("A table made in the first pass and kept", PLAIN, "the forward pass changes an attribute")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        size = int(x.shape[-1])
        if size not in self.tables:
            self.tables[size] = torch.linspace(0, 1, size, dtype=x.dtype)
        return self.network(x + self.tables[size])

    return model(forward, network, tables={})


@idiom(
    "Weights changed in the forward pass: `self.fc.weight.data = ...`",
    PLAIN,
    "the forward pass changes a weight",
)
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        self.mix.weight.data = F.normalize(self.mix.weight.data, dim=1)
        return self.network(self.mix(x))

    return model(forward, network, mix=nn.Conv2d(3, 3, 1))


@idiom("`self.conv.weight.data.clamp_(...)` in the forward pass", PLAIN, "the forward pass changes a weight")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        self.mix.weight.data.mul_(0.9)
        with torch.no_grad():
            self.mix.bias.clamp_(-0.05, 0.05)
        return self.network(self.mix(x) + x)

    return model(forward, network, mix=nn.Conv2d(3, 3, 1))


@idiom("BatchNorm that adapts to the test data: `F.batch_norm(..., training=True)`")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        F.batch_norm(x, self.norm.running_mean, self.norm.running_var, training=True, momentum=0.3)
        return self.network(self.norm(x))

    return model(forward, network, norm=nn.BatchNorm2d(3))


@idiom("A BatchNorm whose `train()` keeps it in training mode")
def _(network: nn.Module) -> nn.Module:
    class Kept(nn.BatchNorm2d):
        def train(self, mode: bool = True) -> nn.Module:
            return super().train(True)

    return nn.Sequential(Kept(3), network)


@idiom("`random.random()` and `np.random` in the forward pass", PLAIN, "it draws numbers", random=True)
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        return self.network(x * (0.5 + random.random()) + float(np.random.rand()))

    return model(forward, network)


@idiom("A generator of the model's own", PLAIN, "it draws numbers")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        gain = 1 + self.rng.random() + self.numpy.random() + float(torch.rand((), generator=self.torch))
        return self.network(x * gain)

    generator = torch.Generator().manual_seed(2)
    return model(forward, network, rng=random.Random(0), numpy=np.random.default_rng(1), torch=generator)


@idiom("`torch.autograd.grad` inside the forward pass", PLAIN, "the trace cannot follow it")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        with torch.enable_grad():
            leaf = x if x.requires_grad else x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(leaf.pow(3).sum(), leaf, create_graph=True)
        return self.network(x + 0.1 * slope)

    return model(forward, network)


@idiom("`torch.set_grad_enabled`, `torch.inference_mode` in a part", PLAIN, "the trace would lose the block")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        with torch.set_grad_enabled(False):
            scale = self.mix(x).abs().amax((1, 2, 3), keepdim=True)
        return self.network(x / (1 + scale))

    return model(forward, network, mix=nn.Conv2d(3, 3, 1))


@idiom("`@torch.no_grad()` on a helper", PLAIN, "the trace would lose the block")
def _(network: nn.Module) -> nn.Module:
    class Helped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        @torch.no_grad()
        def scale(self, x: Tensor) -> Tensor:
            return x.abs().mean((1, 2, 3), keepdim=True)

        def forward(self, x: Tensor) -> Any:
            return self.network(x / self.scale(x))

    return Helped()


@idiom("`self.forward = self.forward_once` in `__init__`", PLAIN, "`forward` was replaced")
def _(network: nn.Module) -> nn.Module:
    class Choosing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network
            self.forward = self.forward_inverted

        def forward_inverted(self, x: Tensor) -> Any:
            return self.network(1 - x)

    return Choosing()


@idiom("A decorator on `forward` that only wraps it")
def _(network: nn.Module) -> nn.Module:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    return model(logged(lambda self, x: self.network(1 - x)), network)


@idiom("Settings in an `Enum`, a dataclass, an `AttrDict`")
def _(network: nn.Module) -> nn.Module:
    class Mode(enum.Enum):
        NORMAL, INVERTED = 0, 1

    @dataclass(frozen=True)
    class Settings:
        mode: Mode = Mode.INVERTED

    def forward(self: Any, x: Tensor) -> Any:
        if self.settings.mode is Mode.INVERTED:
            x = 1 - x
        return self.network(x * self.options.gain)

    return model(forward, network, settings=Settings(), options=AttrDict(gain=1.4))


class AttrDict(dict):
    __getattr__ = dict.__getitem__


@idiom("`np` numbers in the forward pass: `x * np.sqrt(2)`", PLAIN, "the trace cannot follow it")
def _(network: nn.Module) -> nn.Module:
    return model(
        lambda self, x: self.network(x * np.sqrt(2) + np.float32(self.shift[0])), network, shift=np.ones(1)
    )


@idiom("A part inside `torch.compile`", slow=True)
def _(network: nn.Module) -> nn.Module:
    return nn.Sequential(torch.compile(nn.Conv2d(3, 3, 1).double(), backend="eager"), network)


@idiom("`nn.MultiheadAttention`, `nn.TransformerEncoderLayer`")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        tokens = x.flatten(2)
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        return self.network((mixed + self.layer(tokens)).view_as(x))

    attention = nn.MultiheadAttention(64, 2, batch_first=True)
    layer = nn.TransformerEncoderLayer(64, 2, 16, batch_first=True)
    return model(forward, network, attention=attention, layer=layer)


@idiom("`nn.LSTM`, `nn.GRU` over rows")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        rows = x.flatten(1, 2)
        return self.network(x + self.rnn(rows)[0].reshape(x.shape))

    return model(forward, network, rnn=nn.GRU(8, 8, batch_first=True))


@idiom("`torch.vmap`", PLAIN, "the trace cannot follow it")
def _(network: nn.Module) -> nn.Module:
    return model(lambda self, x: self.network(torch.vmap(lambda one: one / one.norm() * 8)(x)), network)


# What ends in an error, with any attack and with fast=False too.


@idiom("Arguments by name: `self.relu(input=h)`, `F.relu(input=h)`, `torch.flatten(input=h, start_dim=1)`")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        h = self.relu(input=self.norm(input=self.conv(input=x)))
        h = F.relu(input=torch.add(input=h, other=x))
        scale = self.linear(input=self.flatten(input=self.pool(input=h)))
        flat = self.linear(input=torch.flatten(input=self.pool(h), start_dim=1))
        return self.network(h * torch.sigmoid(scale + flat)[:, :, None, None])

    parts: dict[str, nn.Module] = {"conv": nn.Conv2d(3, 3, 1), "norm": nn.BatchNorm2d(3), "relu": nn.ReLU()}
    parts |= {"pool": nn.AdaptiveAvgPool2d(2), "flatten": nn.Flatten(), "linear": nn.Linear(12, 3)}
    return model(forward, network, **parts)


@idiom(
    "`open(...)`, `Path.read_text()`: a file is read in the forward pass", PLAIN, "no comparison can see it"
)
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        with open(__file__) as file:
            return self.network(x * (2 if file.readline() else 1))

    return model(forward, network)


@idiom("`time.time()`, `datetime.now()` in the forward pass", PLAIN, "no comparison can see it")
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        return self.network(x * (2 if time.time() > 0 else 1))

    return model(forward, network)


@idiom("`eval`, `exec`, `globals()` in the forward pass", PLAIN, "no comparison can see it")
def _(network: nn.Module) -> nn.Module:
    return model(lambda self, x: self.network(x * eval("1 + 1")), network)


@idiom("`next(self.generator)`: an iterator of Python's", PLAIN, "no comparison can see it")
def _(network: nn.Module) -> nn.Module:
    return model(lambda self, x: self.network(x * next(self.gains)), network, gains=itertools.cycle([1, 2]))


@idiom("`os.environ`, `os.getenv`, settings of torch", FAST)
def _(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        on = "CFOL_TEST" in os.environ or os.getenv("CFOL_TEST_GAIN") or torch.get_default_dtype().is_complex
        return self.network(1 - x if on else x)

    return model(forward, network)


@idiom("`x.data` or `x.detach()` for everything", ERROR, "the logits do not depend on the images")
def _(network: nn.Module) -> nn.Module:
    return model(lambda self, x: self.network(x.data), network)


@idiom("`@torch.no_grad()` on `forward`", ERROR, "the logits do not depend on the images")
def _(network: nn.Module) -> nn.Module:
    return model(torch.no_grad()(lambda self, x: self.network(x)), network)


@idiom("`return logits.argmax(1)`", ERROR, "the model does not return logits")
def _(network: nn.Module) -> nn.Module:
    return model(lambda self, x: _logits(self.network(x)).argmax(1), network)


@idiom("`return loss, logits`", ERROR, "the model does not return logits")
def _(network: nn.Module) -> nn.Module:
    return model(lambda self, x: (_logits(self.network(x)).logsumexp(1).mean(), 0), network)


@idiom("`x.numpy()` in the forward pass", ERROR, "PyTorch refuses it where gradients are asked for")
def _(network: nn.Module) -> nn.Module:
    return model(lambda self, x: self.network(x - float(x.numpy().mean())), network)


@idiom("A network for images of another size", ERROR, "PyTorch refuses the shapes")
def _(network: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 5))


PAGE = Path(__file__).resolve().parents[2] / "docs" / "fast-attack.md"
HEADING = "| In the model | Runs | Why |\n|---|---|---|\n"


def table() -> str:
    return HEADING + "".join(f"| {one.name} | {one.runs} | {one.why} |\n" for one in IDIOMS.values())


if __name__ == "__main__":
    write_text(PAGE, PAGE.read_text().partition(HEADING)[0] + table())
