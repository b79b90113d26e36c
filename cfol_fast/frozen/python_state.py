"""What Python knows of a model: all that decides how its forward pass runs, besides the numbers in its
tensors.

`fingerprint` is compared at every attack. It holds the types of all modules, their attributes with the
contents of containers, hooks, which tensors are one and the same, functions with their closures, what the
forward passes name (`names`): methods, globals, constants of a class, fields of a settings object, and what
they can depend on outside of the model (`surroundings`).

Nothing in a fingerprint keeps the model alive: objects stand in it by weak reference, and tensors by the
order in which they are met.
"""

from __future__ import annotations

import collections
import collections.abc
import contextvars
import enum
import functools
import operator
import random
import types
import weakref
from array import array as Array
from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cfol_fast.frozen.kinds import (
    BARE,
    HOOKS,
    OWN_AFFAIR,
    SKIPPED,
    TYPED,
    finds_attributes,
    in_bytes,
    is_of_ctypes,
    is_settings,
    same_object,
    slots_of,
)
from cfol_fast.frozen.names import ABSENT, Met, Named, Reader, asked, is_of_others, words_in
from cfol_fast.frozen.surroundings import GLOBAL_HOOKS, USED, modes

if TYPE_CHECKING:
    from cfol_fast.frozen.snapshot import Snapshot

Fingerprint = tuple[Hashable, ...]
# A model with more than this is not compared but run as it is: a second to look at it would be lost at every
# attack.
MOST = 200_000
_AGAIN = object()
# A function that names one of these reads all attributes of an object. Settings alone are then compared
# whole: others may be anything.
_READ_ALL = frozenset(("asdict", "astuple", "fields"))


class TooMuch(Exception):
    """The state of the model cannot be compared at every attack; says why, in words."""

    def __init__(self, reason: str = "its Python state is too large to be compared at every attack") -> None:
        super().__init__(reason)


def fingerprint(model: nn.Module, functions: Named | None = None) -> Fingerprint:
    """Equal for two moments between which nothing has changed that the forward pass can see, tensors' numbers
    aside.

    functions: what the model's functions name, if that is known; else it is found first, which takes longer.
    """
    walk = Walk(functions or named(model))
    walk.all(model)
    return tuple(walk.out)


