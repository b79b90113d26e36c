"""Kinds of objects in the state of a model, and what of each is compared."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import io
import logging
import sys
import types
import weakref
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import Tensor

HOOKS = frozenset(
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
SKIPPED = frozenset(
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
# Compared by value. 1, 1.0 and True are equal in Python and not to a forward pass, so the type of all but the
# first stands beside them.
BARE = frozenset((int, str, type(None)))
TYPED = frozenset((bool, float, complex, bytes, range, type(...), type(NotImplemented), torch.Size)) | {
    torch.dtype,
    torch.device,
    torch.memory_format,
    torch.layout,
}
# Objects of Python's library that go their own way: what is in them changes nothing that is computed.
OWN_AFFAIR = (logging.Logger, logging.Handler, io.IOBase)


class _Is:
    """Stands for one object; equal by identity."""

    __slots__ = ("it",)

    def __init__(self, it: object) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Is) and other.it is self.it

    def __hash__(self) -> int:
        return id(self.it)


def same_object(it: Any) -> Hashable:
    """Equal for this very object alone; it is not kept alive where that can be helped."""
    try:
        # There is one such reference for an object. Two of them would compare the objects by what their class
        # calls equal.
        return _Is(weakref.ref(it))
    except TypeError:
        return _Is(it)


@functools.cache
def _slots_of(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def slots_of(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        yield from _slots_of((slots,) if isinstance(slots, str) else tuple(slots))


def finds_attributes(kind: type) -> bool:
    """Whether objects of this type answer for attributes or items by code of their own."""
    return any("__getattr__" in vars(base) or "__getitem__" in vars(base) for base in kind.__mro__[:-1])


def is_of_ctypes(value: Any) -> bool:
    ctypes: Any = sys.modules.get("ctypes")
    if ctypes is None:
        return False
    return isinstance(value, (ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union))


def is_settings(kind: type) -> bool:
    return issubclass(kind, (types.SimpleNamespace, argparse.Namespace)) or dataclasses.is_dataclass(kind)


def in_bytes(state: Tensor) -> bytes:
    return state.numpy().tobytes()
