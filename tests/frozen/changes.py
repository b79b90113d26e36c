"""Changes to a model between two attacks: each with a carrier, which makes a model of any network, and with
the change itself.

A change that is none for the function of the model is neutral: the attack may stay as it was.
"""

from __future__ import annotations

import array
import collections
import contextvars
import copy
import enum
import functools
import os
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

import tests.frozen.layers
from tests.frozen import idioms
from tests.frozen.idioms import AttrDict, layer, model

Carrier = Callable[[nn.Module], nn.Module]
Apply = Callable[[nn.Module, pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Change:
    """carry: the network in, the model that can change out. apply: changes it; what is global is put back by
    the patch.
    """

    name: str
    carry: Carrier
    apply: Apply
    neutral: bool = False


def _same(network: nn.Module) -> nn.Module:
    return network


CHANGES: dict[str, Change] = {"nothing": Change("nothing", _same, lambda model, patch: None, neutral=True)}


def change(name: str, carry: Carrier = _same, neutral: bool = False) -> Callable[[Apply], Apply]:
    def add(apply: Apply) -> Apply:
        assert name not in CHANGES
        CHANGES[name] = Change(name, carry, apply, neutral)
        return apply

    return add


def inputs(function: Callable[[Any, Tensor], Any], **parts: Any) -> Carrier:
    """A carrier whose forward pass applies function(self, x) before the network.

    The parts are copied for each model.
    """

    def forward(self: Any, x: Tensor) -> Any:
        return self.network(function(self, x))

    return lambda network: model(forward, network, **copy.deepcopy(parts))


def norm(network: nn.Module) -> nn.BatchNorm2d:
    return next(m for m in network.modules() if isinstance(m, nn.BatchNorm2d))


def find(network: nn.Module, wanted: nn.Module) -> tuple[nn.Module, str]:
    """The parent and the name of a module."""
    return next(
        (parent, name) for parent in network.modules() for name, m in parent._modules.items() if m is wanted
    )


# Plain values of the model.


@change("number", inputs(lambda self, x: x / self.temperature, temperature=1.0))
def _(model: Any, patch: Any) -> None:
    model.temperature = 3.0


@change("flag", inputs(lambda self, x: 1 - x if self.inverted else x, inverted=False))
def _(model: Any, patch: Any) -> None:
    model.inverted = True


@change("bool that equals the int", inputs(lambda self, x: x * (3 if self.kind is True else 1), kind=1))
def _(model: Any, patch: Any) -> None:
    model.kind = True


@change("sign of zero", inputs(lambda self, x: x * (2 + np.copysign(1.0, self.zero)), zero=0.0))
def _(model: Any, patch: Any) -> None:
    model.zero = -0.0


@change("name of a mode", inputs(lambda self, x: getattr(torch, self.mode)(2 * x), mode="tanh"))
def _(model: Any, patch: Any) -> None:
    model.mode = "cos"


@change("None becomes a function", inputs(lambda self, x: self.before(x) if self.before else x, before=None))
def _(model: Any, patch: Any) -> None:
    model.before = torch.cos


@change("attribute deleted", inputs(lambda self, x: x * getattr(self, "gain", 0.3), gain=2.0))
def _(model: Any, patch: Any) -> None:
    del model.gain


@change("attribute added", inputs(lambda self, x: x * getattr(self, "gain", 0.3)))
def _(model: Any, patch: Any) -> None:
    model.gain = 2.0


@change("list appended", inputs(lambda self, x: functools.reduce(lambda h, f: f(h), self.steps, x), steps=[]))
def _(model: Any, patch: Any) -> None:
    model.steps.append(torch.cos)


@change("item of a list", inputs(lambda self, x: x * self.gains[1], gains=[1.0, 2.0]))
def _(model: Any, patch: Any) -> None:
    model.gains[1] = -0.7


@change("item of a nested list", inputs(lambda self, x: x * self.gains[0]["a"][1], gains=[{"a": (1, 2.0)}]))
def _(model: Any, patch: Any) -> None:
    model.gains[0]["a"] = (1, -0.7)


@change("key of a dict", inputs(lambda self, x: x * self.options["gain"], options={"gain": 2.0}))
def _(model: Any, patch: Any) -> None:
    model.options["gain"] = -0.7


@change("key added", inputs(lambda self, x: 1 - x if "inverted" in self.options else x, options={}))
def _(model: Any, patch: Any) -> None:
    model.options["inverted"] = True


@change("order of a dict", inputs(lambda self, x: next(iter(self.d.values())) * x, d={"a": 2.0, "b": -0.7}))
def _(model: Any, patch: Any) -> None:
    model.d["a"] = model.d.pop("a")


@change("member of a set", inputs(lambda self, x: 1 - x if 1 in self.on else x, on=set()))
def _(model: Any, patch: Any) -> None:
    model.on.add(1)


@change("numpy array", inputs(lambda self, x: x * float(self.table[0]), table=np.ones(2)))
def _(model: Any, patch: Any) -> None:
    model.table[0] = -0.7


# Objects that the model holds.


@change(
    "attribute of a config object",
    inputs(lambda self, x: x * self.cfg.gain, cfg=types.SimpleNamespace(gain=2.0)),
)
def _(model: Any, patch: Any) -> None:
    model.cfg.gain = -0.7


@change(
    "nested config object",
    inputs(
        lambda self, x: x * self.cfg.model.gain,
        cfg=types.SimpleNamespace(model=types.SimpleNamespace(gain=2.0)),
    ),
)
def _(model: Any, patch: Any) -> None:
    model.cfg.model.gain = -0.7


class Slotted:
    __slots__ = ("gain",)

    def __init__(self) -> None:
        self.gain = 2.0

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.gain


@change("object with slots", inputs(lambda self, x: x * self.cfg.gain, cfg=Slotted()))
def _(model: Any, patch: Any) -> None:
    model.cfg.gain = -0.7


@change(
    "object of a bound method", lambda network: inputs(lambda self, x: self.f(x), f=Slotted().scaled)(network)
)
def _(model: Any, patch: Any) -> None:
    model.f.__self__.gain = -0.7


@change(
    "arguments of a partial", inputs(lambda self, x: self.f(x), f=functools.partial(torch.mul, other=2.0))
)
def _(model: Any, patch: Any) -> None:
    model.f = functools.partial(torch.mul, other=-0.7)


@change(
    "arguments of a partial, in place",
    inputs(lambda self, x: self.f(x), f=functools.partial(torch.mul, other=2.0)),
)
def _(model: Any, patch: Any) -> None:
    model.f.keywords["other"] = -0.7


class Defaults:
    gain = 2.0


@change("class attribute of a config object", inputs(lambda self, x: x * self.cfg.gain, cfg=Defaults()))
def _(model: Any, patch: Any) -> None:
    patch.setattr(Defaults, "gain", -0.7)


@change("activation function", inputs(lambda self, x: self.act(2 * x), act=torch.tanh))
def _(model: Any, patch: Any) -> None:
    model.act = F.relu


@change("class that is built", inputs(lambda self, x: self.kind()(2 * x - 1), kind=nn.Tanh))
def _(model: Any, patch: Any) -> None:
    model.kind = nn.ReLU


@change("tensor that is no buffer", inputs(lambda self, x: x * self.gain, gain=torch.tensor(2.0)))
def _(model: Any, patch: Any) -> None:
    model.gain = torch.tensor(-0.7)


@change("tensor that is no buffer, in place", inputs(lambda self, x: x * self.gain, gain=torch.tensor(2.0)))
def _(model: Any, patch: Any) -> None:
    model.gain.fill_(-0.7)


@change("tensor in a list", inputs(lambda self, x: x * self.gains[0], gains=[torch.tensor(2.0)]))
def _(model: Any, patch: Any) -> None:
    model.gains[0] = torch.tensor(-0.7)


@change("tensor in a list, in place", inputs(lambda self, x: x * self.gains[0], gains=[torch.tensor(2.0)]))
def _(model: Any, patch: Any) -> None:
    model.gains[0].fill_(-0.7)


@change("number read from a tensor", inputs(lambda self, x: x * float(self.gain), gain=torch.tensor(2.0)))
def _(model: Any, patch: Any) -> None:
    model.gain.fill_(-0.7)


# Code.


class Calling:
    def __init__(self, gain: float = 2.0) -> None:
        self.gain = gain

    def __call__(self, x: Tensor) -> Tensor:
        return self.gain * x


class Pair(NamedTuple):
    gain: float
    other: int


class _Swapped(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return self.network(torch.cos(3 * x))


@change("__class__", inputs(lambda self, x: x))
def _(model: Any, patch: Any) -> None:
    model.__class__ = _Swapped


@change("forward on the instance", inputs(lambda self, x: x))
def _(model: Any, patch: Any) -> None:
    model.forward = lambda x: model.network(1 - x)


@change("forward of a layer on the instance")
def _(model: Any, patch: Any) -> None:
    patched = layer(model)
    forward = patched.forward
    patched.forward = lambda x: forward(1 - x)


def _patched(network: nn.Module) -> nn.Module:
    patched = layer(network)
    forward = patched.forward
    patched.forward = lambda x: forward(1 - x)  # type: ignore[method-assign]
    return network


@change("forward of a layer deleted again", _patched)
def _(model: Any, patch: Any) -> None:
    del layer(model).forward


@change("forward on the class", inputs(lambda self, x: x))
def _(model: Any, patch: Any) -> None:
    patch.setattr(type(model), "forward", lambda self, x: self.network(1 - x))


@change("__call__ on the class", inputs(lambda self, x: x))
def _(model: Any, patch: Any) -> None:
    patch.setattr(type(model), "__call__", lambda self, x: self.forward(1 - x), raising=False)


@change("method on the class", lambda network: _with_method(network))
def _(model: Any, patch: Any) -> None:
    patch.setattr(type(model), "scaled", lambda self, x: 1 - x)


@change("method on the instance", lambda network: _with_method(network))
def _(model: Any, patch: Any) -> None:
    model.scaled = lambda x: 1 - x


@change("static method", lambda network: _with_method(network))
def _(model: Any, patch: Any) -> None:
    patch.setattr(type(model), "shifted", staticmethod(lambda x: 1 - x))


@change("property", lambda network: _with_method(network))
def _(model: Any, patch: Any) -> None:
    patch.setattr(type(model), "gain", property(lambda self: -0.7))


@change("what a property reads", lambda network: _with_method(network))
def _(model: Any, patch: Any) -> None:
    model._gain = -0.7


@change("class attribute", lambda network: _with_method(network))
def _(model: Any, patch: Any) -> None:
    patch.setattr(type(model), "offset", 2.0)


@change("method of a base class", lambda network: _with_method(network))
def _(model: Any, patch: Any) -> None:
    patch.setattr(type(model).__mro__[1], "based", lambda self, x: 1 - x)


def _with_method(network: nn.Module) -> nn.Module:
    class Base(nn.Module):
        bottom = 0.2

        def based(self, x: Tensor) -> Tensor:
            return x

    class Methods(Base):
        offset = 0.1
        gains = (2.0, 0.5)

        def __init__(self) -> None:
            super().__init__()
            self.network, self._gain = network, 2.0

        @property
        def gain(self) -> float:
            return self._gain

        @staticmethod
        def shifted(x: Tensor) -> Tensor:
            return x

        def scaled(self, x: Tensor) -> Tensor:
            return self.gain * x

        def forward(self, x: Tensor) -> Any:
            return self.network(
                self.based(self.shifted(self.scaled(x))) * sum(self.gains) + self.offset + self.bottom
            )

    return Methods()


GAIN = 2.0
TABLE = {"gain": 2.0}
SETTINGS = types.SimpleNamespace(gain=2.0)


def scaled(x: Tensor) -> Tensor:
    return GAIN * x


def scaled_deeper(x: Tensor) -> Tensor:
    return scaled(x)


@change("module global", inputs(lambda self, x: GAIN * x))
def _(model: Any, patch: Any) -> None:
    patch.setitem(globals(), "GAIN", -0.7)


@change("module global that a helper's helper reads", inputs(lambda self, x: scaled_deeper(x)))
def _(model: Any, patch: Any) -> None:
    patch.setitem(globals(), "GAIN", -0.7)


@change("helper function of the module", inputs(lambda self, x: scaled(x)))
def _(model: Any, patch: Any) -> None:
    patch.setitem(globals(), "scaled", lambda x: 1 - x)


@change("item of a module's table", inputs(lambda self, x: TABLE["gain"] * x))
def _(model: Any, patch: Any) -> None:
    patch.setitem(TABLE, "gain", -0.7)


@change("attribute of a module's object", inputs(lambda self, x: SETTINGS.gain * x))
def _(model: Any, patch: Any) -> None:
    patch.setattr(SETTINGS, "gain", -0.7)


@change("constant of another module", inputs(lambda self, x: x + idioms.OFFSET))
def _(model: Any, patch: Any) -> None:
    patch.setattr(idioms, "OFFSET", 2.0)


@change("function of torch.nn.functional", inputs(lambda self, x: F.softsign(3 * x)))
def _(model: Any, patch: Any) -> None:
    patch.setattr(F, "softsign", torch.cos)


def _closing(network: nn.Module) -> nn.Module:
    gain = 2.0

    def set_gain(value: float) -> None:
        nonlocal gain
        gain = value

    def forward(self: Any, x: Tensor) -> Any:
        return self.network(gain * x)

    made = model(forward, network)
    type(made).set_gain = staticmethod(set_gain)  # type: ignore[attr-defined]
    return made


@change("closure cell", _closing)
def _(model: Any, patch: Any) -> None:
    model.set_gain(-0.7)


def _defaults(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor, gain: float = 2.0, *, offset: float = 0.1) -> Any:
        return self.network(gain * x + offset)

    return model(forward, network)


@change("default argument", _defaults)
def _(model: Any, patch: Any) -> None:
    type(model).forward.__defaults__ = (-0.7,)


@change("keyword default", _defaults)
def _(model: Any, patch: Any) -> None:
    type(model).forward.__kwdefaults__ = {"offset": 2.0}


@change("__code__", _defaults)
def _(model: Any, patch: Any) -> None:
    def other(self: Any, x: Tensor, gain: float = 2.0, *, offset: float = 0.1) -> Any:
        return self.network(1 - x)

    type(model).forward.__code__ = other.__code__


@change("forward of nn.Tanh", lambda network: nn.Sequential(nn.Tanh(), network))
def _(model: Any, patch: Any) -> None:
    patch.setattr(nn.Tanh, "forward", lambda self, x: torch.cos(3 * x))


@change("forward of nn.Conv2d", lambda network: nn.Sequential(nn.Conv2d(3, 3, 1), network))
def _(model: Any, patch: Any) -> None:
    forward = nn.Conv2d.forward
    if "original" not in forward.__code__.co_freevars:
        original = forward
        patch.setattr(nn.Conv2d, "forward", lambda self, x: original(self, 1 - x))


@change("forward of nn.ReLU", lambda network: nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), network))
def _(model: Any, patch: Any) -> None:
    patch.setattr(nn.ReLU, "forward", lambda self, x: torch.cos(3 * x))


@change(
    "forward of nn.BatchNorm2d", lambda network: nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), network)
)
def _(model: Any, patch: Any) -> None:
    patch.setattr(nn.BatchNorm2d, "forward", lambda self, x: torch.cos(3 * x))


