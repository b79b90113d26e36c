"""Records the forward pass of a model as a graph, with torch.fx.

torch.fx itself replaces `nn.Module.__call__` while it traces, for every thread of the process. Here a
stand-in of the model is traced instead, whose modules have calls of their own, so that other threads never
notice.
"""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType
from typing import Any

import torch
import torch.fx as fx
from torch import Tensor, nn


class _Proxy(fx.Proxy):
    """A proxy for which `a += b` changes a: fx itself would record a + b, and a later use of a would see the
    old value.
    """


def _in_place(function: Callable[[Any, Any], Any]) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    return lambda self, other: self.tracer.create_proxy("call_function", function, (self, other), {})


for _name in (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
):
    # Where a tensor has no such method, Python itself makes a = a + b of it.
    if hasattr(Tensor, f"__i{_name}__"):
        _function = getattr(operator, f"i{_name.rstrip('_')}", None) or getattr(operator, f"__i{_name}__")
        setattr(_Proxy, f"__i{_name}__", _in_place(_function))


class Untraceable(Exception):
    """Says in words why."""


class _OnlyProxies(torch.overrides.TorchFunctionMode):
    """Inside, what the forward pass computes goes into the trace or is refused: a number that it takes from a
    tensor would stay for good.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name not in _HARMLESS and not any(issubclass(kind, fx.Proxy) for kind in types):
            raise Untraceable(f"its forward pass computes with a tensor of its own ({name})")
        return func(*args, **(kwargs or {}))


# Of a tensor: what says nothing of its numbers.
_HARMLESS = frozenset(
    [
        "__get__",
        "__hash__",
        "__len__",
        "size",
        "dim",
        "ndimension",
        "numel",
        "nelement",
        "is_floating_point",
        "is_complex",
        "element_size",
        "get_device",
        "__torch_function__",
        "_set_grad_enabled",
    ]
)
_OF_STAND_IN = "_tensors_of_the_model"


class Recorder(fx.Tracer):
    """Records the forward pass of one model, as often as it is asked to.

    Nothing outside of this object is changed.
    """

    # Else a buffer would take part with the numbers it has now.
    proxy_buffer_attributes = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._own_gradients = set(_forward_passes(torch.autograd.Function))
        self._made: dict[nn.Module, nn.Module] = {}
        self.root = self._stand_in(model, self._made, {})
        self.submodule_paths = {module: name for name, module in self.root.named_modules()}
        self.tensor_attrs = {
            value: f"{path}.{name}".lstrip(".")
            for path, module in self.root.named_modules()
            for name, value in module.__dict__[_OF_STAND_IN].items()
        }

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        # Also a class of the user's own that has its forward pass from a layer of torch's.
        own = type(m).forward.__module__.startswith("torch.nn.modules.") and not isinstance(m, nn.Sequential)
        return own or super().is_leaf_module(m, module_qualified_name)

    def graph_of_pass(self, otherwise: bool = False) -> fx.Graph:
        """The graph of `model(x)`; what else the forward pass takes keeps its defaults.

        otherwise: with gradients and autocast the other way round. A model that asks for them has another
        graph then.
        """
        self._attributes: dict[str, fx.Proxy] = {}
        self.graph = fx.Graph(tracer_cls=type(self))
        with torch.set_grad_enabled(not otherwise), _autocast(otherwise), _OnlyProxies():
            self._modes = _modes()
            try:
                kind, x = type(self.root).__mro__[1], self.create_proxy("placeholder", "x", (), {})
                # A class may have a `__call__` of its own.
                is_own = kind.__call__ is not nn.Module.__call__
                result = kind.__call__(self.root, x) if is_own else self.root.forward(x)
                self.create_node("output", "output", (self.create_arg(result),), {})
                self.graph.lint()
            except RuntimeError as error:
                if "does not belong to this Graph" not in str(error):
                    raise
                raise Untraceable("its forward pass uses a result of the pass before") from None
        return self.graph

    def changed(self) -> str | None:
        """An attribute that holds something else since the model was recorded.

        What the trace itself computes is left out.
        """
        for module, stand_in in self._made.items():
            before, now = module.__dict__, stand_in.__dict__
            for name in before.keys() - now.keys() - stand_in.__dict__[_OF_STAND_IN].keys() - {COMPILED}:
                return name
            for name, value in now.items():
                if name in _COPIED or value is before.get(name) or _holds_proxy(value):
                    continue
                if name not in before or not _equal(value, before[name]):
                    return name
        return None

    def _stand_in(
        self, module: nn.Module, made: dict[nn.Module, nn.Module], kinds: dict[type, type]
    ) -> nn.Module:
        """A module with the same attributes whose calls are recorded, as are its tensors; its children are
        stand-ins too.
        """
        if module not in made:
            kind = type(module)
            if kind not in kinds:
                kinds[kind] = self._recorded(kind)
            made[module] = object.__new__(kinds[kind])
            children = {
                name: None if child is None else self._stand_in(child, made, kinds)
                for name, child in module._modules.items()
            }
            tensors = {name: value for name, value in module.__dict__.items() if isinstance(value, Tensor)}
            attributes = {name: value for name, value in module.__dict__.items() if name not in tensors}
            attributes.pop(COMPILED, None)
            copied = {name: dict(attributes[name]) for name in ("_parameters", "_buffers")}
            attributes |= {**copied, "_modules": children, _OF_STAND_IN: tensors}
            object.__setattr__(made[module], "__dict__", attributes)
        return made[module]

    def _recorded(self, kind: type[nn.Module]) -> type[nn.Module]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return self.call_module(module, partial(kind.__call__, module), args, kwargs)

        def attribute(module: nn.Module, name: str) -> Any:
            tensors = module.__dict__[_OF_STAND_IN]
            if name in tensors:
                path = self.tensor_attrs[tensors[name]]
                if path not in self._attributes:
                    self._attributes[path] = self.create_proxy("get_attr", path, (), {})
                return self._attributes[path]
            return self.getattr(name, kind.__getattr__(module, name), self._attributes)

        # A module of torch.nn is recorded as one call; torch.fx knows them by where they are defined.
        members = {"__call__": call, "__getattr__": attribute, "__module__": kind.__module__}
        return type(kind.__name__, (kind,), members)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        # A trace would keep the forward pass of an autograd.Function and lose the gradient that it defines: a
        # straight-through rounding would leave the attack blind, and the model would look robust.
        frame = sys._getframe()
        while frame is not None:
            if frame.f_code in self._own_gradients:
                raise Untraceable("it defines a gradient of its own")
            frame = frame.f_back  # type: ignore[assignment]
        if _modes() != self._modes:
            raise Untraceable("its forward pass switches gradients or autocast")
        return super().create_node(*args, **kwargs)

    def create_arg(self, a: Any) -> Any:
        # A tensor that is made during the forward pass (for example noise) would become a constant of the
        # trace.
        if isinstance(a, Tensor) and not self._belongs_to_the_model(a):
            raise Untraceable("its forward pass makes a tensor of its own")
        return super().create_arg(a)

    def _belongs_to_the_model(self, a: Tensor) -> bool:
        return (
            isinstance(a, nn.Parameter)
            or a in self.tensor_attrs
            or any(a is buffer for buffer in self.root.buffers())
        )


def _forward_passes(kind: type[Any]) -> Iterator[CodeType]:
    """The code of `forward` of every class below `kind`."""
    below: type[Any]
    for below in kind.__subclasses__():
        code = getattr(getattr(below, "forward", None), "__code__", None)
        if code is not None:
            yield code
        yield from _forward_passes(below)


# Of a stand-in: what is a copy or a list of stand-ins, and the compiled forward pass that a module may have.
_COPIED = frozenset(("_parameters", "_buffers", "_modules", _OF_STAND_IN))
COMPILED = "_compiled_call_impl"


def _modes() -> tuple[Any, ...]:
    kinds = ("cpu", "cuda")
    autocast = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds]
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *autocast


@contextlib.contextmanager
def _autocast(enabled: bool) -> Iterator[None]:
    """As if autocast was switched on, or off, on every kind of device: nothing is computed here."""
    kinds = ("cpu", "cuda")
    before = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds]
    try:
        for kind in kinds:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, torch.float16 if enabled else torch.bfloat16)
        yield
    finally:
        for kind, was_enabled, dtype in before:
            torch.set_autocast_enabled(kind, was_enabled)
            torch.set_autocast_dtype(kind, dtype)


def _holds_proxy(value: Any) -> bool:
    return any(isinstance(leaf, (fx.Proxy, nn.Module)) for leaf in torch.utils._pytree.tree_leaves(value))


def _equal(one: Any, other: Any) -> bool:
    try:
        return type(one) is type(other) and bool(one == other)
    # What cannot be compared may be something else.
    except Exception:
        return False
