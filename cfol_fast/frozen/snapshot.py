"""Puts back what Python knows of a model, and all random generators, after a pass that leaves no trace."""

from __future__ import annotations

import collections
import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast.frozen.kinds import in_bytes
from cfol_fast.frozen.names import ABSENT, Named
from cfol_fast.frozen.python_state import Walk


class Snapshot:
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
        self.generator(torch.get_rng_state, torch.set_rng_state, in_bytes)
        if device is not None and device.type == "cuda":
            get, put = torch.cuda.get_rng_state, torch.cuda.set_rng_state
            self.generator(partial(get, device), partial(put, device=device), in_bytes)
        walk = Walk(functions, self)
        walk.all(model)
        for owner, name in functions.places:
            if isinstance(owner, dict):
                self._places.append((owner, name, owner.get(name, ABSENT)))

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
                now = ABSENT
            if now is not before:
                found = "changes its Python state"
                cell.cell_contents = before
        for owner, name, before in self._places:
            if owner.get(name, ABSENT) is not before:
                found = "changes its Python state"
                if before is ABSENT:
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


def _is_as(container: Any, before: Any) -> bool:
    if len(container) != len(before):
        return False
    if isinstance(container, dict):
        return all(a is b and container[a] is before[b] for a, b in zip(container, before, strict=True))
    return all(a is b for a, b in zip(container, before, strict=True))