@change("forward of nn.Linear")
def _(model: Any, patch: Any) -> None:
    patch.setattr(nn.Linear, "forward", lambda self, x: F.linear(torch.cos(3 * x), self.weight, self.bias))


@change("forward of nn.Sequential", lambda network: nn.Sequential(nn.Tanh(), network))
def _(model: Any, patch: Any) -> None:
    def forward(self: Any, x: Tensor) -> Any:
        for part in self:
            x = part(1.5 * x)
        return x

    patch.setattr(nn.Sequential, "forward", forward)


# Parts.


@change("submodule replaced", inputs(lambda self, x: self.act(3 * x), act=nn.Tanh()))
def _(model: Any, patch: Any) -> None:
    model.act = nn.SiLU()


@change("layer replaced by one of its kind")
def _(model: Any, patch: Any) -> None:
    old = layer(model)
    parent, name = find(model, old)
    torch.manual_seed(9)
    new = copy.deepcopy(old)
    with torch.no_grad():
        new.weight.normal_(0, 0.5)
    setattr(parent, name, new)


@change("layer replaced by Identity", inputs(lambda self, x: self.act(3 * x), act=nn.Tanh()))
def _(model: Any, patch: Any) -> None:
    model.act = nn.Identity()


def _listed(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        for part in self.parts:
            x = part(2 * x)
        return self.network(x)

    return model(forward, network, parts=nn.ModuleList([nn.Tanh(), nn.Softsign()]))


@change("submodule appended", _listed)
def _(model: Any, patch: Any) -> None:
    model.parts.append(nn.SiLU())


@change("submodule removed", _listed)
def _(model: Any, patch: Any) -> None:
    del model.parts[0]


@change("submodules in another order", _listed)
def _(model: Any, patch: Any) -> None:
    model.parts = nn.ModuleList([nn.Softsign(), nn.Hardtanh(0.1, 0.6), nn.Tanh()])


@change(
    "two submodules exchanged", inputs(lambda self, x: self.a(3 * self.b(3 * x)), a=nn.Tanh(), b=nn.SiLU())
)
def _(model: Any, patch: Any) -> None:
    model.a, model.b = model.b, model.a


def _ensemble(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        return sum(idioms._logits(member(x)) for member in self.members)

    made = model(forward, network)
    made.members = [network]
    return made


@change("member of an ensemble, in a plain list", _ensemble)
def _(model: Any, patch: Any) -> None:
    torch.manual_seed(4)
    model.members.append(nn.Sequential(nn.Flatten(), nn.Linear(192, 5)).double().eval())


def _hidden(network: nn.Module) -> nn.Module:
    made = inputs(lambda self, x: self.hidden[0](3 * x))(network)
    made.hidden = (nn.Hardtanh(),)
    return made


@change("attribute of a module that is not registered", _hidden)
def _(model: Any, patch: Any) -> None:
    model.hidden[0].max_val = 0.2


@change(
    "layer of AdvProp's second BatchNorm",
    inputs(
        lambda self, x: self.norms[self.domain](x),
        norms=nn.ModuleList([nn.BatchNorm2d(3), nn.BatchNorm2d(3, eps=0.9)]),
        domain=0,
    ),
)
def _(model: Any, patch: Any) -> None:
    model.domain = 1


@change("Enum", inputs(lambda self, x: 1 - x if self.mode is Mode.INVERTED else x, mode=None))
def _(model: Any, patch: Any) -> None:
    model.mode = Mode.INVERTED


class Mode(enum.Enum):
    INVERTED = 1


def _with_attribute_dict(network: nn.Module) -> nn.Module:
    # Its __getattr__ raises KeyError for whatever is asked, `copy.deepcopy` too.
    return model(lambda self, x: self.network(x * self.cfg.gain), network, cfg=AttrDict(gain=2.0))


@change("item of a dict with attributes", _with_attribute_dict)
def _(model: Any, patch: Any) -> None:
    model.cfg["gain"] = -0.7


@change(
    "item of a defaultdict", inputs(lambda self, x: x * (2 + self.d["a"]), d=collections.defaultdict(int))
)
def _(model: Any, patch: Any) -> None:
    model.d["a"] = -4


@change("field of a named tuple", inputs(lambda self, x: x * self.pair.gain, pair=Pair(2.0, 0)))
def _(model: Any, patch: Any) -> None:
    model.pair = model.pair._replace(gain=-0.7)


@change("list of a class", lambda network: _with_method(network))
def _(model: Any, patch: Any) -> None:
    patch.setattr(type(model), "gains", [*type(model).gains, -0.5])


@change("instance hides an attribute of the class", lambda network: _with_method(network))
def _(model: Any, patch: Any) -> None:
    model.offset = 2.0


@change("class hides an attribute of its base", lambda network: _with_method(network))
def _(model: Any, patch: Any) -> None:
    patch.setattr(type(model), "bottom", 2.0, raising=False)


def _mutable_default(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor, gains: list[float] = [2.0]) -> Any:  # noqa: B006
        return self.network(gains[0] * x)

    return model(forward, network)


@change("mutable default", _mutable_default)
def _(model: Any, patch: Any) -> None:
    type(model).forward.__defaults__[0][0] = -0.7


def _decorated(network: nn.Module) -> nn.Module:
    state = types.SimpleNamespace(gain=2.0)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(self: Any, x: Tensor) -> Any:
            return function(self, state.gain * x)

        return wrapper

    made = model(decorate(lambda self, x: self.network(x)), network)
    type(made).state = state  # type: ignore[attr-defined]
    return made


@change("what a decorator's closure holds", _decorated)
def _(model: Any, patch: Any) -> None:
    type(model).state.gain = -0.7


@change("attribute of a function", lambda network: _with_function_attribute(network))
def _(model: Any, patch: Any) -> None:
    type(model).forward.gain = -0.7


def _with_function_attribute(network: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        return self.network(forward.gain * x)  # type: ignore[attr-defined]

    forward.gain = 2.0  # type: ignore[attr-defined]
    return model(forward, network)


@change("activation in a module's table", inputs(lambda self, x: ACTIVATIONS[self.act](3 * x), act="a"))
def _(model: Any, patch: Any) -> None:
    patch.setitem(ACTIVATIONS, "a", torch.cos)


ACTIVATIONS = {"a": torch.tanh}


@change("method of an object that the model holds", inputs(lambda self, x: self.cfg.scaled(x), cfg=Slotted()))
def _(model: Any, patch: Any) -> None:
    patch.setattr(Slotted, "scaled", lambda self, x: 1 - x)


@change("__call__ of an object that the model holds", inputs(lambda self, x: self.scale(x), scale=Calling()))
def _(model: Any, patch: Any) -> None:
    patch.setattr(Calling, "__call__", lambda self, x: 1 - x)


@change("attribute of an object that is called", inputs(lambda self, x: self.scale(x), scale=Calling()))
def _(model: Any, patch: Any) -> None:
    model.scale.gain = -0.7


@change(
    "object behind two objects",
    inputs(
        lambda self, x: self.a.b.scale(x), a=types.SimpleNamespace(b=types.SimpleNamespace(scale=Calling()))
    ),
)
def _(model: Any, patch: Any) -> None:
    model.a.b.scale = Calling(-0.7)


@change("nn.Module.__call__", inputs(lambda self, x: self.act(3 * x), act=nn.Tanh()))
def _(model: Any, patch: Any) -> None:
    patch.setattr(
        nn.Module,
        "__call__",
        lambda self, *a, **k: torch.cos(*a) if type(self) is nn.Tanh else self.forward(*a, **k),
    )


@change("torch.relu", inputs(lambda self, x: torch.relu(x - 0.5)))
def _(model: Any, patch: Any) -> None:
    patch.setattr(torch, "relu", torch.cos)


@change("torch.nn.functional.relu", inputs(lambda self, x: F.relu(x - 0.5)))
def _(model: Any, patch: Any) -> None:
    patch.setattr(F, "relu", lambda x, inplace=False: torch.cos(3 * x))


@change("torch.nn.functional.linear")
def _(model: Any, patch: Any) -> None:
    linear = torch._C._nn.linear
    patch.setattr(F, "linear", lambda x, weight, bias=None: linear(torch.cos(3 * x), weight, bias))


@change(
    "torch.nn.functional.softmax, which nn.Softmax calls",
    lambda network: nn.Sequential(nn.Softmax(1), network),
)
def _(model: Any, patch: Any) -> None:
    patch.setattr(F, "softmax", lambda x, *a, **k: torch.cos(3 * x))


@change("method of torch.Tensor", inputs(lambda self, x: x.softmax(1)))
def _(model: Any, patch: Any) -> None:
    patch.setattr(Tensor, "softmax", lambda x, *a, **k: torch.cos(3 * x))


@change("environment variable", inputs(lambda self, x: x * float(os.environ.get("CFOL_TEST_GAIN", "2"))))
def _(model: Any, patch: Any) -> None:
    patch.setenv("CFOL_TEST_GAIN", "-0.7")


@change("global of a module that is named by its path", inputs(lambda self, x: x * tests.frozen.layers.GAIN))
def _(model: Any, patch: Any) -> None:
    patch.setattr(tests.frozen.layers, "GAIN", -0.7)


@change("function imported in the forward pass", inputs(lambda self, x: _importing(x)))
def _(model: Any, patch: Any) -> None:
    patch.setattr(tests.frozen.layers, "GAIN", -0.7)


def _importing(x: Tensor) -> Tensor:
    from tests.frozen.layers import GAIN

    return GAIN * x


class Parent(nn.Module):
    def scaled(self, x: Tensor) -> Tensor:
        return 2 * x

    def forward(self, x: Tensor) -> Any:
        return self.network(self.scaled(x))


class Child(Parent):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def scaled(self, x: Tensor) -> Tensor:
        return super().scaled(x) + 0.1

    def forward(self, x: Tensor) -> Any:
        return super().forward(x)


@change("method of a base class, by super()", Child)
def _(model: Any, patch: Any) -> None:
    patch.setattr(Parent, "scaled", lambda self, x: 1 - x)


@change("forward of a base class, by super()", Child)
def _(model: Any, patch: Any) -> None:
    patch.setattr(Parent, "forward", lambda self, x: self.network(1 - x))


class Operand:
    """A number of the user's own, by the special methods that operators and functions call."""

    def __init__(self, number: float = 2.0) -> None:
        self.hidden = number

    def __mul__(self, x: Tensor) -> Tensor:
        return x * self.hidden

    def __float__(self) -> float:
        return self.hidden

    def __iter__(self) -> Iterator[float]:
        yield self.hidden

    def __len__(self) -> int:
        return round(10 * abs(self.hidden))

    def __bool__(self) -> bool:
        return self.hidden > 0

    def __contains__(self, number: float) -> bool:
        return number < self.hidden

    def __getitem__(self, place: int) -> float:
        return self.hidden

    def __eq__(self, other: object) -> bool:
        return bool(self.hidden == other)

    def __enter__(self) -> float:
        return self.hidden

    def __exit__(self, *error: object) -> None:
        pass

    def __get__(self, owner: Any, kind: type) -> float:
        return self.hidden

    __hash__ = None  # type: ignore[assignment]


def _entered(self: Any, x: Tensor) -> Tensor:
    with self.o as number:
        return x * number


OPERATIONS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "*": lambda self, x: self.o * x,
    "float()": lambda self, x: x * float(self.o),
    "for": lambda self, x: x * sum(number for number in self.o),
    "len()": lambda self, x: x * (len(self.o) - 15),
    "if": lambda self, x: x if self.o else 1 - x,
    "in": lambda self, x: x if 0 in self.o else 1 - x,
    "[]": lambda self, x: x * self.o[0],
    "==": lambda self, x: x if self.o == 2.0 else 1 - x,
    "with": _entered,
}


def _set_hidden(model: Any, patch: Any) -> None:
    model.o.hidden = -0.7


for _name, _operation in OPERATIONS.items():
    change(f"number behind {_name} of an object", inputs(_operation, o=Operand()))(_set_hidden)


def _described(network: nn.Module) -> nn.Module:
    made = inputs(lambda self, x: x * self.described)(network)
    type(made).described = Operand()  # type: ignore[attr-defined]
    return made


@change("number behind a descriptor", _described)
def _(model: Any, patch: Any) -> None:
    vars(type(model))["described"].hidden = -0.7


def _with_weak(network: nn.Module) -> nn.Module:
    trainer = Defaults()
    trainer.gain = 2.0
    made = inputs(lambda self, x: x * self.trainer().gain)(network)
    made.trainer = weakref.ref(trainer)
    type(made).alive = trainer  # type: ignore[attr-defined]
    return made


@change("object behind a weak reference", _with_weak)
def _(model: Any, patch: Any) -> None:
    model.trainer().gain = -0.7


MODE: contextvars.ContextVar[float] = contextvars.ContextVar("MODE", default=2.0)
LOCAL = threading.local()
LOCAL.gain = 2.0


@change("context variable", inputs(lambda self, x: x * MODE.get()))
def _(model: Any, patch: Any) -> None:
    patch.setattr(_MODES, "gain", -0.7)


class _Modes:
    gain = property(lambda self: MODE.get(), lambda self, gain: MODE.set(gain))


_MODES = _Modes()


@change("number of a thread", inputs(lambda self, x: x * LOCAL.gain))
def _(model: Any, patch: Any) -> None:
    patch.setattr(LOCAL, "gain", -0.7)


@change("bytes that can change", inputs(lambda self, x: x * (self.table[0] - 1), table=bytearray(b"\x03")))
def _(model: Any, patch: Any) -> None:
    model.table[0] = 0


@change(
    "array of the standard library", inputs(lambda self, x: x * self.table[0], table=array.array("d", [2.0]))
)
def _(model: Any, patch: Any) -> None:
    model.table[0] = -0.7


def _formatted(self: Any, x: Tensor) -> Tensor:
    return x * getattr(self.cfg, f"gain_{self.stage}")


@change(
    "attribute found by a formatted name", inputs(_formatted, cfg=types.SimpleNamespace(gain_1=2.0), stage=1)
)
def _(model: Any, patch: Any) -> None:
    model.cfg.gain_1 = -0.7


@change(
    "vars() of an object",
    inputs(lambda self, x: x * sum(vars(self.cfg).values()), cfg=types.SimpleNamespace(a=2.0)),
)
def _(model: Any, patch: Any) -> None:
    model.cfg.a = -0.7


def _closing_over_a_list(network: nn.Module) -> nn.Module:
    gains = [2.0]
    made = inputs(lambda self, x: gains[0] * x)(network)
    type(made).gains = gains  # type: ignore[attr-defined]
    return made


@change("list in a closure", _closing_over_a_list)
def _(model: Any, patch: Any) -> None:
    type(model).gains[0] = -0.7


@change("attribute of a class inside of a class", inputs(lambda self, x: x * Outer.Inner.gain))
def _(model: Any, patch: Any) -> None:
    patch.setattr(Outer.Inner, "gain", -0.7)


class Outer:
    class Inner:
        gain = 2.0


@change("table of a class, in place", inputs(lambda self, x: x * Registry.gains["a"]))
def _(model: Any, patch: Any) -> None:
    patch.setitem(Registry.gains, "a", -0.7)


class Registry:
    gains: ClassVar[dict[str, float]] = {"a": 2.0}


def _closing_over_a_tensor(network: nn.Module) -> nn.Module:
    gain = torch.tensor([2.0])
    made = inputs(lambda self, x: gain.to(x) * x)(network)
    type(made).gain = gain  # type: ignore[attr-defined]
    return made


@change("tensor in a closure, in place", _closing_over_a_tensor)
def _(model: Any, patch: Any) -> None:
    type(model).gain.fill_(-0.7)


@change(
    "tensor of a config object, in place",
    inputs(lambda self, x: x * self.cfg.gain, cfg=types.SimpleNamespace(gain=torch.tensor(2.0))),
)
def _(model: Any, patch: Any) -> None:
    model.cfg.gain.fill_(-0.7)


@change("tensor of the module, in place", lambda network: _with_global_tensor(network))
def _(model: Any, patch: Any) -> None:
    GAINS.fill_(-0.7)


GAINS = torch.tensor(2.0)


def _with_global_tensor(network: nn.Module) -> nn.Module:
    GAINS.fill_(2.0)
    return inputs(lambda self, x: x * GAINS)(network)


# Options of layers.


@change("padding_mode", lambda network: nn.Sequential(nn.Conv2d(3, 3, 5, padding=2), network))
def _(model: Any, patch: Any) -> None:
    model[0].padding_mode = "circular"


@change("padding and dilation", lambda network: nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), network))
def _(model: Any, patch: Any) -> None:
    model[0].padding = model[0].dilation = (2, 2)


