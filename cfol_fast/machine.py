"""The machine under a run: which device, how many threads, which instructions, which versions.

Sums in floating point depend on the thread count and the instruction set. Both are stored with a run, and a
run that is to end bit for bit the same is not continued under others.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch

from cfol_fast._version import __version__
from cfol_fast.errors import InputError

# What makes the CUDA kernels, from a checkout.
REBUILD = (
    "Build it again: pip install nvidia-cuda-nvcc && pip install --no-build-isolation --force-reinstall ."
)
# The driver's device of the first GPU, which is there for a torch without CUDA too.
NVIDIA = Path("/dev/nvidia0")
PRECISIONS = ("float32", "tf32", "bfloat16")
CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
COMPILE_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def choose_device(name: str) -> torch.device:
    """`auto` is the first GPU that can be used, else the CPU; a GPU that lies idle is told.

    One that is asked for is refused with the reason.
    """
    if name == "auto":
        if (reason := idle_gpu()) is not None:
            warnings.warn(f"a GPU lies idle and the CPU computes: {reason}", stacklevel=2)
        return torch.device("cuda", 0) if why_no_cuda() is None else torch.device("cpu")
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
    if device.type != "cpu":
        raise InputError(f"device {name} is not supported; use auto, cpu or cuda")
    return torch.device("cpu")


def choose_precision(name: str, device: torch.device, deterministic: bool = False) -> str:
    """`auto` is TF32 on a GPU that has it (Ampere and later), else float32.

    What else is given stays, but must not contradict.
    """
    if deterministic and name == "tf32":
        raise InputError(
            "--deterministic computes without TF32: leave out --precision, or use float32 or bfloat16"
        )
    if name != "auto":
        return name
    has_tf32 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return "tf32" if has_tf32 and not deterministic else "float32"


def why_no_cuda() -> str | None:
    """Why nothing can run on a GPU here, or None when it can."""
    if torch.version.cuda is None:
        return "torch was installed without CUDA. Install a torch with CUDA, then cfol_fast again"
    if not torch.cuda.is_available():
        return "torch finds no NVIDIA GPU (no GPU, or no working driver)"
    from cfol_fast import _host

    if not _host.with_cuda:
        return f"cfol_fast was built without CUDA. {REBUILD}"
    return None


def idle_gpu() -> str | None:
    """Why a GPU of this machine cannot be used; None where it can, or where there is none."""
    return why_no_cuda() if torch.cuda.is_available() or NVIDIA.exists() else None


def arithmetic(device: torch.device, compiled: bool = False, deterministic: bool = False) -> dict[str, Any]:
    """What the rounding of a run depends on."""
    settings: dict[str, Any] = {
        "compiled": compiled,
        "deterministic": deterministic,
        "device": device.type,
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }
    if device.type == "cuda":
        settings["gpu"] = torch.cuda.get_device_name(device)
    return settings


@contextlib.contextmanager
def computing(precision: str, deterministic: bool = False) -> Iterator[None]:
    """How torch computes on a GPU inside the block; afterwards all is as it was.

    precision: float32 is float32, where torch itself would take TF32 for convolutions. deterministic: only
    kernels that give the same bits every time. Otherwise cuDNN tries its algorithms and takes the fastest,
    which pays where shapes stay the same, as in training.
    """
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    algorithms = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    workspace = os.environ.get(CUBLAS_WORKSPACE)
    cudnn.benchmark = not deterministic
    cudnn.allow_tf32 = matmul.allow_tf32 = precision != "float32" and not deterministic
    if deterministic:
        torch.use_deterministic_algorithms(True)
        # cuBLAS looks when it is first used; other values than this and ":16:8" are refused.
        os.environ[CUBLAS_WORKSPACE] = ":4096:8"
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before
        # Only where it was switched: it imports torch's compiler, which takes seconds.
        if deterministic:
            torch.use_deterministic_algorithms(algorithms[0], warn_only=algorithms[1])
        if workspace is None:
            os.environ.pop(CUBLAS_WORKSPACE, None)
        else:
            os.environ[CUBLAS_WORKSPACE] = workspace


@contextlib.contextmanager
def changing_shapes() -> Iterator[None]:
    """Keeps cuDNN from trying all of its algorithms for each new shape, where nearly every call has one."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def check_same_arithmetic(stored: dict[str, Any], now: dict[str, Any], force: bool) -> list[str]:
    """What changed since the run was saved; refuses a change that nobody asked for, unless it is forced.

    Another kind of device is asked for, by --device: a recipe begun on the CPU may go on with a GPU. Other
    threads or instructions come unnoticed with another machine. What an older version did not store is not
    compared.
    """
    changed = [
        f"{key} (was {stored[key]}, now {now.get(key)})"
        for key in sorted(stored)
        if stored[key] != now.get(key)
    ]
    if changed and not force and stored.get("device") == now["device"]:
        raise InputError(
            f"the run would not continue exactly: {', '.join(changed)} changed; --threads sets the thread"
            " count, --force continues anyway"
        )
    return changed


