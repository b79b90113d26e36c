"""The thread, address and undefined-behaviour sanitizers over every kernel, CPU and emulated CUDA."""

import os
import subprocess

import pytest

from tests.native import building

pytestmark = pytest.mark.slow

SCHEDULES = [("0", "0"), ("1", "0"), ("2", "1"), ("2", "2")]


def run_clean(program, *arguments):
    environment = {
        **os.environ,
        "TSAN_OPTIONS": "halt_on_error=1",
        "ASAN_OPTIONS": "detect_stack_use_after_return=0",
    }
    # address randomisation with many bits can make the sanitizers refuse to start
    command = ["setarch", "-R", str(program), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
    families = {path.stem.removeprefix("exercise_") for path in building.EMU.glob("exercise_*.cpp")}
    families = {os.environ.get("EXERCISE_ONLY")} if "EXERCISE_ONLY" in os.environ else families
    assert {line.removeprefix("done ") for line in result.stdout.splitlines()} >= families


@pytest.mark.parametrize("sanitizer", building.SANITIZERS)
def test_the_cpu_kernels_are_clean(sanitizer):
    run_clean(building.sanitizer_program(sanitizer, "cpu"))


def test_the_cuda_kernels_are_clean():
    program = building.sanitizer_program("address,undefined", "cuda")
    for order in SCHEDULES[:3]:
        run_clean(program, *order)


# The thread sanitizer takes half a millisecond per CUDA thread: two schedules are enough here, all four run
# without a sanitizer.
@pytest.mark.parametrize("order", SCHEDULES[1:3], ids="-".join)
def test_the_cuda_kernels_have_no_races_inside_a_block(order):
    run_clean(building.sanitizer_program("thread", "cuda"), *order)


def test_the_cuda_kernels_have_no_races_between_blocks():
    # Blocks that are not ordered seem to race for the stand-in's shared memory (globals) and stacks, of which
    # it has one set for all blocks. A report about any other memory (the exercises' arrays) is a race of the
    # kernel.
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=0 exitcode=0"}
    command = ["setarch", "-R", str(building.sanitizer_program("thread", "cuda")), "0", "0", "0"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    reports = result.stderr.split("WARNING: ThreadSanitizer:")[1:]
    assert result.returncode == 0, result.stderr[-4000:]
    assert reports, "blocks were ordered: nothing was looked at"
    for report in reports:
        place = report.partition("Location is ")[2].partition("\n\n")[0]
        assert place.startswith("global 'cfol::cuda::") or "start_fibers" in place, report[:4000]


def test_every_op_family_has_an_exercise():
    families = {path.stem for path in (building.CSRC / "cuda").glob("*.cu")}
    assert families == {path.stem.removeprefix("exercise_") for path in building.EMU.glob("exercise_*.cpp")}
