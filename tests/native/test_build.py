"""The CUDA build: made here wherever an nvcc is found (`make test` fetches one where there is none), checked without a GPU."""

import os
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
    """The machine code ("sm_80") and PTX ("compute_90") inside a library, read from its fat binaries' headers."""
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
    if not os.environ.get("TORCH_CUDA_ARCH_LIST"):
        assert expected == {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_120", "compute_120"}


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
        "import torch, sys; torch.ops.load_library(sys.argv[1]); "
        "print(torch.ops.cfol_fast.permutation(torch.tensor([1, 2]), 4, 0, 4).sort().values.tolist())"
    )
    library = str(tmp_path / "lib" / "cfol_fast" / "_ops.abi3.so")
    assert building.run([sys.executable, "-c", code, library]).stdout.strip() == "[0, 1, 2, 3]"