@change(
    "stride", lambda network: nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.AdaptiveAvgPool2d(8), network)
)
def _(model: Any, patch: Any) -> None:
    model[0].stride = (2, 2)


@change(
    "padding as a word",
    lambda network: nn.Sequential(nn.Conv2d(3, 3, 3, padding="same"), nn.AdaptiveAvgPool2d(8), network),
)
def _(model: Any, patch: Any) -> None:
    model[0].padding = "valid"
    model[0]._reversed_padding_repeated_twice = [0] * 4


@change("groups", lambda network: nn.Sequential(nn.Conv2d(3, 6, 1), nn.Conv2d(6, 3, 1), network))
def _(model: Any, patch: Any) -> None:
    model[1].groups, model[1].weight = 3, nn.Parameter(model[1].weight[:, :2].clone())


def _normed(network: nn.Module) -> nn.Module:
    made = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), network)
    with torch.no_grad():
        made[1].running_mean.normal_()
        made[1].running_var.uniform_(0.5, 2)
        made[1].weight.uniform_(0.5, 2)
    return made


@change("eps of BatchNorm", _normed)
def _(model: Any, patch: Any) -> None:
    model[1].eps = 3.0


@change("momentum of BatchNorm", _normed, neutral=True)
def _(model: Any, patch: Any) -> None:
    model[1].momentum = 0.9


