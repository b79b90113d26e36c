"""Changes that a forward pass sees by a detour: by special methods, by names that it makes, through objects
of Python's library, and by what it asks the process.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import functools
import multiprocessing
import operator
import os
import threading
import types
from collections.abc import Callable
from os import getenv
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.frozen.changes import OPERATIONS, Carrier, Operand, change
from tests.frozen.idioms import model


def made(function: Callable[[Any, Tensor], Any], **factories: Callable[[], Any]) -> Carrier:
    """A carrier whose forward pass applies function(self, x) before the network; each model has its own
    parts.
    """

    def forward(self: Any, x: Tensor) -> Any:
        return self.network(function(self, x))

    return lambda network: model(forward, network, **{name: make() for name, make in factories.items()})


# A number behind one special method alone: nothing else names the attribute.

METHODS = {
    "*": "__mul__",
    "float()": "__float__",
    "for": "__iter__",
    "len()": "__len__",
    "if": "__bool__",
    "in": "__contains__",
    "==": "__eq__",
    "with": "__enter__",
}


def alone(method: str) -> type:
    members = {name: vars(Operand)[name] for name in ("__init__", "__exit__", method)}
    return type(f"Only{method}", (), {**members, "__module__": __name__, "__hash__": None})


for _operation, _method in METHODS.items():

    @change(f"number behind {_operation} alone", made(OPERATIONS[_operation], o=alone(_method)))
    def _(model: Any, patch: Any) -> None:
        model.o.hidden = -0.7


class Descriptor:
    def __init__(self) -> None:
        self.behind = 2.0

    def __get__(self, owner: Any, kind: type) -> float:
        return self.behind


def _described(network: nn.Module) -> nn.Module:
    carried = made(lambda self, x: x * self.described)(network)
    type(carried).described = Descriptor()  # type: ignore[attr-defined]
    return carried


@change("number behind __get__ alone", _described)
def _(model: Any, patch: Any) -> None:
    vars(type(model))["described"].behind = -0.7


def _looked_up(network: nn.Module) -> nn.Module:
    carried = made(lambda self, x: x * self.looked_up)(network)

    def __getattribute__(self: Any, name: str) -> Any:
        return NUMBER if name == "looked_up" else nn.Module.__getattribute__(self, name)

    type(carried).__getattribute__ = __getattribute__  # type: ignore[method-assign]
    return carried


NUMBER = 2.0


@change("__getattribute__ of one's own", _looked_up)
def _(model: Any, patch: Any) -> None:
    patch.setitem(globals(), "NUMBER", -0.7)


# What runs when the forward pass makes an object.


class Made:
    def __init__(self) -> None:
        self.number = NUMBER


class Replaced:
    def __new__(cls, x: Tensor) -> Any:
        return NUMBER * x


@dataclasses.dataclass
class Filled:
    gain: float = 1.0

    def __post_init__(self) -> None:
        self.gain = NUMBER


class Meta(type):
    @property
    def number(cls) -> float:
        return NUMBER


class WithMeta(metaclass=Meta):
    pass


MAKING = {
    "__init__": lambda self, x: x * Made().number,
    "__new__": lambda self, x: Replaced(x),
    "__post_init__": lambda self, x: x * Filled().gain,
    "a property of its metaclass": lambda self, x: x * WithMeta.number,
}

for _name, _function in MAKING.items():

    @change(f"number of the module that {_name} reads", made(_function))
    def _(model: Any, patch: Any) -> None:
        patch.setitem(globals(), "NUMBER", -0.7)


# Names that do not stand in the code.

OBJECT = functools.partial(SimpleNamespace, gain=2.0)
FINDING = {
    "a formatted name": lambda self, x: x * getattr(self, f"cfg_{self.stage}").gain,
    "a sum of names": lambda self, x: x * getattr(self, "cfg_" + str(self.stage)).gain,
    "joined names": lambda self, x: x * getattr(self, "_".join(("cfg", str(self.stage)))).gain,
    "__dict__": lambda self, x: x * self.__dict__["cfg_" + str(self.stage)].gain,
    "a name that an attribute holds": lambda self, x: x * getattr(self, self.key).gain,
    "a name in a list": lambda self, x: functools.reduce(
        lambda h, n: h * getattr(self, n).gain, self.keys, x
    ),
    "attrgetter of a path": lambda self, x: x * operator.attrgetter("cfg_1.gain")(self),
    "attrgetter on the model": lambda self, x: x * self.getter(self),
    "reduce(getattr, path)": lambda self, x: x * functools.reduce(getattr, ["cfg_1", "gain"], self),
    "asdict": lambda self, x: x * dataclasses.asdict(self.filled)["gain"],
}


def _set_gain(model: Any, patch: Any) -> None:
    model.cfg_1.gain = model.filled.gain = -0.7


for _name, _function in FINDING.items():
    change(
        f"attribute of an object that is found by {_name}",
        made(
            _function,
            cfg_1=OBJECT,
            stage=lambda: 1,
            key=lambda: "cfg_1",
            keys=lambda: ["cfg_1"],
            getter=lambda: operator.attrgetter("cfg_1.gain"),
            filled=Filled,
        ),
    )(_set_gain)


@change(
    "field of a dataclass that is compared as a whole",
    made(lambda self, x: x if self.one == self.other else 1 - x, one=Filled, other=Filled),
)
def _(model: Any, patch: Any) -> None:
    model.one.gain = -0.7


# Objects of Python's library.

SHARED = {"gain": 2.0}


@change(
    "event of threading", made(lambda self, x: 1 - x if self.event.is_set() else x, event=threading.Event)
)
def _(model: Any, patch: Any) -> None:
    model.event.set()


@change(
    "dict behind a read-only view",
    made(lambda self, x: x * self.view["gain"], view=lambda: types.MappingProxyType(SHARED)),
)
def _(model: Any, patch: Any) -> None:
    patch.setitem(SHARED, "gain", -0.7)


@change("dict behind its values", made(lambda self, x: x * sum(self.values), values=SHARED.values))
def _(model: Any, patch: Any) -> None:
    patch.setitem(SHARED, "gain", -0.7)


@change("number of ctypes", made(lambda self, x: x * self.number.value, number=lambda: ctypes.c_double(2)))
def _(model: Any, patch: Any) -> None:
    model.number.value = -0.7


@change(
    "number that processes share",
    made(lambda self, x: x * self.number.value, number=lambda: multiprocessing.Value("d", 2.0)),
)
def _(model: Any, patch: Any) -> None:
    model.number.value = -0.7


@change(
    "first of several dicts",
    made(lambda self, x: x * self.chain["a"], chain=lambda: collections.ChainMap({}, {"a": 2.0})),
)
def _(model: Any, patch: Any) -> None:
    model.chain.maps[0]["a"] = -0.7


# What a model asks the process.


@change("environment variable by getenv", made(lambda self, x: x * float(os.getenv("CFOL_TEST_GAIN", "2"))))
def _(model: Any, patch: Any) -> None:
    patch.setenv("CFOL_TEST_GAIN", "-0.7")


@change("environment variable, imported", made(lambda self, x: x * float(getenv("CFOL_TEST_GAIN", "2"))))
def _(model: Any, patch: Any) -> None:
    patch.setenv("CFOL_TEST_GAIN", "-0.7")


class Torch:
    """Settings of torch as attributes, so that a patch puts them back."""

    deterministic = property(
        lambda self: torch.are_deterministic_algorithms_enabled(),
        lambda self, on: torch.use_deterministic_algorithms(on, warn_only=True),
    )
    default = property(lambda self: torch.get_default_dtype(), lambda self, to: torch.set_default_dtype(to))


@change(
    "whether torch is deterministic",
    made(lambda self, x: 1 - x if torch.are_deterministic_algorithms_enabled() else x),
)
def _(model: Any, patch: Any) -> None:
    patch.setattr(Torch(), "deterministic", True)


@change(
    "torch's default type", made(lambda self, x: 1 - x if torch.get_default_dtype() is torch.float64 else x)
)
def _(model: Any, patch: Any) -> None:
    patch.setattr(Torch(), "default", torch.float64)


@change("flag of torch.backends", made(lambda self, x: 1 - x if torch.backends.cudnn.benchmark else x))
def _(model: Any, patch: Any) -> None:
    patch.setattr(torch.backends.cudnn, "benchmark", True)


# What stands around every call.


@change("Tensor.relu", made(lambda self, x: self.conv(x).relu(), conv=lambda: nn.Conv2d(3, 3, 1)))
def _(model: Any, patch: Any) -> None:
    before = Tensor.relu
    patch.setattr(Tensor, "relu", lambda self: -0.7 * before(self))


class OnFunctions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return -0.7 * found if func is torch.conv2d else found


class OnOps(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return -0.7 * found if func is torch.ops.aten.convolution.default else found


class Entered:
    """A mode that a patch enters and leaves."""

    def __init__(self, mode: Any) -> None:
        self._mode, self._on = mode, False

    @property
    def on(self) -> bool:
        return self._on

    @on.setter
    def on(self, on: bool) -> None:
        if on and not self._on:
            self._mode.__enter__()
        elif self._on and not on:
            self._mode.__exit__(None, None, None)
        self._on = on


ON_FUNCTIONS, ON_OPS = Entered(OnFunctions()), Entered(OnOps())


@change("mode on torch's functions")
def _(model: Any, patch: Any) -> None:
    patch.setattr(ON_FUNCTIONS, "on", True)


@change("mode on torch's ops")
def _(model: Any, patch: Any) -> None:
    patch.setattr(ON_OPS, "on", True)
