"""The model as an attack uses it: a function of its input alone, in eval mode; afterwards the model is as it was."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from cfol_fast.attacks import heap
from cfol_fast.attacks.choices import choices
from cfol_fast.attacks.tracing import plan_for
from cfol_fast.errors import InputError
from cfol_fast.machine import bfloat16_trouble

Network = Callable[[Tensor], Tensor]


_entering = threading.Lock()
# For each model that is in evaluation mode: how many blocks it is in, and the modules to put back.
_inside: weakref.WeakKeyDictionary[nn.Module, tuple[int, list[nn.Module]]] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Puts every module in eval mode inside the block, and back into its own mode afterwards.

    Two threads may be inside with the same model: the last to leave puts the modes back.
    """
    with _entering:
        blocks, training = _inside.get(model, (0, []))
        for module in (module for module in model.modules() if module.training):
            module.training = False
            training.append(module)
        _inside[model] = blocks + 1, training
    try:
        yield
    finally:
        with _entering:
            blocks, training = _inside.pop(model)
            if blocks > 1:
                _inside[model] = blocks - 1, training
            else:
                for module in training:
                    module.training = True


def bare(model: nn.Module) -> nn.Module:
    """The network inside the wrappers that would record, reduce or compile the attack's passes."""
    while isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        model = model.module
    # torch.compile's wrapper
    original = getattr(model, "_orig_mod", None)
    return bare(original) if isinstance(original, nn.Module) else model


@contextlib.contextmanager
def frozen(
    model: nn.Module, device: torch.device, fast: bool = True, dtype: torch.dtype | None = None
) -> Iterator[Network]:
    """The model's logits as a function of x, with constant weights; gradients flow to the input.

    fast: BatchNorm is folded where the model can be traced; a model that cannot be runs as it is.
    dtype: the precision of the passes; without it that of the surrounding autocast, or the model's.
    """
    model = bare(model)
    has_autocast = device.type != "meta" and torch.amp.is_autocast_available(device.type)
    if dtype is None and has_autocast and torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    lower = dtype if dtype in (torch.bfloat16, torch.float16) else None
    if lower is torch.bfloat16 and (trouble := bfloat16_trouble(device)):
        raise InputError(trouble)
    precision: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if has_autocast and (lower is not None or torch.is_autocast_enabled(device.type)):
        precision = torch.autocast(device.type, lower, enabled=lower is not None)
    with evaluation_mode(model), precision, heap.kept(device):
        plan = plan_for(model) if fast else None
        if plan is None:
            yield model
            return
        with plan.frozen(model, lower) as layers:
            yield partial(plan.forward, model, layers)
        choices().keep()
