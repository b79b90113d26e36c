"""The whole step of every method on tensors that say "cuda", without a GPU: see
tests/training/fake_cuda_steps.py.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """The folder with the stand-ins for the driver and for torch's count of devices."""
    folder = tmp_path_factory.mktemp("fake-cuda")
    for command in (
        ["g++", "-shared", "-fPIC", "-o", folder / "shim.so", HERE / "fake_cuda_shim.cpp"],
        [
            *("gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"),
            *("-o", folder / "libcuda.so.1", HERE / "fake_cuda_driver.c"),
        ],
    ):
        subprocess.run(command, check=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_fake_cuda_the_step_of_every_method_runs_and_reads_nothing_back(stand_ins, precision):
    run(stand_ins, precision)


@pytest.mark.slow
def test_fake_cuda_all_of_a_resumed_run_is_on_its_device_and_no_step_copies_between_devices(stand_ins):
    run(stand_ins, "resume")


def run(stand_ins, what):
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.fake_cuda_steps", what],
        cwd=HERE.parents[1],
        env={**os.environ, "LD_LIBRARY_PATH": str(stand_ins), "LD_PRELOAD": str(stand_ins / "shim.so")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "all ran on cuda:0"
