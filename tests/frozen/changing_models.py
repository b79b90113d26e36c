"""A small model whose forward pass reads something of every kind from Python, and changes of each kind."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SCALE = 1.0
SETTINGS = SimpleNamespace(shift=0.0)


def outside(h: Tensor) -> Tensor:
    return h * SCALE + SETTINGS.shift


@dataclass
class Config:
    gain: float = 1.0
    unread: list[int] = field(default_factory=list)

    def factor(self) -> float:
        return self.gain


class Readers(nn.Module):
    """Everything that it reads leaves the result as it is, until it is changed."""

    bias = 0.0

    def __init__(self, closed_over: float = 0.0) -> None:
        super().__init__()
        self.conv, self.bn, self.act = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        self.other = nn.Conv2d(3, 8, 3, padding=1)
        self.head, self.second = nn.Linear(8 * 64, 10), nn.Linear(8 * 64, 10)
        self.temperature, self.flag, self.which = 1.0, False, "head"
        self.factors, self.table, self.chosen = [1.0, [1.0]], {"scale": 1.0}, {"a"}
        self.config = Config()
        self.function: Callable[[Tensor], Tensor] = lambda h: h + closed_over

    def helper(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        conv = self.other if self.flag else self.conv
        h = self.act(self.bn(conv(x)))
        h = outside(self.helper(h)) * self.factors[0] * self.factors[1][0] * self.table["scale"]
        h = self.function(h) * self.config.factor() + self.bias
        h = -h if "b" in self.chosen else h
        return getattr(self, self.which)(h.flatten(1)) / self.temperature


class Louder(Readers):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.linspace(1, 3, 3)[0].item() + self.head(self.conv(x).flatten(1))


def _adapter(model: Readers) -> None:
    """As LoRA, accelerate and quantisation do."""
    inner, adapter = model.conv.forward, nn.Conv2d(3, 8, 1)
    model.conv.forward = lambda x: inner(x) + 3 * adapter(x)  # type: ignore[method-assign]


def _cell(model: Readers) -> None:
    closure = model.function.__closure__  # type: ignore[attr-defined]
    closure[0].cell_contents = 0.7


def _set(target: Any, name: str, value: Any) -> None:
    setattr(target, name, value)


# What has to be undone on classes and modules is done through `put`, which a test passes as
# monkeypatch.setattr.
CHANGES: dict[str, Callable[[Readers, Callable[..., None]], object]] = {
    "a forward on the instance": lambda m, put: _adapter(m),
    "a forward on the instance of an activation": lambda m, put: _set(m.act, "forward", torch.tanh),
    "a number": lambda m, put: (
        _set(m, "temperature", torch.linspace(0, 0.1, 2)[1].item()) or _set(m, "bias", 3.0)
    ),
    "a flag": lambda m, put: _set(m, "flag", True),
    "a word": lambda m, put: _set(m, "which", "second"),
    "an entry of a list": lambda m, put: m.factors.__setitem__(0, -2.0),
    "an entry of a list in a list": lambda m, put: m.factors[1].__setitem__(0, -2.0),
    "a key of a dict": lambda m, put: m.table.update(scale=-2.0),
    "an element of a set": lambda m, put: m.chosen.add("b"),
    "a field of a settings object": lambda m, put: _set(m.config, "gain", -2.0),
    "another settings object": lambda m, put: _set(m, "config", Config(-2.0)),
    "another function": lambda m, put: _set(m, "function", torch.cos),
    "a variable that a function closes over": lambda m, put: _cell(m),
    "a replaced part": lambda m, put: _set(m, "act", nn.Tanh()),
    "the padding mode": lambda m, put: (
        _set(m.conv, "padding_mode", "reflect")
        or _set(m.conv, "_reversed_padding_repeated_twice", (1, 1, 1, 1))
    ),
    "the class": lambda m, put: _set(m, "__class__", Louder),
    "a global number": lambda m, put: put(f"{__name__}.SCALE", -2.0),
    "a field of a global object": lambda m, put: put(SETTINGS, "shift", 0.5),
    "a global function": lambda m, put: put(f"{__name__}.outside", torch.cos),
    "a method of the class": lambda m, put: put(Readers, "helper", lambda self, h: -h),
    "a constant of the class": lambda m, put: put(Readers, "bias", 2.5),
    "a method of a settings object's class": lambda m, put: put(Config, "factor", lambda self: -2.0),
    "torch's ReLU": lambda m, put: put(nn.ReLU, "forward", lambda self, x: torch.tanh(x)),
    "torch's relu function": lambda m, put: put(F, "relu", lambda x, inplace=False: torch.tanh(x)),
    "a method on the instance": lambda m, put: _set(m, "helper", types.MethodType(lambda self, h: -h, m)),
}


def make() -> Readers:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Readers()
        with torch.no_grad():
            model.bn.running_mean.normal_(0, 0.2)
            model.bn.running_var.uniform_(0.5, 2)
    return model.eval()


def batch() -> tuple[Tensor, Tensor]:
    return torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(5)), torch.arange(12) % 10
