"""Where a native test runs its ops: on the CPU, as emulated CUDA under a schedule, as what nvcc made of the
kernels, or on a device to which the arguments are moved.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.machinery
import importlib.util
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

import cfol_fast.ops.native as native
from tests.native import building

# lowest thread first, highest first, two random orders
SCHEDULES = {"up": (0, 0), "down": (1, 0), "random-1": (2, 1), "random-2": (2, 2)}


class Backend:
    """The raw torch ops of one side, with C++ messages turned into Python's exceptions as the wrappers do."""

    def __init__(
        self,
        name: str,
        namespace: Any,
        library: ctypes.CDLL | None = None,
        schedule: tuple[int, int] = (0, 0),
        code: int = 0,
    ):
        self.name, self.namespace, self.library, self.schedule = name, namespace, library, schedule
        self.code = code  # of building.PTX_ARCHITECTURES, from 1; 0: what g++ made of the source

    @property
    def emulated(self) -> bool:
        return self.library is not None

    def op(self, name: str) -> Callable[..., Any]:
        if self.library is not None:
            self.library.emulator_schedule(*self.schedule)
            self.library.emulator_choose_code(self.code)
        target = getattr(self.namespace, name).default
        return lambda *arguments: native.call(target, *arguments)

    def launches(self) -> list[tuple[int, int]]:
        """(blocks, threads) of every kernel launched since the last look; (0, 0) for one that was refused."""
        assert self.library is not None
        buffer = (ctypes.c_int64 * 20000)()
        n = self.library.emulator_launches(buffer, 10000)
        return [(buffer[2 * i], buffer[2 * i + 1]) for i in range(min(n, 10000))]

    @contextlib.contextmanager
    def refusing(self, launch: int) -> Iterator[None]:
        """The launch of this number, and all after it, fail as on a device that cannot run them."""
        assert self.library is not None
        self.launches()
        self.library.emulator_refuse(launch)
        try:
            yield
        finally:
            self.library.emulator_refuse(-1)

    def __repr__(self) -> str:
        return self.name


class Moved(Backend):
    """Moves whole storages to a device, offsets and strides kept, runs the op there and copies back what it
    wrote.

    how: "plain"; "side-stream", where the arguments arrive late on a stream that is not the default one, so
    that a kernel on another stream reads too early; "captured", where the op is recorded in a CUDA graph and
    only its replay computes. On the device "cpu" the storages are cloned, which shows here that the way there
    and back changes nothing.
    """

    def __init__(
        self, name: str, namespace: Any, device: str, how: str = "plain", library: ctypes.CDLL | None = None
    ):
        super().__init__(name, namespace, library)
        self.device, self.how = torch.device(device), how

    def op(self, name: str) -> Callable[..., Any]:
        call = super().op(name)

        def run(*arguments: Any) -> Any:
            there: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

            def move(value: Any) -> Any:
                if not isinstance(value, torch.Tensor):
                    return value
                here = value.untyped_storage()
                if here._cdata not in there:
                    moved = here.clone() if self.device.type == "cpu" else here.to(device=self.device)
                    there[here._cdata] = here, moved
                target = torch.empty(0, dtype=value.dtype, device=self.device)
                return target.set_(there[here._cdata][1], value.storage_offset(), value.shape, value.stride())

            moved = [move(argument) for argument in arguments]
            result = {"plain": _plainly, "side-stream": _on_a_side_stream, "captured": _captured}[self.how](
                call, moved, self.device
            )
            for here, away in there.values():
                here.copy_(away)
            return on_the_cpu(result)

        return run


