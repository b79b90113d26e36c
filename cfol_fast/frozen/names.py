"""What the functions of a model name: attributes, methods and globals. It is read from their bytecode, once
for every state of the model.

Torch's own functions and Python's are taken as they are.
"""

from __future__ import annotations

import dis
import enum
import functools
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from cfol_fast.frozen import surroundings

# What stands for a value that is not there.
ABSENT = object()
# Methods through which torch itself calls a module, whatever a forward pass names.
SPECIAL = ("forward", "__call__", "_call_impl", "_wrapped_call_impl", "__getattr__", "_conv_forward")
# Special methods that no forward pass calls on an object that is there already.
_NOT_CALLED = frozenset(
    f"__{name}__"
    for name in (
        *("new", "init", "post_init", "del", "repr", "reduce", "reduce_ex", "getstate", "setstate", "dir"),
        *("init_subclass", "class_getitem", "set_name", "delattr", "setattr", "delete", "copy", "deepcopy"),
    )
)
# What runs when an object of a class is made.
_MAKING = ("__new__", "__init__", "__post_init__")
_OF_OTHERS = frozenset(sys.stdlib_module_names) | {"numpy", "torch", "builtins"}
# Functions that look a name up which stands nowhere in the code.
_LOOK_UP = frozenset(("eval", "exec", "globals", "locals"))


class Origin(enum.IntEnum):
    """Where the names come from that a function gives to `getattr`."""

    CODE = 0
    STATE = 1
    ANYWHERE = 2


@dataclass(frozen=True)
class Named:
    """What the functions of a model name: `names` of attributes, and `places`, (a namespace or a class, a
    name), of globals and methods.

    asked: functions without arguments that answer for the state of the process which the model's functions
    ask for. everything: names are also made while the forward pass runs, so any attribute may be read.
    refused: why no comparison can be complete, in words.
    """

    names: frozenset[str] = frozenset()
    places: tuple[tuple[Any, str], ...] = ()
    asked: tuple[Callable[[], Any], ...] = ()
    everything: bool = False
    refused: str | None = None


class Met:
    """What a walk over a model's state has met: types of objects, types that stand for themselves (of which
    the model may make objects), functions, texts, and the names that objects like `attrgetter` hold.
    """

    def __init__(self) -> None:
        self.types: set[type] = set()
        self.built: set[type] = set()
        self.functions: list[types.FunctionType] = []
        self.words: set[str] = set()
        self.getters: set[str] = set()


class Reader:
    """Reads functions until they lead to nothing new."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        # By the identity of the namespace or class, and the name.
        self._places: dict[tuple[int, str], tuple[Any, str]] = {}
        self._asked: dict[Any, Callable[[], Any]] = {}
        self._origin = Origin.CODE
        self._refused: str | None = None
        self._compares = False
        self._read: set[types.FunctionType] = set()

    def found(self) -> Named:
        return Named(
            frozenset(self._names),
            tuple(self._places.values()),
            tuple(self._asked.values()),
            self._origin is Origin.ANYWHERE,
            self._refused,
        )

    def read(self, met: Met) -> bool:
        """Reads all functions that what was met leads to; False if there was nothing new."""
        before = self._size()
        self._names |= met.getters
        if self._origin is Origin.STATE:
            self._names.update(*map(words_in, met.words))
        todo = list(met.functions)
        for kind in met.types:
            todo += self._methods(kind, _asked_of(kind, self._compares))
        for kind in met.built:
            if not issubclass(kind, nn.Module):
                todo += self._methods(kind, _MAKING)
        while todo:
            function = todo.pop()
            if function not in self._read and not is_of_others(function.__module__):
                self._read.add(function)
                todo += self._globals(function)
        return self._size() != before

    def _size(self) -> tuple[int, ...]:
        refused = self._refused is not None
        return (
            *map(len, (self._names, self._places, self._read, self._asked)),
            self._origin,
            self._compares,
            refused,
        )

    def _methods(self, kind: type, special: Iterable[str]) -> Iterator[types.FunctionType]:
        """Of the names that are asked for, those that a class has, or a base of it."""
        names = {*special, *self._names}
        if self._origin is Origin.ANYWHERE:
            names |= {name for base in _own(kind) for name in vars(base) if not name.startswith("__")}
        for name in sorted(names):
            bases = [
                base for base in kind.__mro__[:-1] if name in SPECIAL or not is_of_others(base.__module__)
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
                    yield from functions_in(vars(base)[name])

    def _globals(self, function: types.FunctionType) -> Iterator[types.FunctionType]:
        names = names_of(function.__code__)
        self._names |= names
        self._compares |= _compares(function.__code__)
        self._origin = max(self._origin, origin_of_names(function.__code__))
        self._refused = self._refused or _refused(function)
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
                self._refused = self._refused or surroundings.unreadable(value, names)
                self._asked |= surroundings.asked(value, names)
                if isinstance(value, types.ModuleType):
                    todo.append(vars(value))
                yield from functions_in(value)

    def _note(self, owner: Any, name: str) -> None:
        if (id(owner), name) not in self._places:
            self._places[id(owner), name] = vars(owner) if isinstance(owner, type) else owner, name


def functions_in(value: Any) -> Iterator[types.FunctionType]:
    """The Python functions in what a class or a module holds under a name."""
    for one in (
        value,
        *(asked(value, name) for name in ("fget", "fset", "__func__", "func", "__wrapped__")),
    ):
        if isinstance(one, types.FunctionType):
            yield one


def asked(value: Any, name: str) -> Any:
    """The attribute, or what stands for none; the code of a user's own that answers may raise anything."""
    try:
        return getattr(value, name, ABSENT)
    except Exception:
        return ABSENT