class Walk:
    """One pass over the state. snapshot: collects what is met, to be put back. types, functions: collect what
    is met, to be read.
    """

    def __init__(self, functions: Named, snapshot: Snapshot | None = None, collect: bool = False) -> None:
        self.out: list[Any] = []
        self.functions, self.snapshot = functions, snapshot
        self._names, self._everything = functions.names, functions.everything
        self._seen: dict[int, int] = {}
        self.met = Met() if collect else None

    def all(self, model: nn.Module) -> None:
        out = self.out
        try:
            self.module(model)
            for owner, name in self.functions.places:
                out.append(name)
                value = owner.get(name, ABSENT)
                self.value(value)
                if self.met is not None:
                    self._texts((value,))
            for owner, name in USED:
                self.value(getattr(owner, name))
            for answer in self.functions.asked:
                self.value(answer())
            out.extend(modes())
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
        if self.met is not None:
            self.met.types.add(kind)
        attributes = module.__dict__
        if self.met is not None:
            self._texts(attributes.values())
        if self.snapshot is not None:
            self.snapshot.keep(attributes)
        for name, value in attributes.items():
            if value.__class__ in BARE:
                out += (name, value)
            elif name in SKIPPED or (name in HOOKS and not value):
                continue
            elif name == "_parameters" or name == "_buffers":
                self._tensors(value)
            elif name == "_modules":
                if self.snapshot is not None:
                    self.snapshot.keep(value)
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
        if self.snapshot is not None:
            self.snapshot.keep(tensors)
        for name, tensor in tensors.items():
            out.append(name)
            if tensor is None:
                out.append(None)
            else:
                out += (tensor.__class__, seen.setdefault(id(tensor), len(seen)))
                if self.snapshot is not None:
                    self.snapshot.tensor(tensor)

    def value(self, value: Any, name: str | None = None) -> None:
        """name: of the attribute that holds it, where a function may name it."""
        kind = value.__class__
        if kind in BARE:
            self.out.append(value)
        elif kind in TYPED:
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
            if self.met is not None:
                self._texts((value,))
        if len(self.out) > MOST:
            raise TooMuch

    def _texts(self, values: Iterable[Any]) -> None:
        assert self.met is not None
        self.met.words.update(value for value in values if type(value) is str)

    def _first(self, value: object) -> bool:
        """Whether this one is met for the first time; it is noted."""
        at = self._seen.get(id(value))
        if at is not None:
            self.out += (_AGAIN, at)
            return False
        self._seen[id(value)] = len(self._seen)
        return True

    def _sequence(self, value: Any) -> None:
        """A list, tuple, set or deque. The order of a set stays as long as the set does."""
        if self._first(value):
            self.out += (type(value), len(value))
            if self.snapshot is not None:
                self.snapshot.keep(value)
            self.values(value)

    def _mapping(self, value: Mapping[Any, Any]) -> None:
        if self._first(value):
            self.out += (type(value), len(value))
            if self.snapshot is not None:
                self.snapshot.keep(value)
            if self.met is not None:
                self._texts((*value.keys(), *value.values()))
            for key, one in value.items():
                self.value(key)
                self.value(one)
            if len(self.out) > MOST:
                raise TooMuch

    def _view(self, view: Iterable[Any]) -> None:
        """Of a dict that nobody else may hold: its keys, values or items, as they are now."""
        self.out.append(type(view))
        self.values(view)

    def _function(self, function: types.FunctionType) -> None:
        if not self._first(function):
            return
        self.out += (weakref.ref(function), function.__code__)
        if self.met is not None:
            self.met.functions.append(function)
        for parts in (function.__defaults__, function.__kwdefaults__, function.__dict__):
            if parts:
                self.value(parts)
        for cell in function.__closure__ or ():
            try:
                inside = cell.cell_contents
            except ValueError:
                inside = ABSENT
            if self.snapshot is not None:
                self.snapshot.cell(cell, inside)
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
        if self.snapshot is not None:
            self.snapshot.tensor(tensor)

    def _identity(self, value: object) -> None:
        self.out.append(same_object(value))

    def _weak(self, reference: weakref.ref[Any]) -> None:
        self.out.append(weakref.ref)
        self.value(reference())

    def _context(self, variable: contextvars.ContextVar[Any]) -> None:
        self.out.append(same_object(variable))
        self.value(variable.get(ABSENT))

    def _bytes(self, value: Any) -> None:
        self.out += (type(value), bytes(value))

    def _cache(self, function: Any) -> None:
        """A function that remembers its results: they may be forgotten."""
        info = function.cache_info()
        self.out += (same_object(function), info.currsize, info.misses if info.maxsize != 0 else 0)
        self.value(function.__wrapped__)

    def _getter(self, getter: Any) -> None:
        """`attrgetter`, `itemgetter` and `methodcaller`: what they name."""
        self.out.append(same_object(getter))
        if self.met is not None:
            self.met.getters.update(
                *(words_in(word) for word in getter.__reduce__()[1] if isinstance(word, str))
            )

    def _slice(self, value: slice) -> None:
        self.out.append(slice)
        self.values((value.start, value.stop, value.step))

    def _random(self, generator: random.Random) -> None:
        self.out += (same_object(generator), generator.getstate())
        if self.snapshot is not None:
            self.snapshot.generator(generator.getstate, generator.setstate)

    def _torch_random(self, generator: torch.Generator) -> None:
        self.out += (same_object(generator), in_bytes(generator.get_state()))
        if self.snapshot is not None:
            self.snapshot.generator(generator.get_state, generator.set_state, in_bytes)

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
            if self.met is not None:
                self.met.built.add(value)
                # A class has its properties from its own class.
                self.met.types |= {value, type(value)}
        elif isinstance(value, enum.Enum):
            self.out.append(same_object(value))
        elif isinstance(value, random.Random):
            self._random(value)
        elif is_of_ctypes(value):
            self.out += (type(value), bytes(value))
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
        if self.snapshot is not None and array.ndim and array.flags.writeable:
            self.snapshot.array(array)

    def _object(self, value: Any, name: str | None) -> None:
        if not self._first(value):
            return
        kind = type(value)
        self.out += (weakref.ref(kind), same_object(value))
        if isinstance(value, (dict, list, tuple, set, frozenset, collections.deque)):
            if self.snapshot is not None:
                self.snapshot.keep(value)
            self.out.append(len(value))
            for one in value.items() if isinstance(value, dict) else value:
                self.value(one)
        elif isinstance(value, (int, float, str, bytes)):
            self.out.append(
                next(base.__repr__(value) for base in (int, float, str, bytes) if isinstance(value, base))
            )
        # An attribute that nobody names may be anything, a whole training loop for example.
        elif name is not None and name not in self._names and not self._everything:
            return
        elif isinstance(value, collections.abc.Iterator) and not hasattr(value, "__dict__"):
            raise TooMuch(f"it holds a {kind.__name__}, whose state cannot be read")
        if self.met is not None:
            self.met.types.add(kind)
        attributes = asked(value, "__dict__")
        if isinstance(attributes, dict):
            if self.snapshot is not None:
                self.snapshot.keep(attributes)
            # Where an attribute is found by code, its name says nothing.
            named = self._names
            whole = (
                self._everything
                or finds_attributes(kind)
                or (is_of_others(kind.__module__) and not isinstance(value, OWN_AFFAIR))
                or (_READ_ALL & named and is_settings(kind))
            )
            for key, one in attributes.items():
                if whole or key in named:
                    self.out.append(key)
                    self.value(one)
        for slot in slots_of(kind):
            self.out.append(slot)
            self.value(asked(value, slot))
        # numpy's generators.
        bits: Any = next(
            (asked(value, name) for name in ("bit_generator", "_bit_generator") if hasattr(kind, name)), None
        )
        if hasattr(type(bits), "state"):
            self.out.append(repr(bits.state))
            if self.snapshot is not None:
                self.snapshot.generator(lambda: bits.state, partial(setattr, bits, "state"), repr)
        if len(self.out) > MOST:
            raise TooMuch


