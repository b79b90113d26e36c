"""Turns a model into a function of its input and of folded convolutions, by tracing it once with torch.fx.

torch.fx itself replaces `nn.Module.__call__` while it traces, for every thread of the process. Here a
stand-in of the model is traced instead, whose modules have calls of their own, so that other threads never
notice. During an attack BatchNorm is in eval mode and
hence an affine map: it is folded into the convolution before it. The structure is found once per model; the
weights, which change from one training step to the next, are folded again at every call.

A trace holds as long as `current_fingerprint` says what it said when the model was traced. A test that is
about the other guard, the proof (`attacks.proof`), switches this one off: `monkeypatch.setattr(tracing,
"current_fingerprint", lambda model, functions: ())`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import operator
import sys
import threading
import types
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

from cfol_fast.attacks import fingerprint as state
from cfol_fast.attacks import layout, surroundings
from cfol_fast.attacks.convolution import FrozenConvolution, convolution, convolution_add_relu
from cfol_fast.attacks.folding import StaticWeights
from cfol_fast.attacks.linear import FrozenLinear, flat_linear
from cfol_fast.attacks.memory import Memory
from cfol_fast.attacks.names import SPECIAL, Named
from cfol_fast.errors import one_line

Frozen = FrozenConvolution | FrozenLinear
Forward = Callable[[nn.Module, Sequence[Frozen], Tensor], Tensor]
_RELU_FUNCTIONS = (F.relu, F.relu_, torch.relu, torch.relu_)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Fold:
    """What one frozen convolution is made of: the names of its modules in the model."""

    conv: str
    norm: str | None
    relu: bool
    own_gradient: bool


@dataclass(frozen=True)
class Plan:
    """The model's forward pass as generated code over the model's own attributes, with the frozen layers as
    arguments.

    linears: the names of the linear layers among these, which come after the convolutions. writes_to_images:
    it is given a copy.
    minds_layout: the model itself has a `view`, which is an error for maps in channels_last.
    digest: of the code and the layers, the same in every process.
    """

    forward: Forward
    folds: tuple[Fold, ...]
    linears: tuple[str, ...]
    writes_to_images: bool
    minds_layout: bool
    digest: str

    _spare: dict[Hashable, list[StaticWeights]] = field(default_factory=dict, compare=False, repr=False)

    @contextlib.contextmanager
    def frozen(self, model: nn.Module, dtype: torch.dtype | None) -> Iterator[list[Frozen]]:
        """The layers with the model's current weights, those of convolutions cast to `dtype` after folding,
        for the time of the block.

        Their memory is used again by the next block. Blocks that are open at the same time, in two threads,
        have memory of their own.
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


@dataclass
class Record:
    """What is known of a model in one state. plan: None where it runs as it is, and then `reason` says why.

    calls: attacks so far. proven: the kinds of images for which the fast network has been proven.
    """

    fingerprint: state.Fingerprint
    functions: Named
    plan: Plan | None
    reason: str | None
    digest: str = ""
    calls: int = 0
    proven: set[str] = field(default_factory=set)


# Newest first. A model with two heads goes to and fro between two states.
STATES = 4
_records: weakref.WeakKeyDictionary[nn.Module, list[Record]] = weakref.WeakKeyDictionary()
# Outcomes of another process, for models that have not been met here.
_adopted: weakref.WeakKeyDictionary[nn.Module, dict[str, Any]] = weakref.WeakKeyDictionary()
_tracing = threading.RLock()


def current_fingerprint(model: nn.Module, functions: Named) -> state.Fingerprint:
    return state.fingerprint(model, functions)


def plan_for(model: nn.Module) -> Plan | None:
    """The plan of a model in eval mode, or None where the model has to run as it is."""
    return record_for(model).plan


def record_for(model: nn.Module) -> Record:
    """What is known of a model in eval mode, as it is now: it is traced when it is met first, and when its
    Python state has changed.
    """
    with _tracing:
        known = _records.setdefault(model, [])
        for place, record in enumerate(known):
            try:
                same = current_fingerprint(model, record.functions) == record.fingerprint
            except state.TooMuch:
                same = not record.fingerprint
            if same:
                if place:
                    known.insert(0, known.pop(place))
                return record
        record = _met(model)
        known.insert(0, record)
        del known[STATES:]
        return record


