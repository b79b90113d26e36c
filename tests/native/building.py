"""Compiles pieces of csrc/ for the tests: the emulated CUDA ops, CPU ops for the mutants, and the sanitizers'
programs.

Every object file is kept under build/tests by the hash of what it is made from (the source, the headers it
includes, the flags), so that a second run costs nothing, two pytest workers do not compile the same thing
twice, and a planted fault costs one file.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import re
import subprocess
import sysconfig
from pathlib import Path

import filelock
import torch

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
EMU = ROOT / "tests" / "emu"
CACHE = Path(os.environ.get("CFOL_TEST_CACHE", ROOT / "build" / "tests"))
FLAGS = ["-std=c++20", "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-unused-parameter"]
# The address and the undefined-behaviour sanitizer work together in one program; the thread sanitizer works
# alone.
SANITIZERS = ("thread", "address,undefined")
# So few that the tests' arrays take the kernels' loops more than once around; more than the tests of their
# grids ask for.
FEW_BLOCKS = "-DCFOL_MOST_BLOCKS=5"
STABLE_ABI = "-DTORCH_TARGET_VERSION=0x020d000000000000"


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}\n{result.stderr}"
    return result


def project_files(source: Path) -> list[Path]:
    """The source and every header of ours that it includes, directly or not."""
    found: list[Path] = []
    waiting = [source.resolve()]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.append(path)
        for name in re.findall(r'^\s*#\s*include\s+["<]([^">]+)[">]', path.read_text(), re.MULTILINE):
            candidates = [path.parent / name, CSRC / name, EMU / name]
            waiting += [c.resolve() for c in candidates if c.exists()][:1]
    return sorted(found)


def digest_of(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:20]


def compile_object(source: Path, flags: list[str]) -> Path:
    contents = [part for path in project_files(source) for part in (path.name.encode(), path.read_bytes())]
    # paths are not part of the key: a copy of the project (a mutant) shares the objects of its unchanged
    # files
    plain = [flag for flag in flags if not flag.startswith(f"-I{ROOT}")]
    target = CACHE / f"{source.name}-{digest_of(' '.join(plain).encode(), *contents)}.o"
    with filelock.FileLock(f"{target}.lock"):
        if not target.exists():
            run(["g++", *FLAGS, *flags, "-x", "c++", "-c", str(source), "-o", f"{target}.tmp"])
            os.replace(f"{target}.tmp", target)
    return target


def build(name: str, sources: list[Path], flags: list[str], link: list[str]) -> Path:
    """Compiles each source as C++ (a .cu too) and links them; returns the file in the cache."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda source: compile_object(source, flags), sources))
    key = digest_of(*(path.name.encode() for path in objects), " ".join(link).encode())
    target = CACHE / f"{key}-{name}"
    with filelock.FileLock(f"{target}.lock"):
        if not target.exists():
            run(["g++", *map(str, objects), "-o", f"{target}.tmp", *link, "-lpthread"])
            os.replace(f"{target}.tmp", target)
    return target


def _torch_flags() -> tuple[list[str], list[str]]:
    package = Path(torch.__file__).parent
    compiling = ["-O2", "-fPIC", "-fvisibility=hidden", STABLE_ABI, f"-I{EMU}", f"-I{CSRC}"]
    compiling += ["-isystem", f"{package / 'include'}", "-isystem", sysconfig.get_path("include")]
    return compiling, ["-shared", f"-L{package / 'lib'}", "-ltorch_cpu", "-lc10"]


def emulated_ops() -> Path:
    """The CUDA half of every op, on CPU tensors, as torch.ops.cfol_fast_emulated."""
    compiling, link = _torch_flags()
    sources = [*sorted(CSRC.glob("*.cpp")), *sorted(CSRC.glob("cuda/*.cu")), EMU / "control.cpp"]
    return build("_emulated_ops.abi3.so", sources, ["-DCFOL_EMULATED", FEW_BLOCKS, *compiling], link)


def cpu_ops() -> Path:
    """The CPU half of every op, as setup.py builds it without nvcc."""
    compiling, link = _torch_flags()
    return build(
        "_ops.abi3.so", [*sorted(CSRC.glob("*.cpp")), *sorted(CSRC.glob("cpu/*.cpp"))], compiling, link
    )


def device_choice() -> Path:
    """The program of tests/emu that tells on which device and stream an op runs."""
    compiling, _ = _torch_flags()
    return build("device-choice", [EMU / "device_choice.cpp"], compiling, [])


def sanitizer_program(sanitizer: str, side: str) -> Path:
    """The exercises of tests/emu with the kernels of one side ("cpu" or "cuda"), under one of SANITIZERS."""
    flags = ["-O1", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-DCFOL_STANDALONE"]
    flags += [f"-I{CSRC}", f"-I{EMU}"]
    kernels = sorted(CSRC.glob("cpu/*.cpp"))
    if side == "cuda":
        flags += ["-DCFOL_SIDE_CUDA", FEW_BLOCKS]
        kernels = sorted(CSRC.glob("cuda/*.cu"))
    sources = [*sorted(EMU.glob("exercise*.cpp")), *kernels]
    return build(f"exercise-{sanitizer}-{side}", sources, flags, [f"-fsanitize={sanitizer}"])


def everything() -> None:
    """Compiles all of it, so that workers that start together find it done."""
    emulated_ops()
    cpu_ops()
    device_choice()
    for sanitizer in SANITIZERS:
        for side in ("cpu", "cuda"):
            sanitizer_program(sanitizer, side)
