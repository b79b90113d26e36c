"""One tiny op on every GPU, in a process of its own: a library that was built for another GPU or another
driver is found before a run needs it, and whatever happens there does not happen to the doctor."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys

PROBE = """
import torch
from cfol_fast import ops
for i in range(torch.cuda.device_count()):
    x = torch.full((1, 1, 4, 4), 0.5, device=f"cuda:{i}")
    away = (ops.pgd_start(x, 0.1, ops.new_rng(0, x.device)) - x).abs().max().item()
    assert 0 < away <= 0.1 + 1e-6, f"cuda:{i} computes wrong values: {away} instead of at most 0.1"
"""
SECONDS = 300


def launch_trouble(compiler: str, architectures: str) -> str | None:
    """Why the library's kernels do not run here, or None. compiler, architectures: what it was built with, as
    `_host` says.
    """
    try:
        probe = subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"a tiny op on the GPU did not end within {SECONDS} s"
    if probe.returncode == 0:
        return None
    if probe.returncode < 0:
        return f"a tiny op on the GPU killed its process (signal {-probe.returncode})"
    said = (probe.stderr.strip().splitlines() or [f"status {probe.returncode}"])[-1]
    driver, built = driver_version(), _release(compiler)
    # The CUDA runtime is inside the library, so the driver must know the nvcc that built it, whatever torch
    # brings with it.
    if driver is not None and built is not None and driver < built:
        return (
            f"the driver is too old: it knows CUDA {_text(driver)}, and cfol_fast was built with nvcc"
            f" {_text(built)}; update the driver, or build again with an nvcc of at most {_text(driver)}"
            " (CUDA_HOME chooses it)"
        )
    if "no kernel image" in said:
        return (
            f"cfol_fast was built for {architectures}, and this GPU is none of them; build again with "
            f"TORCH_CUDA_ARCH_LIST set to its compute capability ({said})"
        )
    return f"a tiny op on the GPU failed: {said}"


def driver_version() -> tuple[int, int] | None:
    """The newest CUDA that the installed driver knows, or None without one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return None
    return number.value // 1000, number.value % 1000 // 10


def _release(compiler: str) -> tuple[int, int] | None:
    found = re.search(r"release (\d+)\.(\d+)", compiler)
    return (int(found[1]), int(found[2])) if found else None


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
