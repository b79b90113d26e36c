"""What Python knows of a model: all that decides how its forward pass runs, besides the numbers in its
tensors.

`fingerprint` is compared at every attack. It holds the types of all modules, their attributes with the
contents of containers, hooks, which tensors are one and the same, functions with their closures, and what the
forward passes name: methods, globals, constants of a class, fields of a settings object. `Named` says which
names these are; it is found once, when a model is traced. `Memory` puts the same state back after a pass that
must leave no trace.

Nothing in a fingerprint keeps the model alive: objects stand in it by weak reference, and tensors by the
order in which they are met.
"""

from __future__ import annotations

import argparse
import collections
import contextvars
import dataclasses
import dis
import enum
import functools
import random
import sys
import types
import weakref
from array import array as Array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as _of_torch

Fingerprint = tuple[Hashable, ...]
# A model with more than this is not compared but run as it is: a second to look at it would be lost at every
# attack.
MOST = 200_000
# What stands for a value that is not there.
_ABSENT, _AGAIN = object(), object()
# Methods through which torch itself calls a module, whatever a forward pass names.
SPECIAL = ("forward", "__call__", "_call_impl", "_wrapped_call_impl", "__getattr__", "_conv_forward")
_HOOKS = frozenset(
    [
        "_forward_hooks",
        "_forward_pre_hooks",
        "_backward_hooks",
        "_backward_pre_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called",
        "_forward_pre_hooks_with_kwargs",
    ]
)
# Of a module: what takes no part in a forward pass.
_SKIPPED = frozenset(
    [
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
        "_non_persistent_buffers_set",
        "_is_full_backward_hook",
        "call_super_init",
    ]
)
GLOBAL_HOOKS: tuple[dict[int, Any], ...] = tuple(
    found
    for name in ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    if isinstance(found := getattr(_of_torch, f"_global_{name}", None), dict)
)
# The functions that the fast network has in place of torch's layers; somebody may replace those of torch.
_USED = tuple(
    (vars(owner), name)
    for owner, names in (
        (F, ("relu", "conv2d", "batch_norm", "linear")),
        (torch, ("relu", "relu_", "flatten", "add")),
        (nn.Module, ("__call__", "_call_impl", "_wrapped_call_impl")),
    )
    for name in names
)
_ORIGINAL = tuple(place[name] for place, name in _USED)
# Compared by value. 1, 1.0 and True are equal in Python and not to a forward pass, so the type of all but the
# first stands beside them.
_BARE = frozenset((int, str, type(None)))
_TYPED = frozenset((bool, float, complex, bytes, range, type(...), type(NotImplemented), torch.Size)) | {
    torch.dtype,
    torch.device,
    torch.memory_format,
    torch.layout,
}
_OF_OTHERS = frozenset(sys.stdlib_module_names) | {"numpy", "torch", "builtins"}


# A function that names one of these reads all attributes of an object. Settings alone are then compared
# whole: others may be anything.
_READ_ALL = frozenset(("vars", "__dict__", "asdict"))


class TooMuch(Exception):
    """The state of the model is larger than what can be compared at every attack."""


class _Is:
    """Stands for one object; equal by identity."""

    __slots__ = ("it",)

    def __init__(self, it: object) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Is) and other.it is self.it

    def __hash__(self) -> int:
        return id(self.it)


def _asked(value: Any, name: str) -> Any:
    """The attribute, or what stands for none; the code of a user's own that answers may raise anything."""
    try:
        return getattr(value, name, _ABSENT)
    except Exception:
        return _ABSENT


def _same(it: Any) -> Hashable:
    """Equal for this very object alone; it is not kept alive where that can be helped."""
    try:
        # There is one such reference for an object. Two of them would compare the objects by what their class
        # calls equal.
        return _Is(weakref.ref(it))
    except TypeError:
        return _Is(it)