def is_of_others(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _OF_OTHERS


def _own(kind: type) -> list[type]:
    return [base for base in kind.__mro__[:-1] if not is_of_others(base.__module__)]


def _asked_of(kind: type, compares: bool) -> set[str]:
    """The special methods of a class of the user's: operators, `float()`, `with`, descriptors call them.

    compares: with `==` too. A dataclass has one that reads all of its fields.
    """
    own = {
        name
        for base in _own(kind)
        for name, value in vars(base).items()
        if name.startswith("__") and name not in _NOT_CALLED and any(functions_in(value))
    }
    if not compares:
        own -= {"__eq__"}
    return own | set(SPECIAL) if issubclass(kind, nn.Module) else own | {"__call__", "__getattr__"}


@functools.cache
def names_of(code: types.CodeType) -> frozenset[str]:
    """Names and words in a function and the functions inside of it; `getattr(self, "scale")` and
    `attrgetter("config.scale")` name by a word.
    """
    found = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            found |= names_of(const)
        elif isinstance(const, str):
            found |= words_in(const)
    return frozenset(found)


def words_in(text: str) -> set[str]:
    parts = text.split(".")
    return set(parts) if all(part.isidentifier() for part in parts) else set()


@functools.cache
def origin_of_names(code: types.CodeType) -> Origin:
    """STATE: a word that an attribute or a global holds. ANYWHERE: names are made, or `vars` or `__dict__`
    gives all of them.
    """
    inside = [origin_of_names(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    if {"vars", "__dict__", "__getattribute__"} & set(code.co_names):
        return Origin.ANYWHERE
    if {"getattr", "attrgetter"} & set(code.co_names):
        steps = list(dis.get_instructions(code))
        for place, step in enumerate(steps):
            if step.argval in ("getattr", "attrgetter"):
                inside.append(_origin_in_call(steps[place + 1 :], step.argval))
    return max(inside, default=Origin.CODE)


def _origin_in_call(steps: list[dis.Instruction], function: str) -> Origin:
    """Of the names in the call of the function that was just loaded.

    Its arguments are followed on the stack.
    """
    stack: list[Origin] = []
    for step in steps:
        if step.opname in ("PRECALL", "CALL") and step.arg == len(stack):
            return max(stack if function == "attrgetter" else stack[1:2], default=Origin.ANYWHERE)
        if "JUMP" in step.opname or step.opname in ("STORE_FAST", "RETURN_VALUE", "POP_TOP"):
            break
        effect = dis.stack_effect(step.opcode, step.arg)
        if step.opname == "LOAD_CONST":
            stack.append(Origin.CODE if isinstance(step.argval, str) else Origin.ANYWHERE)
        elif step.opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
            stack += [Origin.STATE] * effect
        elif step.opname == "LOAD_ATTR" and stack:
            stack[-1] = Origin.STATE
        elif effect > 0:
            stack += [Origin.ANYWHERE] * effect
        elif step.opname not in ("CACHE", "NOP", "EXTENDED_ARG"):
            del stack[len(stack) + effect :]
            if not stack:
                break
            stack[-1] = Origin.ANYWHERE
    return Origin.ANYWHERE


@functools.cache
def _compares(code: types.CodeType) -> bool:
    inside = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    steps = dis.get_instructions(code)
    own = any(step.opname == "COMPARE_OP" and step.argval in ("==", "!=") for step in steps)
    return own or any(map(_compares, inside))


def _refused(function: types.FunctionType) -> str | None:
    loaded = _loaded(function.__code__)
    for name in loaded & _LOOK_UP:
        if name not in function.__globals__:
            return f"its forward pass looks names up by {name}()"
    if "open" in loaded and "open" not in function.__globals__:
        return "its forward pass reads a file"
    if surroundings.READ_FILES & names_of(function.__code__):
        return "its forward pass reads a file"
    return None


@functools.cache
def _loaded(code: types.CodeType) -> frozenset[str]:
    """Names of globals and of Python's own functions, not of attributes."""
    inside = [_loaded(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    steps = dis.get_instructions(code)
    own = {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return frozenset(own).union(*inside)


def _imported(name: str, of: dict[str, Any]) -> types.ModuleType | None:
    """The module that a function with these globals imports by this name, perhaps relative to its own
    package.
    """
    for path in (name, f"{of.get('__package__')}.{name}"):
        if not is_of_others(path) and isinstance(module := sys.modules.get(path), types.ModuleType):
            return module
    return None
