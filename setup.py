"""Builds the two native libraries: `_ops` (tensor ops on torch's stable ABI, abi3) and `_host` (pybind11
objects).

CUDA kernels are compiled wherever an nvcc is found (CUDA_HOME, PATH, or the nvidia-cuda-nvcc wheel); without
one the same package is built for the CPU. Environment: CFOL_CUDA=0 forces a CPU build, FORCE_CUDA=1 makes a
missing nvcc an error, TORCH_CUDA_ARCH_LIST chooses the architectures ("8.0;9.0+PTX"), CFOL_NO_NVCC_WHEEL=1
ignores the wheel's nvcc, CXX chooses the C++ compiler.

ninja drives the build: one build file lists every compile and link step, so that an unchanged source is not
compiled again.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
# torch 2.13 and later.
STABLE_ABI = "0x020d000000000000"
# Those that the nvcc at hand does not know are left out: below 12.8 it refuses 10.0 and 12.0, and later GPUs
# run the PTX of 9.0.
DEFAULT_ARCHITECTURES = "7.5;8.0;8.6;8.9;9.0+PTX;10.0;12.0+PTX"
# Contraction is off on both sides: what decides a draw must be the same arithmetic on the CPU and on a GPU.
CXX_FLAGS = [
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Werror",
    # Changes no value, and lets the compiler vectorise comparisons of floats.
    "-fno-trapping-math",
]
NVCC_FLAGS = [
    "-std=c++17",
    "-O3",
    "--fmad=false",
    "-Xcompiler=-fPIC,-fvisibility=hidden",
    "-Xptxas=--warn-on-spills,--warning-as-error",
    "-Werror=all-warnings",
    "--expt-relaxed-constexpr",
]


def find_nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    candidates = [str(Path(home, "bin", "nvcc"))] if home else []
    candidates.append(shutil.which("nvcc") or "")
    if not os.environ.get("CFOL_NO_NVCC_WHEEL"):
        candidates += [str(Path(folder, "nvidia/cu13/bin/nvcc")) for folder in sys.path]
    return next((path for path in candidates if path and Path(path).exists()), None)


def toolkit_root(nvcc: str) -> Path:
    """The nvcc on PATH may be a wrapper script: ask it where its toolkit lives."""
    command = [nvcc, "--dryrun", "-c", "-x", "cu", os.devnull, "-o", os.devnull]
    output = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"TOP=(.+)", output.stderr + output.stdout)
    return Path(found.group(1).strip()).resolve() if found else Path(nvcc).resolve().parent.parent


def architectures(nvcc: str) -> list[str]:
    """What TORCH_CUDA_ARCH_LIST asks for, or all of our own that this nvcc knows."""
    given = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if given:
        return given.replace(" ", ";").strip(";").split(";")
    command = [nvcc, "--list-gpu-code"]
    known = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return [name for name in DEFAULT_ARCHITECTURES.split(";") if f"sm_{number_of(name)}" in known]


def number_of(architecture: str) -> str:
    return architecture.removesuffix("+PTX").replace(".", "")


def gencode(architecture: str) -> str:
    number = number_of(architecture)
    code = f"[sm_{number},compute_{number}]" if architecture.endswith("+PTX") else f"sm_{number}"
    return f"-gencode=arch=compute_{number},code={code}"


class NinjaBuild(build_ext):
    """Writes a build.ninja for one extension and runs it."""

    def run(self) -> None:
        self.nvcc = None if os.environ.get("CFOL_CUDA") == "0" else find_nvcc()
        if self.nvcc is None and os.environ.get("FORCE_CUDA") == "1":
            raise SystemExit("FORCE_CUDA=1, but no nvcc was found: set CUDA_HOME or install nvidia-cuda-nvcc")
        kind = (
            f"with CUDA ({self.nvcc}, {';'.join(architectures(self.nvcc))})"
            if self.nvcc
            else "for the CPU only"
        )
        print(f"cfol_fast: building {kind}", flush=True)
        super().run()

    def get_ext_filename(self, fullname: str) -> str:
        path = fullname.replace(".", os.sep)
        # _ops uses the limited API: one file for every Python version.
        return path + (".abi3.so" if path.endswith("_ops") else sysconfig.get_config_var("EXT_SUFFIX"))

    def build_extension(self, ext: Extension) -> None:
        output = Path(self.get_ext_fullpath(ext.name)).resolve()
        folder = Path(self.build_temp, ext.name).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        output.parent.mkdir(parents=True, exist_ok=True)
        build = folder / "build.ninja"
        text = self.ops_rules(output) if ext.name.endswith("_ops") else self.host_rules(output)
        if not build.exists() or build.read_text() != text:
            build.write_text(text)
        subprocess.run([ninja(), "-C", str(folder), *(["-v"] if self.verbose > 1 else [])], check=True)

    def ops_rules(self, output: Path) -> str:
        import torch

        package = Path(torch.__file__).parent
        includes = [ROOT / "csrc", package / "include", sysconfig.get_path("include")]
        cxx = [*CXX_FLAGS, f"-DTORCH_TARGET_VERSION={STABLE_ABI}"]
        link = [
            f"-L{package / 'lib'}",
            "-ltorch_cpu",
            "-ltorch",
            "-lc10",
            "-Wl,--as-needed,--exclude-libs,ALL",
        ]
        rules = NinjaFile()
        sources = sorted([*ROOT.glob("csrc/*.cpp"), *ROOT.glob("csrc/cpu/*.cpp")])
        if self.nvcc:
            root = toolkit_root(self.nvcc)
            includes.append(root / "include")
            cxx.append("-DCFOL_WITH_CUDA")
            flags = [*NVCC_FLAGS, *map(gencode, architectures(self.nvcc))]
            rules.rule(
                "nvcc", f"{self.nvcc} {' '.join(flags)} -MMD -MF $out.d -c $in -o $out", depfile="$out.d"
            )
            for source in sorted(ROOT.glob("csrc/cuda/*.cu")):
                rules.compile("nvcc", source)
            link += [f"-L{root / d}" for d in ("lib64", "lib") if (root / d).is_dir()]
            link += ["-lcudart_static", "-ldl", "-lrt", "-lpthread"]
        rules.rule("cxx", compile_command(cxx, includes), depfile="$out.d")
        for source in sources:
            rules.compile("cxx", source)
        return rules.link(output, link)

    def host_rules(self, output: Path) -> str:
        import pybind11

        includes = [ROOT / "csrc", pybind11.get_include(), sysconfig.get_path("include")]
        cxx = list(CXX_FLAGS)
        if self.nvcc:
            version = subprocess.run(
                [self.nvcc, "--version"], capture_output=True, text=True, check=True
            ).stdout
            release = re.search(r"release [\d.]+", version)
            cxx += ["-DCFOL_WITH_CUDA", quoted("CFOL_CUDA_ARCHITECTURES", ";".join(architectures(self.nvcc)))]
            cxx += [quoted("CFOL_CUDA_COMPILER", "nvcc " + (release.group(0) if release else "unknown"))]
        rules = NinjaFile()
        rules.rule("cxx", compile_command(cxx, includes), depfile="$out.d")
        for source in sorted(ROOT.glob("csrc/host/*.cpp")):
            rules.compile("cxx", source)
        return rules.link(output, ["-lpthread"])


class NinjaFile:
    """The text of a build.ninja: rules, compile steps, one link step."""

    def __init__(self) -> None:
        self.lines = ["ninja_required_version = 1.3"]
        self.objects: list[str] = []

    def rule(self, name: str, command: str, depfile: str) -> None:
        self.lines += [f"rule {name}", f"  command = {command}", f"  depfile = {depfile}", "  deps = gcc"]
        self.lines += [f"  description = {name} $in"]

    def compile(self, rule: str, source: Path) -> None:
        name = source.relative_to(ROOT).as_posix().replace("/", "_") + ".o"
        self.objects.append(name)
        self.lines.append(f"build {name}: {rule} {escaped(source)}")

    def link(self, output: Path, flags: list[str]) -> str:
        # Under another name first: a process that uses the old library must not see it change.
        command = f"{compiler()} -shared $in -o $out.tmp {' '.join(flags)} && mv $out.tmp $out"
        self.lines += ["rule link", f"  command = {command}", "  description = link $out"]
        self.lines += [
            f"build {escaped(output)}: link {' '.join(self.objects)}",
            f"default {escaped(output)}",
            "",
        ]
        return "\n".join(self.lines)


def compiler() -> str:
    return os.environ.get("CXX", "g++")


def compile_command(flags: list[str], includes: list[object]) -> str:
    # -isystem: no warnings from other projects' headers.
    paths = [f"-I{includes[0]}", *(f"-isystem {path}" for path in includes[1:])]
    return f"{compiler()} {' '.join(flags)} {' '.join(paths)} -MMD -MF $out.d -c $in -o $out"


def quoted(name: str, value: str) -> str:
    return f"'-D{name}=\"{value}\"'"


def escaped(path: Path) -> str:
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def ninja() -> str:
    # The ninja of the environment that runs the build, if it has one.
    own = Path(sysconfig.get_path("scripts"), "ninja")
    found = str(own) if own.exists() else shutil.which("ninja")
    if not found:
        raise SystemExit("ninja is needed to build cfol_fast: pip install ninja")
    return found


setup(
    ext_modules=[
        Extension("cfol_fast._ops", sources=[], py_limited_api=True),
        Extension("cfol_fast._host", sources=[]),
    ],
    cmdclass={"build_ext": NinjaBuild},
)