@dataclass(frozen=True)
class Named:
    """What the functions of a model name: `names` of attributes, and `places`, (a namespace or a class, a
    name), of globals and methods.
    """

    names: frozenset[str] = frozenset()
    places: tuple[tuple[Any, str], ...] = ()


def replaced() -> str | None:
    """A function of torch's that the fast network stands in for, and that somebody has replaced."""
    for (place, name), original in zip(_USED, _ORIGINAL, strict=True):
        if place.get(name) is not original:
            return name
    return None


def fingerprint(model: nn.Module, functions: Named | None = None) -> Fingerprint:
    """Equal for two moments between which nothing has changed that the forward pass can see, tensors' numbers
    aside.

    functions: what the model's functions name, if that is known; else it is found first, which takes longer.
    """
    walk = _Walk(functions or named(model))
    walk.all(model)
    return tuple(walk.out)


class _Walk:
    """One pass over the state. memory: collects what is met, to be put back. types, functions: collect what
    is met, to be read.
    """

    def __init__(self, functions: Named, memory: Memory | None = None, collect: bool = False) -> None:
        self.out: list[Any] = []
        self.functions, self.memory = functions, memory
        self._names = functions.names
        self._seen: dict[int, int] = {}
        self.types: set[type] | None = set() if collect else None
        self.met: list[types.FunctionType] = []

    def all(self, model: nn.Module) -> None:
        out = self.out
        try:
            self.module(model)
            for owner, name in self.functions.places:
                out.append(name)
                self.value(owner.get(name, _ABSENT))
            for place, name in _USED:
                self.value(place[name])
            for hooks in GLOBAL_HOOKS:
                if hooks:
                    out.append("global hooks")
                    self.values(hooks.values())
        except RecursionError:
            raise TooMuch from None

    def module(self, module: nn.Module) -> None:
        out, seen = self.out, self._seen
        at = seen.get(id(module))
        if at is not None:
            out += (_AGAIN, at)
            return
        seen[id(module)] = len(seen)
        kind = type(module)
        out.append(weakref.ref(kind))
        if self.types is not None:
            self.types.add(kind)
        attributes = module.__dict__
        if self.memory is not None:
            self.memory.keep(attributes)
        for name, value in attributes.items():
            if value.__class__ in _BARE:
                out += (name, value)
            elif name in _SKIPPED or (name in _HOOKS and not value):
                continue
            elif name == "_parameters" or name == "_buffers":
                self._tensors(value)
            elif name == "_modules":
                if self.memory is not None:
                    self.memory.keep(value)
                for child_name, child in value.items():
                    out.append(child_name)
                    if child is None:
                        out.append(None)
                    else:
                        self.value(child)
            else:
                out.append(name)
                self.value(value, name)
        if len(out) > MOST:
            raise TooMuch

    def _tensors(self, tensors: MutableMapping[str, Tensor | None]) -> None:
        out, seen = self.out, self._seen
        if self.memory is not None:
            self.memory.keep(tensors)
        for name, tensor in tensors.items():
            out.append(name)
            if tensor is None:
                out.append(None)
            else:
                out += (tensor.__class__, seen.setdefault(id(tensor), len(seen)))
                if self.memory is not None:
                    self.memory.tensor(tensor)

    def value(self, value: Any, name: str | None = None) -> None:
        """name: of the attribute that holds it, where a function may name it."""
        kind = value.__class__
        if kind in _BARE:
            self.out.append(value)
        elif kind in _TYPED:
            self.out += (kind, value)
        else:
            handler = _HANDLERS.get(kind)
            if handler is not None:
                handler(self, value)
            else:
                self._other(value, name)

    def values(self, values: Iterable[Any]) -> None:
        for value in values:
            self.value(value)
        if len(self.out) > MOST:
            raise TooMuch

    def _first(self, value: object) -> bool:
        """Whether this one is met for the first time; it is noted."""
        at = self._seen.get(id(value))
        if at is not None:
            self.out += (_AGAIN, at)
            return False
        self._seen[id(value)] = len(self._seen)
        return True

    def _sequence(self, value: Any) -> None:
        if self._first(value):
            self.out += (type(value), len(value))
            if self.memory is not None:
                self.memory.keep(value)
            self.values(value)

    def _set(self, value: Any) -> None:
        if self._first(value):
            self.out += (type(value), len(value))
            if self.memory is not None:
                self.memory.keep(value)
            # The order of a set stays as long as the set does.
            self.values(value)

    def _mapping(self, value: Mapping[Any, Any]) -> None:
        if self._first(value):
            self.out += (type(value), len(value))
            if self.memory is not None:
                self.memory.keep(value)
            for key, one in value.items():
                self.value(key)
                self.value(one)
            if len(self.out) > MOST:
                raise TooMuch

    def _function(self, function: types.FunctionType) -> None:
        if not self._first(function):
            return
        self.out += (weakref.ref(function), function.__code__)
        if self.types is not None:
            self.met.append(function)
        for parts in (function.__defaults__, function.__kwdefaults__, function.__dict__):
            if parts:
                self.value(parts)
        for cell in function.__closure__ or ():
            try:
                inside = cell.cell_contents
            except ValueError:
                inside = _ABSENT
            if self.memory is not None:
                self.memory.cell(cell, inside)
            self.value(inside)

    def _method(self, method: types.MethodType) -> None:
        self.value(method.__func__)
        self.value(method.__self__)

    def _partial(self, partial: functools.partial[Any]) -> None:
        if self._first(partial):
            self.values((partial.func, *partial.args))
            self.value(partial.keywords)

    def _descriptor(self, value: Any) -> None:
        self.out.append(type(value))
        for name in ("fget", "fset", "__func__", "func"):
            inside = getattr(value, name, None)
            if inside is not None:
                self.value(inside)

    def _tensor(self, tensor: Tensor) -> None:
        self.out += (type(tensor), self._seen.setdefault(id(tensor), len(self._seen)))
        if self.memory is not None:
            self.memory.tensor(tensor)

    def _identity(self, value: object) -> None:
        self.out.append(_same(value))

    def _weak(self, reference: weakref.ref[Any]) -> None:
        self.out.append(weakref.ref)
        self.value(reference())

    def _context(self, variable: contextvars.ContextVar[Any]) -> None:
        self.out.append(_same(variable))
        self.value(variable.get(_ABSENT))

    def _bytes(self, value: Any) -> None:
        self.out += (type(value), bytes(value))

    def _slice(self, value: slice) -> None:
        self.out.append(slice)
        self.values((value.start, value.stop, value.step))

    def _random(self, generator: random.Random) -> None:
        self.out += (_same(generator), generator.getstate())
        if self.memory is not None:
            self.memory.generator(generator.getstate, generator.setstate)

    def _torch_random(self, generator: torch.Generator) -> None:
        self.out += (_same(generator), _in_bytes(generator.get_state()))
        if self.memory is not None:
            self.memory.generator(generator.get_state, generator.set_state, _in_bytes)

    def _other(self, value: Any, name: str | None) -> None:
        """What is of no type that is known by itself: a module, a kind of container or number, an object of
        the user's.
        """
        if isinstance(value, nn.Module):
            self.module(value)
        elif isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, type):
            self.out.append(weakref.ref(value))
            if self.types is not None:
                self.types.add(value)
        elif isinstance(value, enum.Enum):
            self.out.append(_same(value))
        elif isinstance(value, random.Random):
            self._random(value)
        # The type is asked: an object whose `__getattr__` looks into a dict answers a strange name with
        # KeyError.
        elif hasattr(type(value), "tobytes") and hasattr(type(value), "dtype"):
            self._array(value)
        else:
            self._object(value, name)

    def _array(self, array: Any) -> None:
        if array.nbytes > MOST or array.dtype.hasobject:
            raise TooMuch
        self.out += (type(array), str(array.dtype), array.shape, array.tobytes())
        if self.memory is not None and array.ndim and array.flags.writeable:
            self.memory.array(array)

    def _object(self, value: Any, name: str | None) -> None:
        if not self._first(value):
            return
        kind = type(value)
        self.out += (weakref.ref(kind), _same(value))
        if isinstance(value, (dict, list, tuple, set, frozenset, collections.deque)):
            if self.memory is not None:
                self.memory.keep(value)
            self.out.append(len(value))
            for one in value.items() if isinstance(value, dict) else value:
                self.value(one)
        elif isinstance(value, (int, float, str, bytes)):
            self.out.append(
                next(base.__repr__(value) for base in (int, float, str, bytes) if isinstance(value, base))
            )
        # An attribute that nobody names may be anything, a whole training loop for example.
        elif name is not None and name not in self._names:
            return
        if self.types is not None:
            self.types.add(kind)
        attributes = _asked(value, "__dict__")
        if isinstance(attributes, dict):
            if self.memory is not None:
                self.memory.keep(attributes)
            # Where an attribute is found by code, its name says nothing.
            named = self._names
            if _finds_attributes(kind) or (_READ_ALL & named and _is_settings(kind)):
                named = frozenset(attributes)
            for key, one in attributes.items():
                if key in named:
                    self.out.append(key)
                    self.value(one)
        for slot in _slots(kind):
            self.out.append(slot)
            self.value(_asked(value, slot))
        # numpy's generators.
        bits: Any = next(
            (_asked(value, name) for name in ("bit_generator", "_bit_generator") if hasattr(kind, name)), None
        )
        if hasattr(type(bits), "state"):
            self.out.append(repr(bits.state))
            if self.memory is not None:
                self.memory.generator(lambda: bits.state, partial(setattr, bits, "state"), repr)
        if len(self.out) > MOST:
            raise TooMuch


