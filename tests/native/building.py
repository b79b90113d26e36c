"""Compiles pieces of csrc/ for the tests: the emulated CUDA ops and the sanitizers' programs.

A result is kept under build/tests by the hash of everything it is made from, so that a second run costs nothing and two pytest
workers do not build the same thing twice. MUTANT_CSRC points the mutation tests at a changed copy of csrc/.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sysconfig
from pathlib import Path

import filelock
import torch

ROOT = Path(__file__).resolve().parents[2]
CSRC = Path(os.environ.get("MUTANT_CSRC", ROOT / "csrc"))
EMU = ROOT / "tests" / "emu"
CACHE = ROOT / "build" / "tests"
FLAGS = ["-std=c++20", "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-unused-parameter"]


def build(name: str, sources: list[Path], flags: list[str], libraries: list[str] | None = None) -> Path:
    """Compiles each source as C++ (a .cu too) and links them; returns the file in the cache."""
    inputs = [*sources, *CSRC.rglob("*.h"), *EMU.glob("*.h")]
    digest = hashlib.sha256(" ".join([*flags, *(libraries or [])]).encode())
    for path in sorted(inputs):
        digest.update(path.name.encode() + path.read_bytes())
    target = CACHE / f"{name}-{digest.hexdigest()[:16]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{target}.lock"):
        if not target.exists():
            objects = []
            for source in sources:
                objects.append(f"{target}.{source.parent.name}.{source.name}.o")
                run(["g++", *FLAGS, *flags, "-x", "c++", "-c", str(source), "-o", objects[-1]])
            shared = ["-shared"] if "-fPIC" in flags else []
            sanitizers = [f for f in flags if f.startswith("-fsanitize")]
            temporary = f"{target}.tmp"
            run(["g++", *shared, *sanitizers, *objects, "-o", temporary, *(libraries or []), "-lpthread"])
            os.replace(temporary, target)
            for path in objects:
                os.unlink(path)
    return target


def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}\n{result.stderr}"
    return result


def emulated_ops() -> Path:
    """The CUDA half of every op, on CPU tensors, as torch.ops.cfol_fast_emulated."""
    package = Path(torch.__file__).parent
    flags = ["-O2", "-fPIC", "-DCFOL_EMULATED", "-DTORCH_TARGET_VERSION=0x020d000000000000", f"-I{EMU}", f"-I{CSRC}"]
    flags += ["-isystem", f"{package / 'include'}", "-isystem", sysconfig.get_path("include")]
    sources = [*sorted(CSRC.glob("*.cpp")), *sorted(CSRC.glob("cuda/*.cu")), EMU / "control.cpp"]
    return build("_emulated_ops.abi3.so", sources, flags, [f"-L{package / 'lib'}", "-ltorch_cpu", "-lc10"])


def sanitizer_program(sanitizer: str, side: str) -> Path:
    """The exercises of tests/emu with the kernels of one side ("cpu" or "cuda"), under "thread", "address" or "undefined"."""
    flags = ["-O1", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-DCFOL_STANDALONE"]
    flags += [f"-I{CSRC}", f"-I{EMU}"]
    kernels = sorted(CSRC.glob("cpu/*.cpp"))
    if side == "cuda":
        flags.append("-DCFOL_SIDE_CUDA")
        kernels = sorted(CSRC.glob("cuda/*.cu"))
    return build(f"exercise-{sanitizer}-{side}", [*sorted(EMU.glob("exercise*.cpp")), *kernels], flags)