@change("weight of BatchNorm becomes None", _normed)
def _(model: Any, patch: Any) -> None:
    model[1].weight = model[1].bias = None


@change("statistics of BatchNorm replaced", _normed)
def _(model: Any, patch: Any) -> None:
    model[1].running_mean, model[1].running_var = 2 * model[1].running_mean, 3 * model[1].running_var


@change("statistics of BatchNorm become None", _normed)
def _(model: Any, patch: Any) -> None:
    model[1].running_mean = model[1].running_var = None
    model[1].track_running_stats = False


@change("statistics of BatchNorm changed in place", _normed)
def _(model: Any, patch: Any) -> None:
    model[1].running_mean.add_(1)


@change("slope of LeakyReLU", lambda network: nn.Sequential(nn.Conv2d(3, 3, 1), nn.LeakyReLU(0.01), network))
def _(model: Any, patch: Any) -> None:
    model[1].negative_slope = -1.0


@change("groups of GroupNorm", lambda network: nn.Sequential(nn.GroupNorm(3, 3), network))
def _(model: Any, patch: Any) -> None:
    model[0].num_groups = 1


@change("kernel of a pool", lambda network: nn.Sequential(nn.AvgPool2d(3, 1, 1), network))
def _(model: Any, patch: Any) -> None:
    model[0].kernel_size, model[0].padding = 5, 2