def versions() -> dict[str, str]:
    """Of what a figure depends on, as far as it is installed."""
    found = {"cfol_fast": __version__, "python": platform.python_version(), "torch": torch.__version__}
    for name in ("torchvision", "pyautoattack"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def keep_compiled_code_apart() -> None:
    """Gives torch.compile a cache for each instruction set, unless the user has chosen one.

    Code that was cached under other limits of the CPU was seen to give NaN and to abort: torch shares one
    cache between them.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    # torch itself writes its default into the environment.
    if os.environ.get(COMPILE_CACHE, default_cache_dir()) != default_cache_dir():
        return
    limits = (torch.backends.cpu.get_cpu_capability(), os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL"))
    os.environ[COMPILE_CACHE] = "-".join((default_cache_dir(), *limits))


# The ops of a bfloat16 step: first those of a plain model, then those of the attack's fused convolution in
# both layouts.
_BFLOAT16_PROBE = """
import torch
from torch import nn
convolutions = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1)]
model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(512, 4))
x = torch.rand(4, 3, 16, 16)
for layout in (torch.contiguous_format, torch.channels_last):
    with torch.autocast("cpu", torch.bfloat16):
        y = model.to(memory_format=layout)(x.to(memory_format=layout).requires_grad_())
    y.float().sum().backward()
print("plain", flush=True)
x, plain = torch.rand(4, 8, 16, 16).bfloat16(), [[1, 1], [1, 1], [1, 1]]
for layout in (torch.contiguous_format, torch.channels_last):
    x, weight = x.to(memory_format=layout), torch.rand(8, 8, 3, 3).bfloat16().to(memory_format=layout)
    y = torch.ops.mkldnn._convolution_pointwise(x, weight, weight[:, 0, 0, 0], *plain, 1, "relu", [], "")
    torch.ops.aten.convolution_backward(y, x, weight, None, *plain, False, [0, 0], 1, [True, False, False])
print("fused", flush=True)
"""


class CpuBfloat16(NamedTuple):
    """What this CPU does in bfloat16. trouble: why nothing runs, or None; fused: whether the attack's fused
    convolutions do.
    """

    trouble: str | None
    fused: bool


@functools.cache
def cpu_bfloat16() -> CpuBfloat16:
    """Tried once in a process of its own, since on some CPUs such a convolution kills the process."""
    probe = subprocess.run(
        [sys.executable, "-c", _BFLOAT16_PROBE], capture_output=True, text=True, check=False
    )
    passed = probe.stdout.split()
    if "plain" in passed:
        return CpuBfloat16(None, "fused" in passed)
    if probe.returncode == -signal.SIGILL:
        return CpuBfloat16(
            "bfloat16 convolutions die with SIGILL on this CPU; "
            "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment",
            False,
        )
    return CpuBfloat16(f"a bfloat16 convolution failed on this CPU (status {probe.returncode})", False)


def bfloat16_trouble(device: torch.device) -> str | None:
    """Why bfloat16 does not work on `device`, or None."""
    if device.type == "cuda":
        # torch emulates it on older GPUs, slowly; and asks the current device, which need not be the run's.
        with torch.cuda.device(device):
            supported = torch.cuda.is_bf16_supported(including_emulation=False)
        return None if supported else f"{device} has no bfloat16 (it needs Ampere or later); use float32"
    return cpu_bfloat16().trouble if device.type == "cpu" else None


def bfloat16_kernels(device: torch.device) -> str:
    """Which convolutions a bfloat16 run gets on `device`, in words: they differ from one CPU to the next."""
    if device.type != "cpu":
        return "bfloat16"
    if cpu_bfloat16().fused:
        return "bfloat16 with oneDNN's fused convolutions"
    return (
        "bfloat16 with torch's plain convolutions: oneDNN has none for this CPU (no AVX-512), so float32 is"
        " faster"
    )


def precision_in_words(precision: str, device: torch.device) -> str:
    """What a run on `device` computes in, for its first line."""
    if precision == "bfloat16":
        return bfloat16_kernels(device)
    if precision == "tf32":
        on_gpu = (
            "TF32: float32 whose products are rounded to 10 bits of mantissa (--precision float32 does"
            " without)"
        )
        return on_gpu if device.type == "cuda" else "float32 (TF32 is for GPUs)"
    return "float32"
