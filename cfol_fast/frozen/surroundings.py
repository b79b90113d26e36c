"""What a forward pass can depend on outside of its model: functions of torch that somebody replaced, hooks
and modes that stand around every call, and the state of the process that a model asks for.
"""

from __future__ import annotations

import datetime
import os
import time
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as _of_torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

GLOBAL_HOOKS: tuple[dict[int, Any], ...] = tuple(
    found
    for name in ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    if isinstance(found := getattr(_of_torch, f"_global_{name}", None), dict)
)
# The functions that the fast network has in place of torch's layers; somebody may replace those of torch.
USED: tuple[tuple[Any, str], ...] = tuple(
    (owner, name)
    for owner, names in (
        (F, ("relu", "relu_", "conv2d", "batch_norm", "linear")),
        (torch, ("relu", "relu_", "flatten", "add")),
        (nn.Module, ("__call__", "_call_impl", "_wrapped_call_impl")),
        (Tensor, ("relu", "relu_", "flatten", "view", "view_as", "reshape", "reshape_as")),
        (Tensor, ("__add__", "__iadd__")),
    )
    for name in names
)
_ORIGINAL = tuple(getattr(owner, name) for owner, name in USED)
# Methods of a path that read what is outside of Python.
READ_FILES = frozenset(("read_text", "read_bytes"))
_CLOCKS = frozenset(
    id(value) for name, value in vars(time).items() if name.startswith(("time", "perf", "mono"))
)
_NOW = frozenset(("now", "today", "utcnow"))
_FILES = frozenset(
    id(function)
    for function in (os.stat, os.path.exists, os.path.isfile, os.path.getmtime, os.listdir, torch.load)
)
# Functions that answer for the state of the process, and what stands for their answers.
_STATE: dict[int, Callable[[], Any]] = {
    id(os.getenv): lambda: os.environ,
    **{
        id(function): function
        for function in (
            torch.get_default_dtype,
            torch.get_default_device,
            torch.are_deterministic_algorithms_enabled,
            torch.is_deterministic_algorithms_warn_only_enabled,
            torch.get_num_threads,
            torch.get_num_interop_threads,
            torch.get_float32_matmul_precision,
            torch.is_anomaly_enabled,
            os.getcwd,
        )
    },
}


def replaced() -> str | None:
    """A function of torch's that the fast network stands in for, and that somebody has replaced."""
    for (owner, name), original in zip(USED, _ORIGINAL, strict=True):
        if getattr(owner, name) is not original:
            return name
    return None


def modes() -> tuple[type, ...]:
    """The kinds of modes that change what torch's functions or ops do, now.

    Torch's own modes for ops count, trace or time them, and so does one that says `only_watches = True`.
    """
    if not torch._C._len_torch_function_stack() and not torch._C._len_torch_dispatch_stack():
        return ()
    functions = [torch._C._get_function_stack_at(at) for at in range(torch._C._len_torch_function_stack())]
    found = [type(mode) for mode in functions if type(mode).__name__ != "DeviceContext"]
    ops = [type(mode) for mode in _get_current_dispatch_mode_stack()]
    found += [kind for kind in ops if kind.__module__.partition(".")[0] != "torch"]
    return tuple(kind for kind in found if not getattr(kind, "only_watches", False))


def asked(value: Any, names: frozenset[str]) -> dict[Any, Callable[[], Any]]:
    """What a function that names `value`, and these names, asks of the state of the process."""
    if id(value) in _STATE:
        return {id(value): _STATE[id(value)]}
    if isinstance(value, types.ModuleType) and type(value) is not types.ModuleType:
        # Flags such as `torch.backends.cudnn.benchmark` are descriptors on a module's own class.
        flags = [name for name in names if not name.startswith("__") and hasattr(type(value), name)]
        return {(id(value), name): partial(getattr, value, name, None) for name in flags}
    return {}


def unreadable(value: Any, names: frozenset[str]) -> str | None:
    """Why what a function learns from `value` cannot be compared, in words."""
    is_calendar = value is datetime.datetime or value is datetime.date or value is datetime
    if id(value) in _CLOCKS or (is_calendar and names & _NOW):
        return "its forward pass reads the clock"
    return "its forward pass reads a file" if id(value) in _FILES else None
