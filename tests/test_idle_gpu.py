"""`--device auto` takes a GPU that this build can use.

One that it cannot use is told, with the reason and what changes it.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch

from cfol_fast import _host, machine, processes
from cfol_fast.commands import doctor
from cfol_fast.commands import main as cli
from cfol_fast.errors import InputError
from cfol_fast.recipes import runner


class Machine:
    """A machine with a GPU, in the parts that are asked for: torch's CUDA, ours, and the driver."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, torch_has: bool, we_have: bool, driver: bool = True
    ) -> None:
        monkeypatch.setattr(torch.version, "cuda", "13.0" if torch_has else None)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: torch_has and driver)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1 if torch_has and driver else 0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
        monkeypatch.setattr(machine, "NVIDIA", Path("/" if driver else "/nowhere/nvidia0"))
        monkeypatch.setattr(_host, "with_cuda", we_have)


# What torch and we were built with, and whether there is a GPU: the device, and a word of what is said.
CHOICES = {
    (True, True, True): ("cuda:0", None),
    (True, False, True): ("cpu", "cfol_fast was built without CUDA"),
    (False, False, True): ("cpu", "torch was installed without CUDA"),
    (True, True, False): ("cpu", None),
    (True, False, False): ("cpu", None),
    (False, False, False): ("cpu", None),
}


@pytest.mark.parametrize("parts", CHOICES)
def test_auto_takes_what_can_be_used_and_tells_what_lies_idle(
    parts: tuple[bool, bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(monkeypatch, *parts)
    device, said = CHOICES[parts]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert str(machine.choose_device("auto")) == device
    texts = [str(one.message) for one in caught]
    assert len(texts) == (said is not None)
    if said is not None:
        assert said in texts[0]
        assert "lies idle" in texts[0]


def test_a_run_on_the_cpu_beside_an_idle_gpu_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Machine(monkeypatch, torch_has=True, we_have=False)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", lambda message, *_, **__: print(f"note: {message}"))
        assert cli.main(["train", "erm", "--print-config"]) == 0
    out = capsys.readouterr().out
    note, _, config = out.partition("{")
    assert note.count("\n") == 1
    assert "a GPU lies idle" in note
    assert "pip install --no-build-isolation" in note
    assert json.loads(f"{{{config}")["device"] == "cpu"


@pytest.mark.parametrize("command", [["train", "erm", "--print-config"], ["eval", "w.pt"]])
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:7"])
def test_a_gpu_that_is_asked_for_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str], device: str
) -> None:
    Machine(monkeypatch, torch_has=True, we_have=False)
    assert cli.main([*command, "--device", device]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "cfol_fast was built without CUDA" in err


def test_a_gpu_that_is_not_there_is_refused_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, torch_has=True, we_have=True)
    assert str(machine.choose_device("cuda")) == "cuda:0"
    with pytest.raises(InputError, match=r"cuda:3 is not available: this machine has 1 GPU"):
        machine.choose_device("cuda:3")
    for name in ("gpu", "cuda:-1", "cuda:x", "mps", "cuda:0:1"):
        with pytest.raises(InputError, match="device"):
            machine.choose_device(name)


def test_no_worker_waits_for_a_gpu_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, torch_has=True, we_have=False)
    assert all("CUDA_VISIBLE_DEVICES" not in one for one in runner.workers(2))
    Machine(monkeypatch, torch_has=True, we_have=True)
    assert all("CUDA_VISIBLE_DEVICES" in one for one in runner.workers(1))


def test_processes_of_a_job_form_the_group_that_their_device_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU for each that nothing can use they would wait for NCCL."""
    for name, value in (
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "x"),
        ("MASTER_PORT", "1"),
    ):
        monkeypatch.setenv(name, value)

    class Met(Exception):
        pass

    def meet(*_: object, **__: object) -> None:
        raise Met

    monkeypatch.setattr(torch.distributed, "rendezvous", meet)
    Machine(monkeypatch, torch_has=True, we_have=False)
    with pytest.raises(Met), processes.joined("auto", 1.0):
        pass
    Machine(monkeypatch, torch_has=True, we_have=True)
    with (
        pytest.raises(InputError, match="each process needs a GPU of its own"),
        processes.joined("auto", 1.0),
    ):
        pass


def test_doctor_says_the_same() -> None:
    cuda = {
        "works": False,
        "trouble": f"cfol_fast was built without CUDA. {machine.REBUILD}",
        "gpus": ["NVIDIA H100"],
    }
    cpu = {
        "cores": 2,
        "threads": 2,
        "instructions": "AVX2",
        "bfloat16_trouble": None,
        "bfloat16_kernels": "",
        "convolutions": None,
    }
    native = {"works": False, "trouble": "", "remedy": ""}
    versions = {"cfol_fast": "0", "platform": "", "python": "", "torch": ""}
    found = {
        "versions": versions,
        "native": native,
        "cuda": cuda,
        "cpu": cpu,
        "extras": {},
        "free_disk_bytes": 0,
    }
    assert "GPU lies idle: NVIDIA H100: cfol_fast was built without CUDA" in doctor.describe(found)
    found["cuda"] = {**cuda, "gpus": [], "trouble": "torch finds no NVIDIA GPU"}
    assert "no GPU: torch finds no NVIDIA GPU" in doctor.describe(found)
