"""Keeps torch from CPU instructions that this machine announces but cannot run.

On some virtual machines the processor reports AMX, but the kernel or the hypervisor does not let programs use
its tiles: a bfloat16 convolution then dies with SIGILL. oneDNN does without AMX when an environment variable
says so before torch is loaded.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_SETTING = "ONEDNN_MAX_CPU_ISA"
_SAFE = "AVX512_CORE_BF16"
_ARCH_REQ_XCOMP_PERM, _SYS_ARCH_PRCTL, _TILE_DATA = 0x1023, 158, 18


def cpu_flags() -> set[str]:
    return set(_cpu_facts().get("flags", "").split())


def processor() -> str:
    """Which processor this is.

    Virtual machines give many of them the same name, so its numbers stand with it.
    """
    facts = _cpu_facts()
    named = [facts[key] for key in ("model name", "cpu family", "model", "stepping") if key in facts]
    if not named:
        import platform

        return platform.processor() or platform.machine()
    return ", ".join(named)


def _cpu_facts() -> dict[str, str]:
    """What Linux says of the first core."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def amx_is_usable() -> bool:
    """Whether the kernel grants this process the tile registers (it must be asked on Linux)."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return False
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _TILE_DATA) == 0


def bfloat16_needs_help() -> bool:
    """True where the CPU has AVX512-bf16 and either announces AMX it cannot use or hides parts that oneDNN
    relies on.
    """
    flags = cpu_flags()
    if "avx512_bf16" not in flags:
        return False
    announces_amx = "amx_tile" in flags
    # oneDNN picks its AVX512_CORE_FP16 path from the fp16 bit alone; machines that hide AMX were seen to
    # fault there.
    return (announces_amx and not amx_is_usable()) or ("avx512_fp16" in flags and not announces_amx)


def avoid_broken_bfloat16() -> str | None:
    """Sets oneDNN's limit where it is needed and not set by the user.

    Returns a warning when torch is loaded already.
    """
    if os.environ.get(_SETTING) or not bfloat16_needs_help():
        return None
    if "torch" in sys.modules:
        return (
            f"bfloat16 convolutions may crash here: import cfol_fast before torch, or set {_SETTING}={_SAFE}"
        )
    os.environ[_SETTING] = _SAFE
    return None
