"""Turns a model into a function of its input and of folded convolutions, by tracing it once with torch.fx.

torch.fx itself replaces `nn.Module.__call__` while it traces, for every thread of the process. Here a stand-in of the model is
traced instead, whose modules have calls of their own, so that other threads never notice. During an attack BatchNorm is in eval mode and hence an affine map: it is folded into the convolution before it. The structure
is found once per model; the weights, which change from one training step to the next, are folded again at every call.
"""

from __future__ import annotations

import contextlib
import operator
import sys
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import CodeType
from typing import Any

import torch
import torch.fx as fx
import torch.nn.functional as F
from torch import Tensor, nn

from cfol_fast.attacks.convolution import FrozenConvolution, convolution, convolution_add_relu
from cfol_fast.attacks.folding import StaticWeights
from cfol_fast.attacks.linear import FrozenLinear, flat_linear

Frozen = FrozenConvolution | FrozenLinear
Forward = Callable[[nn.Module, Sequence[Frozen], Tensor], Tensor]
_RELU_FUNCTIONS = (F.relu, F.relu_, torch.relu, torch.relu_)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Fold:
    """What one frozen convolution is made of: the names of its modules in the model."""

    conv: str
    norm: str | None
    relu: bool
    own_gradient: bool


@dataclass(frozen=True)
class Plan:
    """The model's forward pass as generated code over the model's own attributes, with the frozen layers as arguments.

    linears: the names of the linear layers among these, which come after the convolutions. modules: the identities of the model's modules; a model in which one was replaced is traced again.
    """

    forward: Forward
    folds: tuple[Fold, ...]
    linears: tuple[str, ...]
    modules: tuple[int, ...]

    _spare: dict[Hashable, list[StaticWeights]] = field(default_factory=dict, compare=False, repr=False)

    @contextlib.contextmanager
    def frozen(self, model: nn.Module, dtype: torch.dtype | None) -> Iterator[list[Frozen]]:
        """The layers with the model's current weights, those of convolutions cast to `dtype` after folding, for the time of the block.

        Their memory is used again by the next block. Blocks that are open at the same time, in two threads, have memory of their own.
        """
        convolutions: list[nn.Conv2d] = []
        for fold in self.folds:
            conv = model.get_submodule(fold.conv)
            assert isinstance(conv, nn.Conv2d)
            convolutions.append(conv)
        norms = [None if fold.norm is None else model.get_submodule(fold.norm) for fold in self.folds]
        spare = self._spare.setdefault(StaticWeights.key(convolutions, norms, dtype), [])
        try:
            static = spare.pop()
        except IndexError:
            static = StaticWeights(convolutions, norms, dtype)
        try:
            with torch.no_grad():
                made = static.fill(convolutions, norms)
            layers: list[Frozen] = [
                FrozenConvolution(
                    weight,
                    bias,
                    conv.stride,
                    tuple(int(p) for p in conv.padding),
                    conv.dilation,
                    conv.groups,
                    fold.relu,
                    fold.own_gradient,
                )
                for (weight, bias), conv, fold in zip(made, convolutions, self.folds, strict=True)
            ]
            for name in self.linears:
                linear = model.get_submodule(name)
                assert isinstance(linear, nn.Linear)
                layers.append(FrozenLinear(linear))
            yield layers
        finally:
            spare.append(static)


_plans: weakref.WeakKeyDictionary[nn.Module, Plan] = weakref.WeakKeyDictionary()
_untraceable: weakref.WeakKeyDictionary[nn.Module, tuple[int, ...]] = weakref.WeakKeyDictionary()


def plan_for(model: nn.Module) -> Plan | None:
    """The plan of a model in eval mode, or None where the model has to run as it is. Traced once."""
    identities = tuple(map(id, model.modules()))
    # A trace would lose the hooks.
    if any(getattr(module, name) for module in model.modules() for name in _HOOKS):
        return None
    known = _plans.get(model)
    if known is not None and known.modules == identities:
        return known
    if _untraceable.get(model) == identities:
        return None
    plan = _trace(model, identities)
    if plan is None:
        _untraceable[model] = identities
    else:
        _plans[model] = plan
    return plan


class _Proxy(fx.Proxy):
    """A proxy for which `a += b` changes a: fx itself would record a + b, and a later use of a would see the old value."""


def _in_place(function: Callable[[Any, Any], Any]) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    return lambda self, other: self.tracer.create_proxy("call_function", function, (self, other), {})


for _function in (operator.iadd, operator.isub, operator.imul, operator.itruediv):
    setattr(_Proxy, f"__{_function.__name__}__", _in_place(_function))