_HANDLERS: dict[type, Callable[[_Walk, Any], None]] = {
    list: _Walk._sequence,
    tuple: _Walk._sequence,
    collections.deque: _Walk._sequence,
    set: _Walk._set,
    frozenset: _Walk._set,
    dict: _Walk._mapping,
    collections.OrderedDict: _Walk._mapping,
    types.FunctionType: _Walk._function,
    types.MethodType: _Walk._method,
    functools.partial: _Walk._partial,
    property: _Walk._descriptor,
    staticmethod: _Walk._descriptor,
    classmethod: _Walk._descriptor,
    functools.cached_property: _Walk._descriptor,
    Tensor: _Walk._tensor,
    nn.Parameter: _Walk._tensor,
    slice: _Walk._slice,
    weakref.ref: _Walk._weak,
    contextvars.ContextVar: _Walk._context,
    bytearray: _Walk._bytes,
    Array: _Walk._bytes,
    random.Random: _Walk._random,
    torch.Generator: _Walk._torch_random,
    types.BuiltinFunctionType: _Walk._identity,
    types.ModuleType: _Walk._identity,
    types.CodeType: _Walk._identity,
    object: _Walk._identity,
}


@functools.cache
def _slots_of(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        yield from _slots_of((slots,) if isinstance(slots, str) else tuple(slots))


def _finds_attributes(kind: type) -> bool:
    """Whether objects of this type answer for attributes or items by code of their own."""
    return any("__getattr__" in vars(base) or "__getitem__" in vars(base) for base in kind.__mro__[:-1])


def _is_settings(kind: type) -> bool:
    return issubclass(kind, (types.SimpleNamespace, argparse.Namespace)) or dataclasses.is_dataclass(kind)


# ------------------------------------------------------------------------------------------------ what
# functions name


def named(model: nn.Module) -> Named:
    """What the forward passes of the model, and what they call, name.

    Torch's own functions and Python's are taken as they are.
    """
    found = _Names()
    while True:
        known = Named(frozenset(found.names), tuple(found.places.values()))
        walk = _Walk(known, collect=True)
        walk.all(model)
        assert walk.types is not None
        if not found.read(walk.types, walk.met):
            return known


class _Names:
    def __init__(self) -> None:
        self.names: set[str] = set()
        # By the identity of the namespace or class, and the name.
        self.places: dict[tuple[int, str], tuple[Any, str]] = {}
        self._read: set[types.FunctionType] = set()

    def read(self, kinds: Iterable[type], functions: Iterable[types.FunctionType]) -> bool:
        """Reads all functions that these types and functions lead to; False if there was nothing new."""
        before = len(self.names), len(self.places), len(self._read)
        todo = list(functions)
        for kind in kinds:
            todo += self._methods(kind)
        while todo:
            function = todo.pop()
            if function not in self._read and not _is_of_others(function.__module__):
                self._read.add(function)
                todo += self._globals(function)
        return (len(self.names), len(self.places), len(self._read)) != before

    def _methods(self, kind: type) -> Iterator[types.FunctionType]:
        """Of the names that are asked for, those that a class has, or a base of it."""
        for name in (*SPECIAL, *self.names):
            bases = [
                base for base in kind.__mro__[:-1] if name in SPECIAL or not _is_of_others(base.__module__)
            ]
            holds = [name in vars(base) for base in bases]
            if True not in holds:
                continue
            # A class before the one that has it may be given one of its own, and `super()` leads to those
            # behind it.
            last = len(holds) - holds[::-1].index(True)
            for base, has in zip(bases[:last], holds, strict=False):
                self._note(base, name)
                if has:
                    yield from _functions(vars(base)[name])

    def _globals(self, function: types.FunctionType) -> Iterator[types.FunctionType]:
        names = _names_of(function.__code__)
        self.names |= names
        imported = [_imported(name, function.__globals__) for name in names]
        todo: list[Any] = [function.__globals__, *(vars(module) for module in imported if module is not None)]
        seen = set()
        while todo:
            namespace = todo.pop()
            if id(namespace) in seen:
                continue
            seen.add(id(namespace))
            for name in names & namespace.keys():
                value = namespace[name]
                self._note(namespace, name)
                if isinstance(value, types.ModuleType):
                    todo.append(vars(value))
                yield from _functions(value)

    def _note(self, owner: Any, name: str) -> None:
        if (id(owner), name) not in self.places:
            self.places[id(owner), name] = vars(owner) if isinstance(owner, type) else owner, name


def _functions(value: Any) -> Iterator[types.FunctionType]:
    """The Python functions in what a class or a module holds under a name."""
    for one in (
        value,
        *(_asked(value, name) for name in ("fget", "fset", "__func__", "func", "__wrapped__")),
    ):
        if isinstance(one, types.FunctionType):
            yield one


def _names_of(code: types.CodeType) -> frozenset[str]:
    """Names and words in a function and the functions inside of it; `getattr(self, "scale")` names by
    a word.
    """
    inside = [_names_of(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    words = [const for const in code.co_consts if isinstance(const, str) and const.isidentifier()]
    # `getattr(config, f"gain_{stage}")` may find any attribute.
    if "getattr" in code.co_names and any(
        step.opname == "BUILD_STRING" for step in dis.get_instructions(code)
    ):
        words.append("vars")
    return frozenset(code.co_names).union(words, *inside)


def _imported(name: str, of: dict[str, Any]) -> types.ModuleType | None:
    """The module that a function with these globals imports by this name, perhaps relative to its own
    package.
    """
    for path in (name, f"{of.get('__package__')}.{name}"):
        if not _is_of_others(path) and isinstance(module := sys.modules.get(path), types.ModuleType):
            return module
    return None


def _is_of_others(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _OF_OTHERS


# ------------------------------------------------------------------------------------------------ leaving no
# trace


class Memory:
    """The state of a model and of all random generators, as they were, for a pass that must leave no trace.

    tensors: also the numbers of the tensors that are no parameters.
    """

    def __init__(
        self, model: nn.Module, functions: Named, tensors: bool, device: torch.device | None = None
    ) -> None:
        self._containers: list[tuple[Any, Any]] = []
        self._cells: list[tuple[Any, Any]] = []
        self._places: list[tuple[Any, str, Any]] = []
        self._arrays: list[tuple[Any, Any]] = []
        self._generators: list[tuple[Callable[..., Any], ...]] = []
        self._clones: dict[int, tuple[Tensor, Tensor]] | None = {} if tensors else None
        self.generator(random.getstate, random.setstate)
        if "numpy" in sys.modules:
            from numpy import random as of_numpy

            self.generator(
                of_numpy.get_state, of_numpy.set_state, lambda state: (state[1].tobytes(), *state[2:])
            )
        self.generator(torch.get_rng_state, torch.set_rng_state, _in_bytes)
        if device is not None and device.type == "cuda":
            get, put = torch.cuda.get_rng_state, torch.cuda.set_rng_state
            self.generator(partial(get, device), partial(put, device=device), _in_bytes)
        walk = _Walk(functions, self)
        walk.all(model)
        for owner, name in functions.places:
            if isinstance(owner, dict):
                self._places.append((owner, name, owner.get(name, _ABSENT)))

    # Called by the walk.

    def keep(self, container: Any) -> None:
        if isinstance(container, dict):
            self._containers.append((container, dict(container)))
        elif isinstance(container, (list, set, collections.deque)):
            self._containers.append((container, list(container)))

    def cell(self, cell: Any, inside: Any) -> None:
        self._cells.append((cell, inside))

    def array(self, array: Any) -> None:
        self._arrays.append((array, array.copy()))

    def tensor(self, tensor: Tensor) -> None:
        if (
            self._clones is not None
            and not isinstance(tensor, nn.Parameter)
            and id(tensor) not in self._clones
        ):
            self._clones[id(tensor)] = tensor, tensor.detach().clone()

    def generator(
        self,
        get: Callable[[], Any],
        put: Callable[[Any], Any],
        compared: Callable[[Any], Any] = lambda state: state,
    ) -> None:
        self._generators.append((get, put, compared, get()))

    def put_back(self) -> str | None:
        """Everything as it was. Returns in words what the pass has done, of tensors nothing."""
        found = None
        for container, before in self._containers:
            if not _is_as(container, before):
                found = "changes its Python state"
                container.clear()
                if isinstance(container, (dict, set)):
                    container.update(before)
                else:
                    container.extend(before)
        for cell, before in self._cells:
            try:
                now = cell.cell_contents
            except ValueError:
                now = _ABSENT
            if now is not before:
                found = "changes its Python state"
                cell.cell_contents = before
        for owner, name, before in self._places:
            if owner.get(name, _ABSENT) is not before:
                found = "changes its Python state"
                if before is _ABSENT:
                    del owner[name]
                else:
                    owner[name] = before
        for array, before in self._arrays:
            if array.tobytes() != before.tobytes():
                found = "changes its Python state"
                array[...] = before
        for get, put, compared, before in self._generators:
            if compared(get()) != compared(before):
                found = found or "draws random numbers"
                put(before)
        if self._clones:
            pairs = self._clones.values()
            with torch.no_grad():
                for tensor, clone in pairs:
                    if tensor.shape == clone.shape:
                        # `data` has a version counter of its own: a graph that the user still holds stays
                        # whole.
                        tensor.data.copy_(clone)
        return found


def _in_bytes(state: Tensor) -> bytes:
    return state.numpy().tobytes()


def _is_as(container: Any, before: Any) -> bool:
    if len(container) != len(before):
        return False
    if isinstance(container, dict):
        return all(a is b and container[a] is before[b] for a, b in zip(container, before, strict=True))
    return all(a is b for a, b in zip(container, before, strict=True))
