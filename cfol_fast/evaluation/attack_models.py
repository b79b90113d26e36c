"""Which models an attack of anybody's is on: an attack on another model than the one that is evaluated finds
little, and the model looks robust.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast.attacks import Attack
from cfol_fast.evaluation.autoattack import AutoAttack
from cfol_fast.frozen import bare, evaluation_mode, logits_in, put_back_random_states, random_states

# Relative difference between the logits of the model and of the attack's own, beyond which they are two
# models.
SAME_MODEL = {torch.float32: 1e-3, torch.float64: 1e-3}
SAME_IN_LOWER_PRECISION = 0.05
# So many objects, so far from the attack, are looked at: a library's attack may hold a whole program.
OBJECTS, DEPTH = 500, 6


def is_for_another(attack: Any, model: nn.Module, x: Tensor, logits: Tensor) -> bool:
    """Whether the attack's model is not this one.

    Wrappers and copies count as the same while their logits (B, k) for x are.
    """
    if (said := _says(attack)) is not None:
        return _same(said, model, x, logits) is not True
    attacks, others = models_of(attack)
    if attacks:
        return not any(_same(one, model, x, logits) for one in attacks)
    if any(bare(one) is bare(model) for one in others):
        return False
    # A loss or a filter is a module too: it has no logits to compare.
    return any(_same(one, model, x, logits) is False for one in others)


def models_of(attack: Any) -> tuple[list[nn.Module], list[nn.Module]]:
    """(models of the attacks of ours that it uses, modules that it holds, which need not be models)."""
    attacks: list[nn.Module] = []
    others: list[nn.Module] = []
    seen, todo = {id(attack)}, deque((one, 1) for one in _held(attack))
    while todo and len(seen) < OBJECTS:
        one, depth = todo.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        # What is in a model is no model of the attack.
        if isinstance(one, nn.Module):
            others.append(one)
        elif isinstance(one, (Attack, AutoAttack)):
            attacks.append(one.model)
        elif depth < DEPTH:
            todo += ((inside, depth + 1) for inside in _held(one))
    return attacks, others


def _says(attack: Any) -> nn.Module | None:
    """The model that an attack was built for, where it says so as ours and other libraries' do."""
    while isinstance(attack, functools.partial):
        attack = attack.func
    found = getattr(getattr(attack, "__self__", attack), "model", None)
    return found if isinstance(found, nn.Module) else None


def _held(one: Any) -> Iterator[Any]:
    """What a function, an object or a container leads to, as far as it can hold a model."""
    if isinstance(one, functools.partial):
        yield from (one.func, *one.args, *one.keywords.values())
    elif isinstance(one, types.MethodType):
        yield from (one.__self__, one.__func__)
    elif inspect.isfunction(one):
        known = inspect.getclosurevars(one)
        yield from (*known.nonlocals.values(), *known.globals.values())
        yield from (*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values())
        yield from vars(one).values()
    elif isinstance(one, Mapping):
        yield from one.values()
    elif isinstance(one, (list, tuple, set, frozenset, deque)):
        yield from one
    elif isinstance(one, type):
        yield from _attributes(vars(one).values())
    elif not isinstance(one, (Tensor, types.ModuleType, str, bytes, int, float, type(None))):
        yield from _attributes(getattr(one, "__dict__", {}).values())
        if isinstance(one, nn.Module):
            yield from one.children()
        for base in type(one).__mro__[:-1]:
            slots = vars(base).get("__slots__", ())
            names = (slots,) if isinstance(slots, str) else slots
            yield from (getattr(one, name, None) for name in names if name != "__dict__")


def _attributes(values: Iterable[Any]) -> Iterator[Any]:
    return (value for value in values if not isinstance(value, (staticmethod, classmethod, property)))


def _same(own: nn.Module, model: nn.Module, x: Tensor, logits: Tensor) -> bool | None:
    """None: it gives no logits for these images."""
    if bare(own) is bare(model):
        return True
    states = random_states(x.device)
    try:
        with torch.no_grad(), evaluation_mode(own):
            theirs = logits_in(bare(own)(x))
    # Somebody else's module, which may want other arguments.
    except Exception:
        return None
    finally:
        put_back_random_states(states)
    if not isinstance(theirs, Tensor) or theirs.shape != logits.shape:
        return None
    mine, limit = logits.float(), SAME_MODEL.get(logits.dtype, SAME_IN_LOWER_PRECISION)
    return bool((theirs.float() - mine).norm() <= limit * mine.norm())