class _Tracer(fx.Tracer):
    def record(self, model: nn.Module) -> fx.Graph:
        """The graph of `model(x)`; what else the forward pass takes keeps its defaults. Nothing outside of this object is changed."""
        self._attributes: dict[str, fx.Proxy] = {}
        self._own_gradients = set(_forward_passes(torch.autograd.Function))
        self.root = self._stand_in(model, {}, {})
        self.submodule_paths = {module: name for name, module in self.root.named_modules()}
        self.tensor_attrs = {
            value: f"{path}.{name}".lstrip(".")
            for path, module in self.root.named_modules()
            for name, value in module.__dict__.items()
            if isinstance(value, Tensor)
        }
        self.graph = fx.Graph(tracer_cls=type(self))
        result = self.root.forward(self.create_proxy("placeholder", "x", (), {}))
        self.create_node("output", "output", (self.create_arg(result),), {})
        return self.graph

    def _stand_in(
        self, module: nn.Module, made: dict[nn.Module, nn.Module], kinds: dict[type, type]
    ) -> nn.Module:
        """A module with the same attributes whose calls are recorded, as are its parameters; its children are stand-ins too."""
        if module not in made:
            kind = type(module)
            if kind not in kinds:
                kinds[kind] = self._recorded(kind)
            made[module] = object.__new__(kinds[kind])
            children = {
                name: None if child is None else self._stand_in(child, made, kinds)
                for name, child in module._modules.items()
            }
            object.__setattr__(made[module], "__dict__", {**module.__dict__, "_modules": children})
        return made[module]

    def _recorded(self, kind: type[nn.Module]) -> type[nn.Module]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return self.call_module(module, partial(kind.__call__, module), args, kwargs)

        def attribute(module: nn.Module, name: str) -> Any:
            return self.getattr(name, kind.__getattr__(module, name), self._attributes)

        # A module of torch.nn is recorded as one call; torch.fx knows them by where they are defined.
        members = {"__call__": call, "__getattr__": attribute, "__module__": kind.__module__}
        return type(kind.__name__, (kind,), members)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        # A trace would keep the forward pass of an autograd.Function and lose the gradient that it defines: a straight-through
        # rounding would leave the attack blind, and the model would look robust.
        frame = sys._getframe()
        while frame is not None:
            if frame.f_code in self._own_gradients:
                raise fx.proxy.TraceError("the model defines a gradient of its own")
            frame = frame.f_back  # type: ignore[assignment]
        return super().create_node(*args, **kwargs)

    def create_arg(self, a: Any) -> Any:
        # A tensor that is made during the forward pass (for example noise) would become a constant of the trace.
        if isinstance(a, Tensor) and not self._belongs_to_the_model(a):
            raise fx.proxy.TraceError("the forward pass makes a tensor of its own")
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


def _trace(model: nn.Module, identities: tuple[int, ...]) -> Plan | None:
    try:
        graph = _Tracer().record(model)
        # A forward pass that takes random decisions in Python gives two different traces.
        if str(graph) != str(_Tracer().record(model)):
            return None
    # The model's own code may raise anything when it is given a proxy.
    except Exception:
        return None
    folds, linears = _rewrite(graph, model)
    graph.lint()
    code = graph.python_code("self")
    namespace = dict(code.globals)
    # torch.fx itself makes a module's forward pass this way; here `self` is the model with its current weights.
    exec(code.src, namespace)
    return Plan(namespace["forward"], tuple(folds), tuple(linears), identities)