def _met(model: nn.Module) -> Record:
    try:
        functions = state.named(model)
        fingerprint = current_fingerprint(model, functions)
    except state.TooMuch as error:
        return Record((), Named(), None, str(error))
    record = Record(fingerprint, functions, None, _why_not(model))
    if record.reason is None:
        memory = Memory(model, functions, tensors=False)
        found: Plan | str
        try:
            found = _trace(model)
        finally:
            changed = memory.put_back()
        if changed is not None:
            found = f"its forward pass {changed}"
        if isinstance(found, Plan):
            record.plan, record.digest = found, found.digest
        else:
            record.reason = found
    if model in _adopted:
        _take(record, _adopted.pop(model))
    return record


def outcome(model: nn.Module) -> dict[str, Any] | None:
    """What the proofs of the model as it was attacked last have found, for a checkpoint or for other ranks;
    None before the first.
    """
    records = _records.get(model)
    if not records:
        return _adopted.get(model)
    record = records[0]
    return {
        "digest": record.digest,
        "calls": record.calls,
        "proven": sorted(record.proven),
        "reason": record.reason,
    }


def adopt(model: nn.Module, found: dict[str, Any] | None) -> None:
    """Goes on with the outcome that a checkpoint holds or the first rank has, where it is one of this very
    network.
    """
    if found is None:
        return
    _adopted[model] = found
    for record in _records.get(model, ())[:1]:
        _take(record, _adopted.pop(model))


def _take(record: Record, found: dict[str, Any]) -> None:
    if not record.digest or found["digest"] != record.digest:
        return
    record.calls, record.proven = found["calls"], set(found["proven"])
    if found["reason"] is not None:
        record.plan, record.reason = None, found["reason"]


def _why_not(model: nn.Module) -> str | None:
    """What a trace would lose."""
    if any(surroundings.GLOBAL_HOOKS):
        return "there are global hooks on modules"
    for name, module in model.named_modules():
        if any(getattr(module, hooks) for hooks in HOOKS):
            return f"there are hooks on {name or 'the model'}"
    if surroundings.replaced() is not None:
        return f"torch's {surroundings.replaced()} was replaced"
    if surroundings.modes():
        return "a mode changes what torch's functions do"
    return None


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


class _Untraceable(Exception):
    """Says in words why."""


class _OnlyProxies(torch.overrides.TorchFunctionMode):
    """Inside, what the forward pass computes goes into the trace or is refused: a number that it takes from a
    tensor would stay for good.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name not in _HARMLESS and not any(issubclass(kind, fx.Proxy) for kind in types):
            raise _Untraceable(f"its forward pass computes with a tensor of its own ({name})")
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


class _Tracer(fx.Tracer):
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

    def record(self, otherwise: bool = False) -> fx.Graph:
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
                raise _Untraceable("its forward pass uses a result of the pass before") from None
        return self.graph

    def changed(self) -> str | None:
        """An attribute that holds something else since the model was recorded.

        What the trace itself computes is left out.
        """
        for module, stand_in in self._made.items():
            before, now = module.__dict__, stand_in.__dict__
            for name in before.keys() - now.keys() - stand_in.__dict__[_OF_STAND_IN].keys() - {_COMPILED}:
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
            attributes.pop(_COMPILED, None)
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
                raise _Untraceable("it defines a gradient of its own")
            frame = frame.f_back  # type: ignore[assignment]
        if _modes() != self._modes:
            raise _Untraceable("its forward pass switches gradients or autocast")
        return super().create_node(*args, **kwargs)

    def create_arg(self, a: Any) -> Any:
        # A tensor that is made during the forward pass (for example noise) would become a constant of the
        # trace.
        if isinstance(a, Tensor) and not self._belongs_to_the_model(a):
            raise _Untraceable("its forward pass makes a tensor of its own")
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
_COMPILED = "_compiled_call_impl"


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


def _trace(model: nn.Module) -> Plan | str:
    """The plan, or in words why there is none."""
    try:
        tracer = _Tracer(model)
        graph = tracer.record()
        shown = str(graph)
        # A forward pass that takes random decisions in Python, remembers the pass before, or asks for modes
        # gives two different traces.
        if shown != str(tracer.record(otherwise=True)):
            return "two passes of its forward pass are not the same"
        if (name := tracer.changed()) is not None:
            return f"its forward pass changes its attribute {name}"
        _by_place(graph)
        modules = dict(model.named_modules())
        writes_to_images, minds_layout = layout.settle(graph, modules)
    except (_Untraceable, layout.DependsOnLayout) as error:
        return str(error)
    # The model's own code may raise anything when it is given a proxy.
    except Exception as error:
        return f"its forward pass cannot be traced ({type(error).__name__}: {one_line(error)[:120]})"
    folds, linears = _rewrite(graph, model)
    graph.lint()
    code = graph.python_code("self")
    namespace = dict(code.globals)
    # torch.fx itself makes a module's forward pass this way; here `self` is the model with its current
    # weights.
    exec(code.src, namespace)
    digest = hashlib.sha256(f"{code.src}{folds}{linears}".encode()).hexdigest()
    return Plan(namespace["forward"], tuple(folds), tuple(linears), writes_to_images, minds_layout, digest)


def _by_place(graph: fx.Graph) -> None:
    """`relu(input=h)` becomes `relu(h)`: what follows looks for the first argument in its place."""
    for node in graph.nodes:
        if not node.args and "input" in node.kwargs and node.op in ("call_module", "call_function"):
            kwargs = dict(node.kwargs)
            node.args, node.kwargs = (kwargs.pop("input"),), kwargs


def _rewrite(graph: fx.Graph, model: nn.Module) -> tuple[list[Fold], list[str]]:
    """Merges convolution (+ BatchNorm) (+ ReLU), and flatten + linear, into one call each, and lets other
    ReLUs work in place where nothing else reads their input. Returns what the calls are made of: folds, and
    the names of linear layers.
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

    # Their backward pass reads their result.
    with_relu = {call for call, *_, has_relu in found if has_relu}
    for relu in list(graph.nodes):
        if not _is_relu(relu, module(relu)) or relu.args[0] in with_relu:
            continue
        if _is_fresh(relu.args[0], module(relu.args[0]), module):
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
    """The addition of a convolution's result and another one, if it comes next and is all that uses the
    result.
    """
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
        return _is(module, nn.ReLU)
    if node.op == "call_function":
        return node.target in _RELU_FUNCTIONS
    return node.op == "call_method" and node.target in ("relu", "relu_")


