"""bfloat16 on any CPU: the very ops are tried, what oneDNN lacks runs on torch's own, and what cannot run is
refused.
"""

import signal
import subprocess

import pytest
import torch

from cfol_fast import PGD, machine
from cfol_fast.commands import doctor, main
from cfol_fast.errors import InputError
from cfol_fast.frozen import convolution, network
from cfol_fast.machine import CpuBfloat16
from tests.attacks.small_models import EPS, trained

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("printed", "status", "expected"),
    [
        ("plain\nfused\n", 0, CpuBfloat16(None, True)),
        ("plain\n", 1, CpuBfloat16(None, False)),
        ("plain\n", -signal.SIGILL, CpuBfloat16(None, False)),
    ],
)
def test_what_the_probe_reached_is_what_will_be_used(monkeypatch, printed, status, expected):
    ended = subprocess.CompletedProcess([], status, stdout=printed, stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    assert machine.cpu_bfloat16.__wrapped__() == expected


@pytest.mark.parametrize(("status", "words"), [(-signal.SIGILL, "ONEDNN_MAX_CPU_ISA"), (1, "status 1")])
def test_a_cpu_without_any_bfloat16_is_in_trouble(monkeypatch, status, words):
    ended = subprocess.CompletedProcess([], status, stdout="", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    found = machine.cpu_bfloat16.__wrapped__()
    assert words in found.trouble
    assert not found.fused


@pytest.mark.slow
def test_the_probe_says_of_this_cpu_what_the_fused_op_does():
    x, weight = torch.rand(2, 4, 8, 8).bfloat16(), torch.rand(4, 4, 3, 3).bfloat16()
    if machine.cpu_bfloat16().trouble:
        pytest.skip("bfloat16 kills the process on this CPU")
    try:
        torch.ops.mkldnn._convolution_pointwise(x, weight, None, [1, 1], [1, 1], [1, 1], 1, "none", [], "")
        works = True
    except RuntimeError:
        works = False
    assert machine.cpu_bfloat16().fused == works


@pytest.fixture
def without_fused_kernels(monkeypatch):
    """A CPU for which oneDNN has no bfloat16: its op raises there."""

    def only_float32(x, *rest):
        assert x.dtype == torch.float32, "bf16 path needs avx512"
        return fused(x, *rest)

    fused = convolution._fused_op
    monkeypatch.setattr(convolution, "_fused_op", only_float32)
    for module in (convolution, machine):
        monkeypatch.setattr(module, "cpu_bfloat16", lambda: CpuBfloat16(None, False))


@pytest.mark.usefixtures("without_fused_kernels")
def test_without_fused_kernels_the_attack_runs_on_plain_ones():
    model, x, y = trained()
    low, exact = (PGD(model, EPS, seed=4, dtype=dtype)(x, y) for dtype in (torch.bfloat16, None))
    wrong = [(model(adv).argmax(1) != y).float().mean().item() for adv in (low, exact)]
    assert wrong[0] == pytest.approx(wrong[1], abs=0.05)
    assert not torch.equal(low, exact)


@pytest.mark.usefixtures("without_fused_kernels")
@pytest.mark.slow
def test_a_run_says_first_that_it_has_plain_convolutions(tmp_path, capsys):
    command = ["train", "erm", "--epochs", "1", "--precision", "bfloat16", "--out", str(tmp_path / "run")]
    settings = ["steps_per_epoch=1", "batch_size=8", "data.holdout=none", "attack.steps=1", "test.steps=1"]
    assert main.main([*command, *(word for setting in settings for word in ("--set", setting))]) == 0
    said = capsys.readouterr()
    assert "torch's plain convolutions" in "\n".join((said.out + said.err).splitlines()[:6])


@pytest.mark.usefixtures("without_fused_kernels")
def test_the_doctor_says_which_convolutions_there_are():
    assert "torch's plain convolutions" in doctor.describe(doctor.examine())


@pytest.fixture
def without_bfloat16(monkeypatch):
    monkeypatch.setattr(machine, "cpu_bfloat16", lambda: CpuBfloat16("no bfloat16 here", False))


@pytest.mark.usefixtures("without_bfloat16")
def test_an_attack_that_cannot_run_is_refused():
    model, x, y = trained()
    with pytest.raises(InputError, match="no bfloat16 here"):
        PGD(model, EPS, dtype=torch.bfloat16)(x, y)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InputError, match="no bfloat16 here"):
        PGD(model, EPS)(x, y)


@pytest.mark.usefixtures("without_bfloat16")
def test_a_run_that_cannot_run_exits_with_2(tmp_path, capsys):
    assert main.main(["train", "erm", "--precision", "bfloat16", "--out", str(tmp_path / "run")]) == 2
    assert "no bfloat16 here" in capsys.readouterr().err


def test_float32_asks_no_probe(monkeypatch):
    def probe(*_):
        raise AssertionError("the probe takes seconds and was not needed")

    for module in (convolution, machine):
        monkeypatch.setattr(module, "cpu_bfloat16", probe)
    monkeypatch.setattr(network, "bfloat16_trouble", probe)
    model, x, y = trained()
    PGD(model, EPS, steps=1)(x[:4], y[:4])


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_a_precision_that_would_be_ignored_is_refused(dtype):
    with pytest.raises(InputError, match=f"dtype.*{dtype}"):
        PGD(trained().model, EPS, dtype=dtype)