def _rewrite(graph: fx.Graph, model: nn.Module) -> tuple[list[Fold], list[str]]:
    """Merges convolution (+ BatchNorm) (+ ReLU), and flatten + linear, into one call each, and lets other ReLUs work in place where
    nothing else reads their input. Returns what the calls are made of: folds, and the names of linear layers.
    """
    modules = dict(model.named_modules())

    def module(node: fx.Node | None) -> nn.Module | None:
        return modules.get(str(node.target)) if node is not None and node.op == "call_module" else None

    with graph.inserting_before(next(iter(graph.nodes))):
        frozen = graph.placeholder("_frozen")
    found: list[tuple[fx.Node, str, str | None, bool]] = []
    for conv in list(graph.nodes):
        if not _can_freeze(module(conv)) or len(conv.args) != 1:
            continue
        chain = [conv]
        norm = _only_user(conv)
        if _can_fold(module(norm)):
            assert norm is not None
            chain.append(norm)
        else:
            norm = None
        relu = _only_user(chain[-1])
        if relu is not None and _is_relu(relu, module(relu)):
            chain.append(relu)
        else:
            relu = None
        with graph.inserting_before(conv):
            layer = graph.call_function(operator.getitem, (frozen, len(found)))
            call = graph.call_function(convolution, (conv.args[0], layer))
        chain[-1].replace_all_uses_with(call)
        for node in reversed(chain):
            graph.erase_node(node)
        found.append((call, str(conv.target), None if norm is None else str(norm.target), relu is not None))

    for place, (call, conv_name, norm_name, has_relu) in enumerate(found):
        add = None if has_relu else _sum_right_after(call)
        relu = None if add is None else _only_user(add)
        if add is None or relu is None or not _is_relu(relu, module(relu)):
            continue
        first, second = add.args
        other, in_place = second if first is call else first, add.target is operator.iadd
        with graph.inserting_before(add):
            arguments = (*call.args, other, first is call, in_place)
            merged = graph.call_function(convolution_add_relu, arguments)
        relu.replace_all_uses_with(merged)
        for node in (relu, add, call):
            graph.erase_node(node)
        found[place] = merged, conv_name, norm_name, False

    for relu in list(graph.nodes):
        if _is_relu(relu, module(relu)) and _is_fresh(relu.args[0], module(relu.args[0])):
            with graph.inserting_before(relu):
                relu.replace_all_uses_with(graph.call_function(torch.relu_, (relu.args[0],)))
            graph.erase_node(relu)

    linears: list[str] = []
    for flatten in list(graph.nodes):
        linear = _only_user(flatten)
        if linear is None or not _is_flatten(flatten, module(flatten)) or not _is_linear(module(linear)):
            continue
        with graph.inserting_before(linear):
            layer = graph.call_function(operator.getitem, (frozen, len(found) + len(linears)))
            linear.replace_all_uses_with(graph.call_function(flat_linear, (flatten.args[0], layer)))
        linears.append(str(linear.target))
        for node in (linear, flatten):
            graph.erase_node(node)

    def feeds_a_frozen_layer(node: fx.Node) -> bool:
        user = _only_user(node)
        calls = (convolution, convolution_add_relu, flat_linear)
        # What is added has the gradient of the sum, which others use too.
        return user is not None and user.target in calls and node not in user.args[1:]

    folds = [Fold(conv, norm, relu, feeds_a_frozen_layer(call)) for call, conv, norm, relu in found]
    return folds, linears


def _sum_right_after(call: fx.Node) -> fx.Node | None:
    """The addition of a convolution's result and another one, if it comes next and is all that uses the result."""
    add = _only_user(call)
    if add is None or add is not call.next or add.target not in (operator.add, operator.iadd, torch.add):
        return None
    if add.kwargs or len(add.args) != 2 or not all(isinstance(part, fx.Node) for part in add.args):
        return None
    first, second = add.args
    # Nobody else may see that the first one was changed.
    fresh = isinstance(first, fx.Node) and first.target is convolution and len(first.users) == 1
    return add if first is not second and (fresh or add.target is not operator.iadd) else None


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_relu(node: fx.Node, module: nn.Module | None) -> bool:
    if node.op == "call_module":
        return type(module) is nn.ReLU
    if node.op == "call_function":
        return node.target in _RELU_FUNCTIONS
    return node.op == "call_method" and node.target in ("relu", "relu_")


def _is_flatten(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether all dimensions but the first become one."""
    if node.op == "call_module":
        return type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)
    is_call = node.target == "flatten" if node.op == "call_method" else node.target is torch.flatten
    return is_call and node.args[1:] in ((1,), (1, -1)) and not node.kwargs


def _is_linear(module: nn.Module | None) -> bool:
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward


def _is_fresh(node: Any, module: nn.Module | None) -> bool:
    """True for a result that has one user and that no backward pass needs: it may be overwritten."""
    if not isinstance(node, fx.Node) or len(node.users) != 1:
        return False
    if node.target is operator.iadd:
        return isinstance(node.args[0], fx.Node) and len(node.args[0].users) == 1
    return node.target in (operator.add, torch.add, convolution) or isinstance(module, nn.BatchNorm2d)


def _can_freeze(module: nn.Module | None) -> bool:
    return (
        isinstance(module, nn.Conv2d)
        and type(module).forward is nn.Conv2d.forward
        and type(module)._conv_forward is nn.Conv2d._conv_forward
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
    )


def _can_fold(module: nn.Module | None) -> bool:
    return isinstance(module, (nn.BatchNorm2d, nn.SyncBatchNorm)) and module.running_mean is not None