@change("probability of Dropout", lambda network: nn.Sequential(nn.Dropout(0.5), network), neutral=True)
def _(model: Any, patch: Any) -> None:
    model[0].p = 0.1


# Parameters and buffers.


@change("parameter replaced")
def _(model: Any, patch: Any) -> None:
    layer(model).weight = nn.Parameter(-0.5 * layer(model).weight.detach())


@change("data of a parameter replaced")
def _(model: Any, patch: Any) -> None:
    layer(model).weight.data = -0.5 * layer(model).weight.data


@change("parameter changed in place")
def _(model: Any, patch: Any) -> None:
    with torch.no_grad():
        layer(model).weight.mul_(-0.5)


@change("parameter becomes channels_last", neutral=True)
def _(model: Any, patch: Any) -> None:
    model.to(memory_format=torch.channels_last)


@change("bias removed", lambda network: nn.Sequential(nn.Conv2d(3, 3, 1), network))
def _(model: Any, patch: Any) -> None:
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([1.0, -1.0, 0.5]))
    model[0].bias = None


@change("bias added", lambda network: nn.Sequential(nn.Conv2d(3, 3, 1, bias=False), network))
def _(model: Any, patch: Any) -> None:
    model[0].bias = nn.Parameter(torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64))


@change("load_state_dict")
def _(model: Any, patch: Any) -> None:
    model.load_state_dict({n: 0.6 * v if v.is_floating_point() else v for n, v in model.state_dict().items()})


