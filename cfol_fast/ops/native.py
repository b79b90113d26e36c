"""The bridge to the compiled library: loads it, calls its ops, and turns what C++ throws into Python's
exceptions.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cfol_fast.errors import InputError

try:
    import cfol_fast._ops  # noqa: F401  (registers torch.ops.cfol_fast)
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "cfol_fast's native library is missing or does not fit this torch; build it with "
        "'pip install --no-build-isolation .' (torch >= 2.13)"
    ) from error

# The library itself reads it, once, when it is loaded: csrc/instruction_set.h.
_LIMIT = "CFOL_MAX_CPU_ISA"
if os.environ.get(_LIMIT, "AVX512") not in ("AVX512", "AVX2", "SSE2"):
    raise InputError(f"{_LIMIT} must be AVX512, AVX2 or SSE2, got {os.environ[_LIMIT]!r}")

library = torch.ops.cfol_fast
_is_compiling = torch.compiler.is_compiling
_EXCEPTIONS: dict[str, type[Exception]] = {"ValueError: ": ValueError, "TypeError: ": TypeError}

# Set by attacks, not by a kernel.
PIXEL_FAULT = 1 << 16
TICKET_FAULT = 1 << 17
# The bits of csrc/faults.h, and those above.
FAULTS = {
    1: "a label was outside [0, number of classes)",
    2: "a loss was NaN or outside [0, 1]",
    4: "an eps or step was negative or NaN",
    8: "an index was outside the data",
    16: "a probability was not positive",
    32: "an augmentation parameter was not finite or not allowed",
    PIXEL_FAULT: "an attack was given images outside [0, 1], or NaN",
    TICKET_FAULT: "a sampler's update was given the ticket of another batch",
}


def call(op: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a native op; its error messages name the Python exception they stand for."""
    if _is_compiling():
        return op(*arguments)
    try:
        return op(*arguments)
    except RuntimeError as error:
        text = str(error)
        for prefix, kind in _EXCEPTIONS.items():
            _, found, message = text.partition(prefix)
            if found:
                raise kind(message.splitlines()[0]) from None
        raise


def fake(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the shape function of an op: what the meta device and torch.compile run instead of the
    kernel.
    """
    return torch.library.register_fake(f"cfol_fast::{name}")


def new_rng(seed: int, device: torch.device | str | None = None) -> Tensor:
    """A random state: int64 (2,), the seed and the step, on the device."""
    try:
        seed = operator.index(seed)
    except TypeError:
        raise InputError(f"seed must be a whole number in [0, 2**63), got {seed!r}") from None
    if not 0 <= seed < 2**63:
        raise InputError(f"seed must be in [0, 2**63), got {seed}")
    return torch.tensor([seed, 0], dtype=torch.int64, device=device)


def new_fault(device: torch.device | str | None = None) -> Tensor:
    """An empty fault word, int32 (1,), in which kernels on a GPU set flags instead of raising.

    See `fault_messages`.
    """
    return torch.zeros(1, dtype=torch.int32, device=device)


def fault_messages(value: int) -> list[str]:
    """What the flags in a fault word mean; empty when all is well."""
    return [text for bit, text in FAULTS.items() if value & bit]


def number_or_each(value: float | Tensor, x: Tensor, name: str) -> tuple[float, Tensor | None]:
    """Splits "a number or a (B,) tensor" into the two arguments the ops take."""
    if isinstance(value, Tensor):
        if value.dim() == 0:
            value = value.expand(x.shape[0])
        return 0.0, value.to(device=x.device, dtype=torch.float32).contiguous()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number or a tensor of shape (batch,), got {type(value).__name__}")
    return float(value), None
