"""Fixtures for the native ops: each op runs on the CPU and as emulated CUDA under several schedules, through one helper."""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

import cfol_fast.ops.native as native
from tests.native import building

# lowest thread first, highest first, two random orders
SCHEDULES = {"up": (0, 0), "down": (1, 0), "random-1": (2, 1), "random-2": (2, 2)}


class Backend:
    """Where an op runs: the raw torch op of this side, called with C++ messages turned into exceptions."""

    def __init__(
        self,
        name: str,
        namespace: Any,
        library: ctypes.CDLL | None = None,
        schedule: tuple[int, int] = (0, 0),
    ):
        self.name, self.namespace, self.library, self.schedule = name, namespace, library, schedule

    @property
    def emulated(self) -> bool:
        return self.library is not None

    def op(self, name: str) -> Callable[..., Any]:
        """The op, with C++ messages turned into Python's exceptions as the wrappers do."""
        if self.library is not None:
            self.library.emulator_schedule(*self.schedule)
        target = getattr(self.namespace, name).default
        return lambda *arguments: native.call(target, *arguments)

    def launches(self) -> list[tuple[int, int]]:
        """(blocks, threads) of every kernel launched since the last look."""
        assert self.library is not None
        buffer = (ctypes.c_int64 * 20000)()
        n = self.library.emulator_launches(buffer, 10000)
        return [(buffer[2 * i], buffer[2 * i + 1]) for i in range(min(n, 10000))]

    def __repr__(self) -> str:
        return self.name


def _load_emulated() -> ctypes.CDLL:
    path = str(building.emulated_ops())
    loader = importlib.machinery.ExtensionFileLoader("_emulated_ops", path)
    spec = importlib.util.spec_from_loader("_emulated_ops", loader)
    assert spec is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    library = ctypes.CDLL(path)
    library.emulator_schedule.argtypes = [ctypes.c_int, ctypes.c_uint64]
    library.emulator_launches.argtypes = [ctypes.POINTER(ctypes.c_int64), ctypes.c_int]
    return library


@pytest.fixture(scope="session")
def emulated_library() -> ctypes.CDLL:
    return _load_emulated()


@pytest.fixture(scope="session")
def emulated(emulated_library: ctypes.CDLL) -> Backend:
    """Emulated CUDA under the first schedule."""
    return Backend("emulated", torch.ops.cfol_fast_emulated, emulated_library)


@pytest.fixture(scope="session")
def cpu() -> Backend:
    return Backend("cpu", torch.ops.cfol_fast)


# The mutants of CUDA kernels need no run on the CPU.
@pytest.fixture(params=[*([] if os.environ.get("CFOL_ONLY_EMULATED") else ["cpu"]), *SCHEDULES])
def backend(request: pytest.FixtureRequest, emulated_library: ctypes.CDLL) -> Backend:
    """The CPU kernels, then the emulated CUDA kernels under each schedule."""
    if request.param == "cpu":
        return Backend("cpu", torch.ops.cfol_fast)
    schedule = SCHEDULES[request.param]
    return Backend(request.param, torch.ops.cfol_fast_emulated, emulated_library, schedule)


@pytest.fixture(params=list(SCHEDULES))
def schedule(request: pytest.FixtureRequest, emulated_library: ctypes.CDLL) -> Backend:
    """Emulated CUDA alone, under each schedule."""
    return Backend(request.param, torch.ops.cfol_fast_emulated, emulated_library, SCHEDULES[request.param])