def _is_flatten(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether all dimensions but the first become one."""
    if node.op == "call_module":
        return (
            _is(module, nn.Flatten)
            and isinstance(module, nn.Flatten)
            and (module.start_dim, module.end_dim) == (1, -1)
        )
    is_call = node.target == "flatten" if node.op == "call_method" else node.target is torch.flatten
    return is_call and node.args[1:] in ((1,), (1, -1)) and not node.kwargs


def _is_linear(module: nn.Module | None) -> bool:
    return _is(module, nn.Linear) and type(getattr(module, "weight", None)) in (nn.Parameter, Tensor)


def _is_fresh(node: Any, of: nn.Module | None, module: Callable[[Any], nn.Module | None]) -> bool:
    """True for a result that has one user and that no backward pass needs: it may be overwritten. of: the
    module that computes it.
    """
    if not isinstance(node, fx.Node) or len(node.users) != 1:
        return False
    if node.target is operator.iadd:
        first = node.args[0]
        return isinstance(first, fx.Node) and _is_fresh(first, module(first), module)
    return node.target in (operator.add, torch.add, convolution) or _is(of, nn.BatchNorm2d)


# Layers that the fast network has something in place of, with the methods that compute them.
_LAYERS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Conv2d: ("forward", "_conv_forward"),
    nn.BatchNorm2d: ("forward", "_check_input_dim"),
    nn.SyncBatchNorm: ("forward", "_check_input_dim"),
    nn.Linear: ("forward",),
    nn.ReLU: ("forward",),
    nn.Flatten: ("forward",),
}
_METHODS = {kind: [getattr(kind, name) for name in names] for kind, names in _LAYERS.items()}


def _is(module: nn.Module | None, kind: type[nn.Module]) -> bool:
    """Whether it is torch's layer, and nothing on it or on its class takes the place of torch's methods."""
    if type(module) is not kind:
        return False
    attributes, names = vars(module), _LAYERS[kind]
    return not any(name in attributes for name in (*names, *SPECIAL, "extra_forward", _COMPILED)) and all(
        getattr(kind, name) is method and _is_torchs(method)
        for name, method in zip(names, _METHODS[kind], strict=True)
    )


@functools.cache
def _is_torchs(method: Any) -> bool:
    """It may have been replaced before this module was imported."""
    return isinstance(method, types.FunctionType) and "torch" in method.__code__.co_filename.split("/")[-4:-1]


def _can_freeze(module: nn.Module | None) -> bool:
    return (
        _is(module, nn.Conv2d)
        and isinstance(module, nn.Conv2d)
        and type(module.weight) in (nn.Parameter, Tensor)
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
    )


def _can_fold(module: nn.Module | None) -> bool:
    return (
        (_is(module, nn.BatchNorm2d) or _is(module, nn.SyncBatchNorm))
        and isinstance(module, nn.modules.batchnorm._BatchNorm)
        and module.running_mean is not None
        and module.running_var is not None
    )
