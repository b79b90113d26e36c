"""The machine under a run: which device, how many threads, which instructions, which versions.

Sums in floating point depend on the thread count and the instruction set. Both are stored with a run, and a run that is
to end bit for bit the same is not continued under others.
"""

from __future__ import annotations

import contextlib
import platform
import signal
import subprocess
import sys
from importlib import metadata
from typing import Any

import torch

from cfol_fast._version import __version__
from cfol_fast.errors import InputError


def choose_device(name: str) -> torch.device:
    """`auto` is the first GPU if there is one, else the CPU. A GPU that is not there is refused with the reason."""
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"unknown device {name!r}; use auto, cpu, cuda or cuda:0") from None
    if device.type == "cuda":
        reason = why_no_cuda()
        if reason is not None:
            raise InputError(f"device {name} is not available: {reason} (cfol-fast doctor tells more)")
        count = torch.cuda.device_count()
        if device.index is not None and device.index >= count:
            raise InputError(f"device {name} is not available: this machine has {count} GPU(s)")
        return torch.device("cuda", device.index or 0)
    if device.type not in ("cpu", "meta"):
        raise InputError(f"device {name} is not supported; use auto, cpu or cuda")
    return device


def why_no_cuda() -> str | None:
    """Why nothing can run on a GPU here, or None when it can."""
    if torch.version.cuda is None:
        return "torch was installed without CUDA"
    if not torch.cuda.is_available():
        return "torch finds no NVIDIA GPU (no GPU, or no working driver)"
    from cfol_fast import _host

    if not _host.with_cuda:
        return "cfol_fast was built without CUDA; install an nvcc and build it again"
    return None


def arithmetic(device: torch.device, compiled: bool = False) -> dict[str, Any]:
    """What the rounding of a run depends on."""
    settings: dict[str, Any] = {
        "compiled": compiled,
        "device": device.type,
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }
    if device.type == "cuda":
        settings["gpu"] = torch.cuda.get_device_name(device)
    return settings


def check_same_arithmetic(stored: dict[str, Any], now: dict[str, Any], force: bool) -> list[str]:
    """What changed since the run was saved; refuses a change that nobody asked for, unless it is forced.

    Another kind of device is asked for, by --device: a recipe begun on the CPU may go on with a GPU. Other threads or
    instructions come unnoticed with another machine. What an older version did not store is not compared.
    """
    changed = [
        f"{key} (was {stored[key]}, now {now.get(key)})"
        for key in sorted(stored)
        if stored[key] != now.get(key)
    ]
    if changed and not force and stored.get("device") == now["device"]:
        raise InputError(
            f"the run would not continue exactly: {', '.join(changed)} changed; --threads sets the thread count, --force continues anyway"
        )
    return changed


def versions() -> dict[str, str]:
    """Of what a figure depends on, as far as it is installed."""
    found = {"cfol_fast": __version__, "python": platform.python_version(), "torch": torch.__version__}
    for name in ("torchvision", "pyautoattack"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


_BFLOAT16_PROBE = """
import torch
conv = torch.nn.Conv2d(8, 8, 3, padding=1).to(memory_format=torch.channels_last)
x = torch.rand(4, 8, 16, 16).to(memory_format=torch.channels_last).requires_grad_()
with torch.autocast("cpu", torch.bfloat16):
    conv(x).float().sum().backward()
"""


def bfloat16_trouble(device: torch.device) -> str | None:
    """Why bfloat16 does not work on `device`, or None. Tried in a process of its own, since on some CPUs it kills it."""
    if device.type == "cuda":
        return (
            None if torch.cuda.is_bf16_supported() else "this GPU has no bfloat16 (it needs Ampere or later)"
        )
    if device.type != "cpu":
        return None
    probe = subprocess.run([sys.executable, "-c", _BFLOAT16_PROBE], capture_output=True, check=False)
    if probe.returncode == 0:
        return None
    if probe.returncode == -signal.SIGILL:
        return (
            "bfloat16 convolutions die with SIGILL on this CPU; "
            "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment"
        )
    return f"a bfloat16 convolution failed on this CPU (status {probe.returncode})"