def on_the_cpu(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.cpu()
    return tuple(on_the_cpu(part) for part in result) if isinstance(result, (tuple, list)) else result


def _plainly(call: Callable[..., Any], arguments: list[Any], device: torch.device) -> Any:
    return call(*arguments)


def _on_a_side_stream(call: Callable[..., Any], arguments: list[Any], device: torch.device) -> Any:
    values = {id(a): a.untyped_storage().clone() for a in arguments if isinstance(a, torch.Tensor)}
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            argument.untyped_storage().fill_(0)
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        torch.cuda._sleep(2_000_000)
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                argument.untyped_storage().copy_(values[id(argument)], non_blocking=True)
        result = call(*arguments)
    side.synchronize()
    return result


def _captured(call: Callable[..., Any], arguments: list[Any], device: torch.device) -> Any:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        torch.cuda.synchronize(device)
        with torch.cuda.graph(graph):
            result = call(*arguments)
        graph.replay()
        torch.cuda.synchronize(device)
    return result


def load_emulated() -> ctypes.CDLL:
    """The stand-in, with memory that is not written to filled with a pattern: a GPU's holds whatever was
    there before.
    """
    path = str(building.emulated_ops())
    loader = importlib.machinery.ExtensionFileLoader("_emulated_ops", path)
    spec = importlib.util.spec_from_loader("_emulated_ops", loader)
    assert spec is not None
    loader.exec_module(importlib.util.module_from_spec(spec))
    library = ctypes.CDLL(path)
    library.emulator_schedule.argtypes = [ctypes.c_int, ctypes.c_uint64]
    library.emulator_launches.argtypes = [ctypes.POINTER(ctypes.c_int64), ctypes.c_int]
    library.emulator_refuse.argtypes = [ctypes.c_int64]
    perturb = -6  # M_PERTURB of malloc.h
    ctypes.CDLL(None).mallopt(perturb, 0x5A)
    return library


def load_ptx(emulator: ctypes.CDLL, architecture: str) -> ctypes.CDLL:
    """The PTX of every kernel for an architecture, which `emulator` runs while it is the chosen code."""
    library = ctypes.CDLL(str(building.ptx_kernels(architecture)))
    library.ptx_kernel.restype = library.ptx_visits.restype = ctypes.c_void_p
    library.ptx_name.restype = ctypes.c_char_p
    emulator.emulator_machine.restype = ctypes.c_void_p
    library.ptx_run_on(ctypes.c_void_p(emulator.emulator_machine()))
    code = 1 + building.PTX_ARCHITECTURES.index(architecture)
    sources = addresses_of_kernels(emulator)
    names = {library.ptx_name(i).decode(): i for i in range(library.ptx_kernels())}
    assert set(names) == set(sources), sorted(set(names) ^ set(sources))
    for name, i in names.items():
        kernel = ctypes.c_void_p(library.ptx_kernel(i))
        for address in sources[name]:
            emulator.emulator_add_kernel(code, ctypes.c_void_p(address), kernel)
    return library


def addresses_of_kernels(emulator: ctypes.CDLL) -> dict[str, list[int]]:
    """Where each kernel of the stand-in lies in memory; a header's kernel lies there once for every file."""
    symbols = [
        line.split(" ", 2)
        for line in building.run(["nm", "-C", emulator._name]).stdout.splitlines()
        if line[0] != " "
    ]
    known = next(int(at, 16) for at, _, name in symbols if name == "emulator_machine")
    loaded = ctypes.cast(emulator.emulator_machine, ctypes.c_void_p).value
    assert loaded is not None
    found: dict[str, list[int]] = {}
    for at, kind, name in symbols:
        if kind == "t" and re.fullmatch(r"(void )?cfol::cuda::.*_kernel(<.*>)?\(.*\)", name):
            found.setdefault(name, []).append(loaded - known + int(at, 16))
    return found


class RawLaunches:
    """Launches kernels of PTX past the ops that check what they are given."""

    def __init__(self, emulator: ctypes.CDLL):
        self.emulator, self.addresses = emulator, addresses_of_kernels(emulator)
        emulator.emulator_launch.restype = ctypes.c_char_p

    def __call__(self, code: int, kernel: str, parameters: tuple[Any, ...], first: int | None = None) -> None:
        """Five blocks of 256 threads; with `first` two of the largest grid that there is, from that one on. A
        parameter is an address, a tensor, None, or a structure's bytes, alone or with what must live as long.
        """
        (address,) = [places[0] for name, places in self.addresses.items() if kernel in name]
        kept = [_parameter(value) for value in parameters]
        pointers = (ctypes.c_void_p * len(kept))(*map(ctypes.addressof, kept))
        grid = (5, 0, 5, 256) if first is None else (2**31 - 1, first, 2, 256)
        self.emulator.emulator_schedule(0, 0)
        self.emulator.emulator_choose_code(code)
        wrong = self.emulator.emulator_launch(ctypes.c_void_p(address), *map(ctypes.c_uint, grid), pointers)
        assert wrong is None, wrong.decode()


def _parameter(value: Any) -> Any:
    value = value[0] if isinstance(value, tuple) else value
    if isinstance(value, torch.Tensor):
        value = value.data_ptr()
    if not isinstance(value, bytes):
        value = ((value or 0) % 2**64).to_bytes(8, "little")
    return ctypes.create_string_buffer(value, len(value))