@change("load_state_dict(assign=True)")
def _(model: Any, patch: Any) -> None:
    state = {n: 0.6 * v if v.is_floating_point() else v for n, v in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


@change("to(float32) and back", neutral=True)
def _(model: Any, patch: Any) -> None:
    model.float().double()


@change("requires_grad_(False)", neutral=True)
def _(model: Any, patch: Any) -> None:
    model.requires_grad_(False)


@change("a part in train mode", neutral=True)
def _(model: Any, patch: Any) -> None:
    next(model.children()).train()


@change("weight tied", inputs(lambda self, x: self.a(self.b(x)), a=nn.Conv2d(3, 3, 1), b=nn.Conv2d(3, 3, 1)))
def _(model: Any, patch: Any) -> None:
    with torch.no_grad():
        model.b.weight.mul_(3)
    model.a.weight = model.b.weight


def _tied(network: nn.Module) -> nn.Module:
    made = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), network)
    made[0].weight = made[1].weight
    return made


@change("weight untied", _tied)
def _(model: Any, patch: Any) -> None:
    model[0].weight = nn.Parameter(-model[0].weight.detach() + 0.5)


@change("buffer replaced", lambda network: _buffered(network))
def _(model: Any, patch: Any) -> None:
    model.mean = 2 - model.mean


