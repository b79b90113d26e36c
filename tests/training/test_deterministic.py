"""`--deterministic`, and what a run asks of a GPU's arithmetic; with stand-ins for the GPU."""

import contextlib
import os

import pytest
import torch

from cfol_fast.errors import InputError
from cfol_fast.machine import CUBLAS_WORKSPACE, bfloat16_trouble, check_same_arithmetic, computing
from cfol_fast.methods import METHODS
from cfol_fast.objectives import risk
from tests.training.tiny import assert_same_outcome, each, new_trainer, run, take_steps


def switches():
    return {
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "benchmark": torch.backends.cudnn.benchmark,
        "tf32": torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32,
        "workspace": os.environ.get(CUBLAS_WORKSPACE),
    }


def test_deterministic_computing_switches_everything_and_back(monkeypatch):
    monkeypatch.setenv(CUBLAS_WORKSPACE, ":16:8")
    before = switches()
    with computing("float32", deterministic=True):
        inside = switches()
    assert inside == {
        "algorithms": True,
        "warn only": False,
        "benchmark": False,
        "tf32": False,
        "workspace": ":4096:8",
    }
    assert switches() == before


def test_otherwise_cudnn_looks_for_the_fastest_algorithms(monkeypatch):
    monkeypatch.delenv(CUBLAS_WORKSPACE, raising=False)
    before = switches()
    with computing("tf32"):
        assert switches() == {**before, "benchmark": True, "tf32": True}
    assert switches() == before


@pytest.mark.slow
def test_a_deterministic_run_on_the_cpu_is_the_same_run(few_images, tmp_path):
    run(tmp_path / "plain")
    run(tmp_path / "deterministic", deterministic=True)
    assert_same_outcome(tmp_path / "plain", tmp_path / "deterministic")
    assert not torch.are_deterministic_algorithms_enabled()
    run(tmp_path / "plain", resume=True)


def test_a_run_that_becomes_deterministic_does_not_continue_exactly(few_images, tmp_path):
    states = [new_trainer(tmp_path, deterministic=on).state.continuation().arithmetic for on in (False, True)]
    with pytest.raises(InputError, match=r"deterministic \(was False, now True\)"):
        check_same_arithmetic(*states, force=False)


@pytest.mark.parametrize("method", each(METHODS))
def test_no_op_of_a_step_is_refused_as_not_deterministic(few_images, tmp_path, method):
    trainer = new_trainer(tmp_path, method)
    with computing("float32", deterministic=True):
        take_steps(trainer, 1)
    assert torch.isfinite(trainer.step.counts.loss_sum)


def test_running_sums_in_a_fixed_order_are_those_of_torch(monkeypatch):
    values = torch.rand(50, dtype=torch.float64)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    on_a_gpu = values.as_subclass(type("OnAGpu", (torch.Tensor,), {"is_cuda": True}))
    torch.testing.assert_close(risk._running_sum(on_a_gpu).as_subclass(torch.Tensor), values.cumsum(0))


@pytest.mark.parametrize("native", [True, False])
def test_bfloat16_that_is_only_emulated_is_refused(monkeypatch, native):
    """Turing has none, but torch says that it has: it emulates it.

    The run's own GPU is asked, not the first.
    """
    asked = []

    @contextlib.contextmanager
    def device(chosen):
        asked.append(str(chosen))
        yield

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or native
    )
    trouble = bfloat16_trouble(torch.device("cuda", 1))
    assert trouble == (None if native else "cuda:1 has no bfloat16 (it needs Ampere or later); use float32")
    assert asked == ["cuda:1"]


@pytest.mark.parametrize("compile", [True, False])
def test_only_compiled_steps_mark_their_beginning(few_images, tmp_path, monkeypatch, compile):
    """The call imports inductor, which takes seconds."""
    marks = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(1))
    trainer = new_trainer(tmp_path)
    if compile:
        trainer.step.forward = lambda x: trainer.step.model(x)
    take_steps(trainer, 2)
    assert len(marks) == (2 if compile else 0)
