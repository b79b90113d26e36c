"""Images that an attack is given must be pixels in [0, 1], because its radius is meant for them, and it
clamps to them; labels must be classes of its model.

The first call of an attack reads the smallest and the largest value of both and refuses what is none. Later
calls raise on the CPU, where reading costs nothing, and elsewhere set a flag in the attack's fault word.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from cfol_fast.errors import InputError
from cfol_fast.ops.native import PIXEL_FAULT

# Pixels that were scaled in another precision may leave [0, 1] by rounding.
TOLERANCE = 1e-5


def check_pixels(x: Tensor, place: str = "") -> None:
    """Refuses images outside [0, 1] and NaN; reads two values back from the device. place: what the message
    begins with.
    """
    if x.numel() == 0:
        return
    low, high = torch.stack(torch.aminmax(x.detach())).tolist()
    if low >= -TOLERANCE and high <= 1 + TOLERANCE:
        return
    if low != low:
        raise InputError(f"{place}images must be in [0, 1], got NaN")
    way_out = (
        "divide bytes by 255"
        if low >= 0 and high > 10
        else (
            "do not normalise the inputs, put the normalisation into the model as its first layer"
            " (cfol_fast.models.Normalize)"
        )
    )
    raise InputError(f"{place}images must be in [0, 1], got values from {low:.3g} to {high:.3g}; {way_out}")


def check_labels(y: Tensor, classes: int) -> None:
    """Refuses labels that are no class of the model; reads two values back from the device."""
    if y.numel() == 0:
        return
    low, high = torch.stack(torch.aminmax(y.detach())).tolist()
    if low < 0 or high >= classes:
        raise InputError(
            f"labels must be from 0 to {classes - 1}, as the model has {classes} classes, got"
            f" {low if low < 0 else high}"
        )


def check_largest(radius: float | Tensor, name: str) -> None:
    """Refuses a tensor of linf radii beyond the whole range of a pixel; reads one value back from the
    device.
    """
    if isinstance(radius, Tensor) and radius.numel() and (largest := float(radius.max())) > 1:
        raise InputError(f"{name} must be at most 1 for norm 'linf', got {largest:g}: pixels are in [0, 1]")


def flag_pixels(x: Tensor, fault: Tensor) -> None:
    """The same as a flag on the device: sets `PIXEL_FAULT` in `fault` and reads nothing back."""
    if x.numel() == 0 or isinstance(x, FakeTensor):
        return
    low, high = torch.aminmax(x.detach())
    # NaN is on neither side.
    fine = (low >= -TOLERANCE) & (high <= 1 + TOLERANCE)
    fault.bitwise_or_((~fine).to(fault.dtype) * PIXEL_FAULT)


def can_be_read(x: Tensor) -> bool:
    """False where values do not exist or must not be asked for: meta and fake tensors, recording, capturing
    and compiling.
    """
    if x.device.type == "meta" or isinstance(x, FakeTensor) or torch.compiler.is_compiling():
        return False
    if x.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return False
    return _get_current_dispatch_mode() is None