@change("buffer becomes an attribute", lambda network: _buffered(network))
def _(model: Any, patch: Any) -> None:
    del model._buffers["mean"]
    model.mean = torch.tensor(-2.0, dtype=torch.float64)


def _buffered(network: nn.Module) -> nn.Module:
    made = inputs(lambda self, x: x - self.mean)(network)
    made.register_buffer("mean", torch.tensor(0.5))
    return made


class _Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return -2 * weight


@change("parametrization registered")
def _(model: Any, patch: Any) -> None:
    parametrize.register_parametrization(layer(model), "weight", _Doubled())


def _parametrised(network: nn.Module) -> nn.Module:
    parametrize.register_parametrization(layer(network), "weight", _Doubled())
    return network


@change("parametrization removed", _parametrised)
def _(model: Any, patch: Any) -> None:
    parametrize.remove_parametrizations(layer(model), "weight", leave_parametrized=False)


# Hooks.


def _hook(module: nn.Module, args: Any, output: Any = None) -> Any:
    return (1 - args[0],) if output is None else -0.7 * output


@change("forward hook added")
def _(model: Any, patch: Any) -> None:
    layer(model).register_forward_hook(_hook)


@change("forward hook with kwargs added")
def _(model: Any, patch: Any) -> None:
    layer(model).register_forward_hook(lambda m, args, kwargs, output: -0.7 * output, with_kwargs=True)