_HANDLERS: dict[type, Callable[[Walk, Any], None]] = {
    list: Walk._sequence,
    tuple: Walk._sequence,
    collections.deque: Walk._sequence,
    set: Walk._sequence,
    frozenset: Walk._sequence,
    dict: Walk._mapping,
    collections.OrderedDict: Walk._mapping,
    types.FunctionType: Walk._function,
    types.MethodType: Walk._method,
    functools.partial: Walk._partial,
    property: Walk._descriptor,
    staticmethod: Walk._descriptor,
    classmethod: Walk._descriptor,
    functools.cached_property: Walk._descriptor,
    Tensor: Walk._tensor,
    nn.Parameter: Walk._tensor,
    slice: Walk._slice,
    weakref.ref: Walk._weak,
    contextvars.ContextVar: Walk._context,
    bytearray: Walk._bytes,
    Array: Walk._bytes,
    random.Random: Walk._random,
    torch.Generator: Walk._torch_random,
    types.BuiltinFunctionType: Walk._identity,
    types.ModuleType: Walk._identity,
    types.CodeType: Walk._identity,
    object: Walk._identity,
    types.MappingProxyType: Walk._mapping,
    type({}.keys()): Walk._view,
    type({}.values()): Walk._view,
    type({}.items()): Walk._view,
    type(functools.cache(repr)): Walk._cache,
    operator.attrgetter: Walk._getter,
    operator.itemgetter: Walk._getter,
    operator.methodcaller: Walk._getter,
    memoryview: Walk._bytes,
}


def named(model: nn.Module) -> Named:
    """What the forward passes of the model, and what they call, name."""
    reader = Reader()
    while True:
        known = reader.found()
        if known.refused is not None:
            raise TooMuch(known.refused)
        walk = Walk(known, collect=True)
        walk.all(model)
        assert walk.met is not None
        if not reader.read(walk.met):
            return known
