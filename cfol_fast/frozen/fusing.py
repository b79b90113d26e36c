"""Merges layers of a recorded forward pass into the calls that the fast network has for them: convolution
(+ BatchNorm) (+ ReLU) and flatten + linear. A layer is one of torch's only if nothing on it or on its class
takes the place of torch's methods.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from cfol_fast.frozen.convolution import convolution, convolution_add_relu
from cfol_fast.frozen.linear import flat_linear
from cfol_fast.frozen.names import SPECIAL
from cfol_fast.frozen.recording import COMPILED

# Weights whose type does nothing of its own; fake ones stand for those of a device that is not there.
_PLAIN = (nn.Parameter, Tensor, FakeTensor)
_RELU_FUNCTIONS = (F.relu, F.relu_, torch.relu, torch.relu_)


@dataclass(frozen=True)
class Fold:
    """What one frozen convolution is made of: the names of its modules in the model."""

    conv: str
    norm: str | None
    relu: bool
    own_gradient: bool


def by_place(graph: fx.Graph) -> None:
    """`relu(input=h)` becomes `relu(h)`: what follows looks for the first argument in its place."""
    for node in graph.nodes:
        if not node.args and "input" in node.kwargs and node.op in ("call_module", "call_function"):
            kwargs = dict(node.kwargs)
            node.args, node.kwargs = (kwargs.pop("input"),), kwargs


def fuse(graph: fx.Graph, model: nn.Module) -> tuple[list[Fold], list[str]]:
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
    return _is(module, nn.Linear) and type(getattr(module, "weight", None)) in _PLAIN


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
    return not any(name in attributes for name in (*names, *SPECIAL, "extra_forward", COMPILED)) and all(
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
        and type(module.weight) in _PLAIN
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