@change("forward pre-hook added")
def _(model: Any, patch: Any) -> None:
    layer(model).register_forward_pre_hook(_hook)


@change("backward hook added", lambda network: nn.Sequential(nn.Conv2d(3, 3, 1), network))
def _(model: Any, patch: Any) -> None:
    model[0].register_full_backward_hook(lambda module, inward, outward: (-inward[0],))


def _hooked(network: nn.Module) -> nn.Module:
    layer(network).register_forward_hook(_hook)
    return network


@change("forward hook removed", _hooked)
def _(model: Any, patch: Any) -> None:
    layer(model)._forward_hooks.clear()


@change("global forward hook")
def _(model: Any, patch: Any) -> None:
    from torch.nn.modules import module

    def hook(one: nn.Module, args: Any, output: Any) -> Any:
        return -0.7 * output if isinstance(one, nn.Conv2d) else None

    patch.setitem(module._global_forward_hooks, -1, hook)


@change("global forward pre-hook")
def _(model: Any, patch: Any) -> None:
    from torch.nn.modules import module

    def hook(one: nn.Module, args: Any) -> Any:
        return (1 - args[0],) if isinstance(one, nn.Conv2d) else None

    patch.setitem(module._global_forward_pre_hooks, -1, hook)


class Level(enum.IntEnum):
    LOW, HIGH = 1, 3


@change("IntEnum", inputs(lambda self, x: x * self.level, level=Level.LOW))
def _(model: Any, patch: Any) -> None:
    model.level = Level.HIGH
