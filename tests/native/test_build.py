"""The CUDA build: made here wherever an nvcc is found (`make test` fetches one where there is none), checked
without a GPU.
"""

import os
import runpy
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import cfol_fast._host as host
import pytest
import torch

from tests.native import building
from tests.native.examples import schema_names

LIBRARY = Path(host.__file__).parent / "_ops.abi3.so"


def gpu_images(library: Path) -> set[str]:
    """The machine code ("sm_80") and PTX ("compute_90") inside a library, read from its fat binaries'
    headers.
    """
    data, found, at = library.read_bytes(), set(), 0
    magic = struct.pack("<I", 0xBA55ED50)
    while (at := data.find(magic, at)) >= 0:
        header, size = struct.unpack_from("<HQ", data, at + 6)
        entry, end = at + header, at + header + size
        while entry < end:
            kind, _, entry_header, payload = struct.unpack_from("<HHIQ", data, entry)
            architecture = struct.unpack_from("<I", data, entry + 28)[0]
            found.add(("compute_" if kind == 1 else "sm_") + str(architecture))
            entry += entry_header + payload
        at = end
    return found


@pytest.mark.nvcc
def test_the_cuda_build_has_a_kernel_for_every_op():
    assert host.with_cuda, "no nvcc was found when this was built; `make test` installs one"
    for name in schema_names():
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"cfol_fast::{name}", "CUDA"), name


@pytest.mark.nvcc
def test_the_architectures_asked_for_are_inside():
    asked = host.cuda_architectures.split(";")
    expected = {"sm_" + a.removesuffix("+PTX").replace(".", "") for a in asked}
    expected |= {"compute_" + a.removesuffix("+PTX").replace(".", "") for a in asked if a.endswith("+PTX")}
    assert gpu_images(LIBRARY) == expected


def images_for(capability: str, images: set[str]) -> set[str]:
    """The images that a GPU of this capability ("sm_90") runs: code of its major at or below its minor, or
    PTX at or below it.
    """
    number = int(capability.removeprefix("sm_"))
    code = {
        i for i in images if i.startswith("sm_") and int(i[3:]) // 10 == number // 10 and int(i[3:]) <= number
    }
    return code | {i for i in images if i.startswith("compute_") and int(i[8:]) <= number}


@pytest.mark.nvcc
def test_every_architecture_of_torch_finds_a_kernel():
    flags = torch._C._cuda_getArchFlags()
    assert flags, "this torch was built without CUDA"
    for capability in flags.split():
        assert images_for(capability, gpu_images(LIBRARY)), capability


def test_which_image_a_gpu_runs():
    assert images_for("sm_86", {"sm_80", "sm_89", "sm_90"}) == {"sm_80"}
    assert images_for("sm_100", {"sm_90", "sm_120", "compute_120"}) == set()
    assert images_for("sm_103", {"sm_100", "compute_90"}) == {"sm_100", "compute_90"}


@pytest.fixture
def setup_script(monkeypatch):
    """What setup.py defines."""
    monkeypatch.setattr("setuptools.setup", lambda **options: None)
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    return runpy.run_path(str(building.ROOT / "setup.py"))


def compiler_that_knows(tmp_path: Path, *codes: str) -> str:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(f"#!/bin/sh\n[ \"$1\" = --list-gpu-code ] && printf '%s\\n' {' '.join(codes)}\nexit 0\n")
    nvcc.chmod(0o755)
    return str(nvcc)


def test_an_older_compiler_builds_what_it_knows_and_newer_gpus_run_its_ptx(tmp_path, setup_script):
    nvcc = compiler_that_knows(tmp_path, "sm_75", "sm_80", "sm_86", "sm_89", "sm_90")
    chosen = setup_script["architectures"](nvcc)
    assert chosen == ["7.5", "8.0", "8.6", "8.9", "9.0+PTX"]
    flags = [setup_script["gencode"](name) for name in chosen]
    assert flags[-1] == "-gencode=arch=compute_90,code=[sm_90,compute_90]"


def test_a_compiler_that_knows_all_builds_for_ampere_to_blackwell(tmp_path, setup_script):
    nvcc = compiler_that_knows(tmp_path, *(f"sm_{n}" for n in (75, 80, 86, 87, 89, 90, 100, 103, 120, 121)))
    assert ";".join(setup_script["architectures"](nvcc)) == setup_script["DEFAULT_ARCHITECTURES"]


def test_no_compiler_contracts_a_product_and_a_sum(tmp_path, setup_script):
    """A draw must be the same on the CPU and on a GPU: neither may round once where the other rounds
    twice.
    """
    from setuptools.dist import Distribution

    command = setup_script["NinjaBuild"](Distribution())
    command.nvcc = compiler_that_knows(tmp_path, "sm_80")
    rules = command.ops_rules(tmp_path / "_ops.so")
    nvcc = next(line for line in rules.splitlines() if line.startswith(f"  command = {command.nvcc}"))
    cxx = next(line for line in rules.splitlines() if "-c $in" in line and line != nvcc)
    assert "--fmad=false" in nvcc.split()
    assert "-ffp-contract=off" in cxx.split()
    assert not [flag for flag in nvcc.split() if "fast" in flag or "ftz" in flag or "prec-" in flag]


def test_no_symbol_of_cuda_builds_of_torch_is_needed():
    # one library for CPU and CUDA builds of torch: neither libtorch_cuda nor the CUDA runtime may be linked
    output = building.run(["readelf", "-d", str(LIBRARY)]).stdout
    needed = [line for line in output.splitlines() if "NEEDED" in line]
    assert needed
    assert not any("cuda" in line for line in needed)


def build_in_place(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", str(tmp_path / "lib")]
    command += ["--build-temp", str(tmp_path / "temp")]
    return subprocess.run(
        command, cwd=building.ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )


@pytest.mark.slow
def test_force_cuda_without_nvcc_is_an_error(tmp_path):
    tools = tmp_path / "bin"  # a PATH with a compiler but without an nvcc
    tools.mkdir()
    environment = {
        "FORCE_CUDA": "1",
        "PATH": str(tools),
        "CUDA_HOME": "",
        "CUDA_PATH": "",
        "CFOL_NO_NVCC_WHEEL": "1",
    }
    result = build_in_place(tmp_path, **environment)
    assert result.returncode != 0
    assert "FORCE_CUDA=1, but no nvcc was found" in result.stdout + result.stderr


@pytest.mark.slow
def test_a_cpu_build_with_clang_compiles_without_a_warning_and_runs(tmp_path):
    # g++ built what the other tests run
    if shutil.which("clang++") is None:
        pytest.skip("needs clang: apt-get install clang")
    result = build_in_place(tmp_path, CFOL_CUDA="0", CXX="clang++")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert "building for the CPU only" in result.stdout
    assert gpu_images(tmp_path / "lib" / "cfol_fast" / "_ops.abi3.so") == set()
    code = (
        "import torch, sys; torch.ops.load_library(sys.argv[1]);"
        " print(torch.ops.cfol_fast.permutation(torch.tensor([1, 2]), 4, torch.tensor([0]),"
        " 4).sort().values.tolist())"
    )
    library = str(tmp_path / "lib" / "cfol_fast" / "_ops.abi3.so")
    assert building.run([sys.executable, "-c", code, library]).stdout.strip() == "[0, 1, 2, 3]"
