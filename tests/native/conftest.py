"""Fixtures for the native ops: each op runs on the CPU, as emulated CUDA under several schedules, as nvcc's
PTX of two architectures, and on a GPU, through one helper.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import pytest
import torch

from tests.native import building
from tests.native.backends import SCHEDULES, Backend, Moved, load_emulated, load_ptx

# name -> (device, how the op is called there)
DEVICES = {
    "cuda": ("cuda:0", "plain"),
    "cuda-side-stream": ("cuda:0", "side-stream"),
    "cuda-captured": ("cuda:0", "captured"),
    "cuda-second": ("cuda:1", "plain"),
}
ON_DEVICES = [pytest.param(name, marks=pytest.mark.gpu) for name in DEVICES]
# "cpu", "emulated" or "ptx": that side alone, of which the second has the third. A mutant of a CUDA kernel
# needs no run on the CPU, and an older processor no CUDA.
ONLY = os.environ.get("CFOL_NATIVE_SIDE", "")
CPU = [] if ONLY in ("emulated", "ptx") else ["cpu"]
# Two orders of the threads find most of what four find: the others are for `make test`.
ORDERS: list[Any] = [
    pytest.param(name, marks=pytest.mark.slow if name in ("down", "random-2") else ()) for name in SCHEDULES
]
MOVED: list[Any] = [pytest.param("moved", marks=pytest.mark.slow)]
# name -> (architecture, the order of its threads)
PTX = {"ptx-sm_80": ("sm_80", "random-1"), "ptx-sm_100": ("sm_100", "down")}
ON_PTX = [pytest.param(name, marks=pytest.mark.nvcc) for name in PTX]
CUDA = {
    "cpu": [],
    "emulated": [*ORDERS, *ON_PTX],
    "ptx": ON_PTX,
    "": [*ORDERS, *ON_PTX, *MOVED, *ON_DEVICES],
}[ONLY]


@pytest.fixture(scope="session")
def emulated_library() -> ctypes.CDLL:
    return load_emulated()


@pytest.fixture(scope="session")
def ptx_libraries(emulated_library: ctypes.CDLL) -> dict[str, ctypes.CDLL]:
    """The code that nvcc made of the kernels, by architecture, on the stand-in."""
    if not building.has_nvcc():
        pytest.skip("needs nvcc: `make test` installs it")
    return {name: load_ptx(emulated_library, name) for name in building.PTX_ARCHITECTURES}


@pytest.fixture(scope="session")
def emulated(emulated_library: ctypes.CDLL) -> Backend:
    """Emulated CUDA under the first schedule."""
    return Backend("emulated", torch.ops.cfol_fast_emulated, emulated_library)


@pytest.fixture(scope="session")
def cpu() -> Backend:
    return Backend("cpu", torch.ops.cfol_fast)


def backend_of(name: str, request: pytest.FixtureRequest) -> Backend:
    if name == "cpu":
        return Backend("cpu", torch.ops.cfol_fast)
    if name in DEVICES:  # pragma: no cover
        device, how = DEVICES[name]
        if torch.device(device).index >= torch.cuda.device_count():
            pytest.skip("needs a second NVIDIA GPU")
        return Moved(name, torch.ops.cfol_fast, device, how)
    # Not before: a machine that tests its GPU need not compile the stand-in.
    library = request.getfixturevalue("emulated_library")
    if name == "moved":
        return Moved(name, torch.ops.cfol_fast_emulated, "cpu", library=library)
    if name in PTX:
        request.getfixturevalue("ptx_libraries")
        architecture, order = PTX[name]
        code = 1 + building.PTX_ARCHITECTURES.index(architecture)
        return Backend(name, torch.ops.cfol_fast_emulated, library, SCHEDULES[order], code)
    return Backend(name, torch.ops.cfol_fast_emulated, library, SCHEDULES[name])


@pytest.fixture(params=[*CPU, *CUDA])
def backend(request: pytest.FixtureRequest) -> Backend:
    """The CPU kernels, the emulated CUDA kernels under each schedule, and the GPU's where there is one."""
    return backend_of(request.param, request)


@pytest.fixture(params=CUDA)
def schedule(request: pytest.FixtureRequest) -> Backend:
    """CUDA alone: emulated under each schedule, and on a GPU where there is one."""
    return backend_of(request.param, request)
