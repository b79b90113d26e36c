"""The instruction sets that `make bench` asks under, one after the other: the processor's best, and no more
than AVX2.

All libraries that compute are limited together (oneDNN, torch, our own kernels, MKL): a process in which only
some of them are would measure neither. MKL multiplies torch's matrices; on processors that are not Intel's it
takes no heed of its limit.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from cfol_fast.cpu_features import cpu_flags

BEST, AVX2 = "best", "avx2"
# Setting: what the environment must say before torch is loaded.
SETTINGS: dict[str, dict[str, str]] = {
    BEST: {},
    AVX2: {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "CFOL_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
}


def settings_here() -> list[str]:
    """Both where the processor has more than AVX2; elsewhere the second would be the first again."""
    return [BEST, AVX2] if "avx512f" in cpu_flags() else [BEST]


def environment(setting: str, now: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a process under this setting: limits of others are taken away."""
    return {**{name: value for name, value in now.items() if not _is_limit(name, value)}, **SETTINGS[setting]}


def limits(now: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The limits of this process: all four or none. A mixture is refused."""
    found = {name: value for name, value in now.items() if _is_limit(name, value)}
    if found and found != SETTINGS[AVX2]:
        given = ", ".join(f"{name}={value}" for name, value in found.items())
        wanted = " ".join(f"{name}={value}" for name, value in SETTINGS[AVX2].items())
        sys.exit(
            f"a benchmark is limited by all of {wanted}, or by none of them; the environment has {given}"
        )
    return found


def _is_limit(name: str, value: str) -> bool:
    """A name of AVX-512 is none: cfol_fast itself sets oneDNN's AVX512_CORE_BF16 where bfloat16 would
    crash.
    """
    return name in SETTINGS[AVX2] and not value.upper().startswith("AVX512")
