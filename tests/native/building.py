"""Compiles pieces of csrc/ for the tests: the emulated CUDA ops, nvcc's PTX of the kernels, CPU ops for the
mutants, and the sanitizers' programs.

Every object file is kept under build/tests by the hash of what it is made from (the source, the headers it
includes, the flags), so that a second run costs nothing, two pytest workers do not compile the same thing
twice, and a planted fault costs one file.
"""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import os
import re
import runpy
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import filelock
import torch

from tests.ptx.translate import translated

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
EMU = ROOT / "tests" / "emu"
PTX = ROOT / "tests" / "ptx"
CACHE = Path(os.environ.get("CFOL_TEST_CACHE", ROOT / "build" / "tests"))
FLAGS = ["-std=c++20", "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-unused-parameter"]
# The address and the undefined-behaviour sanitizer work together in one program; the thread sanitizer works
# alone.
SANITIZERS = ("thread", "address,undefined")
# So few that the tests' arrays take the kernels' loops more than once around; more than the tests of their
# grids ask for.
FEW_BLOCKS = "-DCFOL_MOST_BLOCKS=5"
# Two generators of code: from sm_100 on nvcc has another, and every line differs.
PTX_ARCHITECTURES = ("sm_80", "sm_100")
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
            candidates = [path.parent / name, CSRC / name, EMU / name, PTX / name]
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


@functools.cache
def setup_script() -> dict[str, Any]:
    """What setup.py defines: which nvcc is taken, and with which flags."""
    with mock.patch("setuptools.setup"):
        return runpy.run_path(str(ROOT / "setup.py"))


def has_nvcc() -> bool:
    return os.environ.get("CFOL_CUDA") != "0" and setup_script()["find_nvcc"]() is not None


def ptx_of(source: Path, architecture: str) -> str:
    """What nvcc makes of a .cu file for an architecture ("sm_80"), with the flags of the build."""
    build_script = setup_script()
    nvcc = build_script["find_nvcc"]()
    flags = [flag for flag in build_script["NVCC_FLAGS"] if not flag.startswith(("-Xptxas", "-Xcompiler"))]
    contents = [part for path in project_files(source) for part in (path.name.encode(), path.read_bytes())]
    version = run([nvcc, "--version"]).stdout
    key = digest_of(version.encode(), " ".join(flags).encode(), architecture.encode(), *contents)
    target = CACHE / f"{source.stem}-{architecture}-{key}.ptx"
    with filelock.FileLock(f"{target}.lock"):
        if not target.exists():
            run([nvcc, *flags, f"-arch={architecture}", "-ptx", "-o", f"{target}.tmp", str(source)])
            os.replace(f"{target}.tmp", target)
    return target.read_text()


def translated_ptx(source: Path, architecture: str) -> Path:
    """The C++ of a kernel's PTX, in a file that is named by its content."""
    text = translated(ptx_of(source, architecture))
    target = CACHE / f"{source.stem}-{architecture}-{digest_of(text.encode())}.cpp"
    if not target.exists():
        with tempfile.NamedTemporaryFile("w", dir=CACHE, delete=False) as file:
            file.write(text)
        os.replace(file.name, target)
    return target


def ptx_kernels(architecture: str) -> Path:
    """The PTX of every kernel for an architecture, as a library that runs on the stand-in."""
    CACHE.mkdir(parents=True, exist_ok=True)
    sources = sorted(CSRC.glob("cuda/*.cu"))
    setup_script()  # before the threads, each of which would read it
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        written = list(pool.map(lambda source: translated_ptx(source, architecture), sources))
    # Registers that are set and not read, and addresses that are read as other types, are what PTX is like.
    flags = [
        "-O1",
        "-fPIC",
        "-fvisibility=hidden",
        "-fno-strict-aliasing",
        "-Wno-all",
        f"-I{PTX}",
        f"-I{EMU}",
    ]
    return build(f"{architecture}.so", [*written, PTX / "library.cpp"], flags, ["-shared"])


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
    if has_nvcc():
        for architecture in PTX_ARCHITECTURES:
            ptx_kernels(architecture)
    for sanitizer in SANITIZERS:
        for side in ("cpu", "cuda"):
            sanitizer_program(sanitizer, side)
