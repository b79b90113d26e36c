"""Running out of memory is one sentence with the ways out and status 1: whoever says it, in whatever words,
in every command.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cfol_fast import out_of_memory
from cfol_fast.commands import main as cli
from cfol_fast.data import image_file
from cfol_fast.errors import InputError, TrainingFailed
from cfol_fast.runs import checkpoints

ALLOC_CPU = (
    "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"
    " allocate 4000 bytes."
)
RAN_OUT: dict[str, BaseException] = {
    "torch, on a GPU": torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB"
    ),
    "torch, on the CPU": RuntimeError(f"{ALLOC_CPU} Error code 12 (Cannot allocate memory)"),
    "torch, without a page": RuntimeError("not enough memory: you tried to allocate 4000 bytes."),
    "CUDA": RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    "CUDA, by its number": RuntimeError("cudaErrorMemoryAllocation"),
    "cuDNN": RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    "cuBLAS": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "our ops": RuntimeError("std::bad_alloc"),
    "Python": MemoryError(),
    "numpy": np._core._exceptions._ArrayMemoryError((1 << 40,), np.dtype("float64")),
    "Pillow": OSError("out of memory error when reading image file"),
    "fork": OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    "mmap": RuntimeError("unable to mmap 4096 bytes from file <x.pt>: Cannot allocate memory (12)"),
    "a thread": RuntimeError("can't start new thread"),
    "a library": ImportError("libx.so: failed to map segment from shared object"),
    "a worker of a loader": RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),
    "shared memory": RuntimeError("DataLoader workers are out of shared memory. Please raise its limit"),
}
OTHERS = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    ValueError("out of memory"),
    TrainingFailed("the loss is not finite"),
    KeyError("std::bad_alloc"),
    OSError(errno.EBADF, os.strerror(errno.EBADF)),
]


def said_of(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> tuple[int, str]:
    def fail(_: Any) -> None:
        raise error

    monkeypatch.setattr(cli, "_dispatch", fail)
    status = cli.main([command])
    return status, capsys.readouterr().err


@pytest.mark.parametrize("name", RAN_OUT)
def test_every_way_to_run_out_is_one_sentence(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, err = said_of(RAN_OUT[name], monkeypatch, capsys, "train")
    assert (status, err.count("\n")) == (1, 1)
    assert err.startswith("cfol-fast: failed: out of memory")
    assert "--batch-size" in err
    assert ("on the GPU" in err) == (
        name in ("torch, on a GPU", "CUDA", "CUDA, by its number", "cuDNN", "cuBLAS")
    )


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_a_way_out(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, err = said_of(MemoryError(), monkeypatch, capsys, command)
    assert (status, err.count("\n")) == (1, 1)
    assert len(err) > len("cfol-fast: failed: out of memory: ") + 15


def test_how_much_was_wanted_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "(2.00 GiB wanted)" in said_of(RAN_OUT["torch, on a GPU"], monkeypatch, capsys, "eval")[1]
    assert "(4000 bytes wanted)" in said_of(RAN_OUT["torch, on the CPU"], monkeypatch, capsys, "eval")[1]
    assert "(8.00 TiB wanted)" in said_of(RAN_OUT["numpy"], monkeypatch, capsys, "data")[1]


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_what_is_something_else_stays_that(error: BaseException) -> None:
    assert out_of_memory.sentence(error, "train") is None


def test_what_a_reader_took_for_something_else_is_still_a_lack_of_memory() -> None:
    def read() -> None:
        try:
            raise MemoryError
        except MemoryError:
            raise InputError("the file is damaged") from None

    with pytest.raises(InputError) as found:
        read()
    assert out_of_memory.sentence(found.value) is not None


def test_a_checkpoint_that_does_not_fit_into_memory_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.write(tmp_path / "last.pt", {"format": 1})

    def load(*_: Any, **__: Any) -> None:
        raise RAN_OUT["torch, on the CPU"]

    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        checkpoints.read(tmp_path / "last.pt", "cpu")


@pytest.mark.parametrize("name", ["Pillow", "fork"])
def test_an_image_that_does_not_fit_into_memory_is_not_left_out(name: str) -> None:
    def read(_: str) -> None:
        raise RAN_OUT[name]

    with pytest.raises(OSError, match=r"memory"):
        image_file.tried(read)("one.png")


def test_a_limit_of_addresses_counts_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from cfol_fast.data import room

    free = room.available_memory()
    monkeypatch.setattr(room.resource, "getrlimit", lambda _: (1, 1))
    assert room.available_memory() == (None if free is None else 0)


TRAIN = """train erm --device cpu --dataset fashion-mini --model wrn-10-2 --batch-size 4000 --epochs 1
--holdout none --set attack.steps=1 --threads 1 --set test.steps=1 --out RUN"""
LIMITED: dict[str, Callable[[Path], list[str]]] = {
    "training": lambda folder: TRAIN.replace("RUN", str(folder / "run")).split(),
    "evaluation": lambda folder: [
        *(
            "eval",
            str(folder / "w.pt"),
            "--model",
            "wrn-10-4",
            "--dataset",
            "fashion-mini",
            "--device",
            "cpu",
        ),
        *("--normalize", "dataset", "--batch-size", "3000", "--attack", "none"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("what", LIMITED)
def test_under_a_limit_of_the_shell(tmp_path: Path, what: str) -> None:
    """A limit a little above what a process needs to begin, so that it is the work that does not fit."""
    from cfol_fast import models

    torch.save(models.create("wrn-10-4", 10, 28, 1).get_submodule("net").state_dict(), tmp_path / "w.pt")
    begun = (
        "import resource, cfol_fast.training, cfol_fast.evaluation;"
        " print(open('/proc/self/statm').read().split()[0])"
    )
    pages = subprocess.run([sys.executable, "-c", begun], capture_output=True, text=True, check=True).stdout
    code = (
        "import resource, sys\nresource.setrlimit(resource.RLIMIT_AS,"
        f" ({int(pages) * os.sysconf('SC_PAGESIZE') + (700 << 20)},) * 2)\nfrom cfol_fast.commands.main"
        " import main\nsys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *LIMITED[what](tmp_path)], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    assert done.returncode == 1, done.stderr[-2000:]
    assert "cfol-fast: failed: out of memory" in done.stderr
    assert "ulimit -v allows" in done.stderr
    assert "--batch-size" in done.stderr
