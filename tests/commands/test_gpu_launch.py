"""The doctor's tiny op on a GPU, with a fake for the process that runs it."""

import subprocess

import pytest

from cfol_fast import machine
from cfol_fast.commands import doctor, gpu_launch

BUILT = ("nvcc release 13.0", "8.0;9.0+PTX")


@pytest.fixture
def ends_with(monkeypatch):
    def fake(status: int, stderr: str = "", driver: tuple[int, int] | None = (13, 0)):
        def run(command, **options):
            return subprocess.CompletedProcess(command, status, "", stderr)

        monkeypatch.setattr(gpu_launch.subprocess, "run", run)
        monkeypatch.setattr(gpu_launch, "driver_version", lambda: driver)

    return fake


def test_a_launch_that_works_is_no_trouble_whatever_the_driver_says(ends_with):
    ends_with(0, driver=(12, 4))
    assert gpu_launch.launch_trouble(*BUILT) is None


def test_a_driver_older_than_the_compiler_is_named(ends_with):
    ends_with(
        1, "RuntimeError: CUDA: CUDA driver version is insufficient for CUDA runtime version\n", (12, 4)
    )
    trouble = gpu_launch.launch_trouble(*BUILT)
    assert "it knows CUDA 12.4, and cfol_fast was built with nvcc 13.0" in trouble
    assert "at most 12.4" in trouble


def test_a_gpu_that_the_library_was_not_built_for_is_told_what_was_built(ends_with):
    ends_with(1, "Traceback\nRuntimeError: CUDA: no kernel image is available for execution on the device\n")
    trouble = gpu_launch.launch_trouble(*BUILT)
    assert "8.0;9.0+PTX" in trouble
    assert "TORCH_CUDA_ARCH_LIST" in trouble


def test_a_process_that_is_killed_and_any_other_error_are_told(ends_with):
    ends_with(-11)
    assert "signal 11" in gpu_launch.launch_trouble(*BUILT)
    ends_with(1, "Traceback\nAssertionError: cuda:1 computes wrong values\n", None)
    assert gpu_launch.launch_trouble(*BUILT).endswith("AssertionError: cuda:1 computes wrong values")


def test_a_launch_that_does_not_end_is_told(monkeypatch):
    def run(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(gpu_launch.subprocess, "run", run)
    assert "did not end" in gpu_launch.launch_trouble(*BUILT)


@pytest.mark.slow
def test_the_probe_itself_runs_here():
    """Over the GPUs of this machine: with none, the loop is empty."""
    assert gpu_launch.launch_trouble(*BUILT) is None


@pytest.mark.slow
def test_the_doctor_tells_the_trouble_of_a_launch(monkeypatch):
    monkeypatch.setattr(machine, "why_no_cuda", lambda: None)
    monkeypatch.setattr(doctor, "launch_trouble", lambda compiler, architectures: "the driver is too old")
    built = {"works": True, "compiler": "gcc", "instructions": "AVX2", "with_cuda": True}
    built |= {"cuda_compiler": BUILT[0], "cuda_architectures": BUILT[1]}
    monkeypatch.setattr(doctor, "_native", lambda: built)
    findings = doctor.examine()
    assert findings["cuda"]["works"] is False
    assert "no GPU: the driver is too old" in doctor.describe(findings)
