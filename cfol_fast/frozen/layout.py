"""Where a recorded forward pass could tell in which order maps lie in memory: ours are channels_last, and the
user's were not.

`view` gives what `reshape` gives as long as nobody writes into either side afterwards; all else that depends
on strides is a reason to run the model as it is, with contiguous images.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable

import torch
import torch.fx as fx
from torch import Tensor, nn

# What reads strides or addresses, or means something else when they differ.
_ON_STRIDES = frozenset(
    [
        "as_strided",
        "as_strided_",
        "as_strided_scatter",
        "stride",
        "is_contiguous",
        "data_ptr",
        "storage_offset",
        "storage",
        "untyped_storage",
        "_typed_storage",
        "resize_",
        "resize_as_",
        "set_",
        "view_as_complex",
        "view_as_real",
        "numpy",
        "__array__",
        "element_size",
        "is_non_overlapping_and_dense",
        "__dlpack__",
        "sym_stride",
    ]
)
# What returns the memory it was given for one layout, and a copy for another.
_VIEWS_OR_COPIES = frozenset(
    ["view", "view_as", "reshape", "reshape_as", "flatten", "ravel", "contiguous", "to", "Flatten"]
)
# What returns, or may return, the memory it was given.
_ALIASES = _VIEWS_OR_COPIES | frozenset(
    [
        "unflatten",
        "squeeze",
        "unsqueeze",
        "transpose",
        "t",
        "permute",
        "movedim",
        "moveaxis",
        "swapaxes",
        "swapdims",
        "expand",
        "expand_as",
        "broadcast_to",
        "narrow",
        "select",
        "chunk",
        "split",
        "tensor_split",
        "unsafe_chunk",
        "unsafe_split",
        "split_with_sizes",
        "hsplit",
        "vsplit",
        "dsplit",
        "unbind",
        "getitem",
        "__getitem__",
        "diagonal",
        "unfold",
        "type",
        "type_as",
        "float",
        "double",
        "half",
        "bfloat16",
        "cpu",
        "cuda",
        "detach",
        "real",
        "imag",
        "requires_grad_",
        "positive",
        "conj",
        "resolve_conj",
        "resolve_neg",
        "alias",
        "adjoint",
        "mT",
        "T",
        "H",
        "mH",
        "data",
        "getattr",
        "dropout",
        "alpha_dropout",
        "feature_alpha_dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "Identity",
        "Dropout",
        "Dropout1d",
        "Dropout2d",
        "Dropout3d",
        "AlphaDropout",
        "FeatureAlphaDropout",
        "Unflatten",
        "atleast_1d",
        "atleast_2d",
        "atleast_3d",
        "broadcast_tensors",
        "meshgrid",
        "align_to",
        "rename",
        "pin_memory",
    ]
)
_IN_PLACE = frozenset(
    getattr(operator, name)
    for name in dir(operator)
    if name.startswith("i") and f"__{name}__" in dir(operator)
)


class DependsOnLayout(Exception):
    """Says in words what does."""


def name_of(node: fx.Node, modules: dict[str, nn.Module]) -> str:
    """The name of a method, function or kind of module."""
    if node.op == "call_module":
        return type(modules.get(str(node.target))).__name__
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def written(node: fx.Node, modules: dict[str, nn.Module]) -> list[fx.Node]:
    """What the node writes to, of its arguments."""
    found = [node.kwargs["out"]] if "out" in node.kwargs else []
    first = node.args[0] if node.args else next(iter(node.kwargs.values()), None)
    name = name_of(node, modules)
    if node.op == "call_module":
        in_place = bool(getattr(modules.get(str(node.target)), "inplace", False))
    elif node.op == "call_function" and node.target in _IN_PLACE:
        in_place = True
    else:
        in_place = name == "setitem" or (name.endswith("_") and not name.endswith("__"))
        in_place = in_place or (node.op == "call_function" and _is_told_in_place(node))
    if in_place and name != "requires_grad_":
        found.append(first)
    return [one for one in found if isinstance(one, fx.Node)]


def _is_told_in_place(node: fx.Node) -> bool:
    if "inplace" in node.kwargs:
        return bool(node.kwargs["inplace"])
    try:
        names = list(inspect.signature(node.target).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return "inplace" in names and len(node.args) > (at := names.index("inplace")) and bool(node.args[at])


def settle(graph: fx.Graph, modules: dict[str, nn.Module]) -> tuple[bool, bool]:
    """Makes every `view` a `reshape`; (whether the images themselves are written to, whether there was a
    `view`).

    Raises what speaks against the fast network.
    """
    nodes = list(graph.nodes)
    for node in nodes:
        name = name_of(node, modules)
        if name in _ON_STRIDES or (name == "getattr" and node.args[1:2] and node.args[1] in _ON_STRIDES):
            raise DependsOnLayout(f"its forward pass depends on the memory layout ({name})")
        if name == "view" and any(
            isinstance(part, torch.dtype) for part in (*node.args, *node.kwargs.values())
        ):
            raise DependsOnLayout("its forward pass depends on the memory layout (view of another type)")
    place = {node: number for number, node in enumerate(nodes)}
    writes = [(node, target) for node in nodes for target in written(node, modules)]
    writes_to_images = False
    if writes:
        neighbours = _neighbours(nodes, modules)
        for node, target in writes:
            together = _reached(target, neighbours)
            if any(one.op == "get_attr" for one in together):
                raise DependsOnLayout("its forward pass writes to tensors of the model")
            writes_to_images |= any(one.op == "placeholder" for one in together)
            for view in (one for one in together if name_of(one, modules) in _VIEWS_OR_COPIES):
                if place[view] < place[node] and _is_read_across(view, node, target, neighbours, place):
                    raise DependsOnLayout("its forward pass writes in place to a view that is read again")
    views = [node for node in nodes if name_of(node, modules) in ("view", "view_as")]
    for node in views:
        if node.op == "call_method":
            node.target = {"view": "reshape", "view_as": "reshape_as"}[node.target]
        else:
            node.target = Tensor.reshape if node.target is Tensor.view else Tensor.reshape_as
    return writes_to_images, bool(views)


def _neighbours(nodes: list[fx.Node], modules: dict[str, nn.Module]) -> dict[fx.Node, set[fx.Node]]:
    """For each node those that share its memory, or may."""
    found: dict[fx.Node, set[fx.Node]] = {node: set() for node in nodes}
    for node in nodes:
        name = name_of(node, modules)
        may_share = name in _ALIASES and (name != "getattr" or node.args[1] in _ALIASES)
        shared = list(node.all_input_nodes) if may_share else written(node, modules)
        for other in shared:
            found[node].add(other)
            found[other].add(node)
    return found


def _reached(
    start: fx.Node,
    neighbours: dict[fx.Node, set[fx.Node]],
    crosses: Callable[[fx.Node, fx.Node], bool] = lambda one, other: True,
) -> set[fx.Node]:
    found, todo = {start}, [start]
    while todo:
        node = todo.pop()
        new = {other for other in neighbours[node] if crosses(node, other)} - found
        found |= new
        todo += new
    return found


def _is_read_across(
    view: fx.Node,
    write: fx.Node,
    target: fx.Node,
    neighbours: dict[fx.Node, set[fx.Node]],
    place: dict[fx.Node, int],
) -> bool:
    """Whether somebody sees through one side of the view what was written on the other, where both are one
    memory.
    """
    sources = set(view.all_input_nodes)

    def stays(one: fx.Node, other: fx.Node) -> bool:
        return not ((one is view and other in sources) or (other is view and one in sources))

    side = _reached(target, neighbours, stays)
    other_side = _reached(target, neighbours) - side
    return any(place[user] > place[write] for node in other_side for user in node.users)
