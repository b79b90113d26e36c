"""One machine stands for several: what depends on the processor's instructions is tested again with those of
older ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cfol_fast import machine

CHECKOUT = Path(__file__).parents[1]
# torch.compile takes a minute to fill a cache of its own, which each setting has.
SELECTION = [
    "-m",
    "not gpu",
    "-k",
    "not compile and not emulated and not million and not several_blocks",
    "-p",
    "no:cacheprovider",
]
FILES = [
    "tests/attacks/test_active_set.py",
    "tests/frozen/test_folding.py",
    "tests/frozen/test_own_gradients.py",
    "tests/attacks/test_pgd.py",
    "tests/evaluation/test_evaluate.py",
    "tests/native/test_augment.py",
    "tests/native/test_input_gradient.py",
    "tests/native/test_pgd.py",
    "tests/native/test_winograd.py",
    "tests/test_bfloat16.py",
    "tests/training/test_step.py::test_a_bfloat16_step_is_near_the_float32_one",
    "tests/training/test_step.py::test_a_step_changes_every_weight_and_tallies_every_example",
]
# Our own kernels give the same bits with any instructions.
KERNELS = [
    f"tests/native/test_{name}.py"
    for name in ("augment", "exp3", "input_gradient", "permutation", "pgd", "sum_tree", "winograd")
]
# setting -> what torch, or our library, says of itself under it
PROCESSORS = {
    "ATEN_CPU_CAPABILITY=avx2": ("torch.backends.cpu.get_cpu_capability()", "AVX2"),
    "ATEN_CPU_CAPABILITY=default": ("torch.backends.cpu.get_cpu_capability()", "DEFAULT"),
    "ONEDNN_MAX_CPU_ISA=AVX2": ("torch.ops.mkldnn._is_mkldnn_bf16_supported()", "False"),
}
OUR_PROCESSORS = {
    "CFOL_MAX_CPU_ISA=AVX2": ("cfol_fast._host.instruction_set", "AVX2"),
    "CFOL_MAX_CPU_ISA=SSE2": ("cfol_fast._host.instruction_set", "SSE2"),
}
every_processor = pytest.mark.parametrize("setting", PROCESSORS)


def run(setting: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    name, value = setting.split("=")
    return subprocess.run(
        [sys.executable, *arguments],
        # The kernels of CUDA are the same everywhere; a test of them alone has no parameters then, and is
        # skipped.
        env={**environment, name: value, "CFOL_NATIVE_SIDE": "cpu", "CI": ""},
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("setting", [*PROCESSORS, *OUR_PROCESSORS])
@pytest.mark.slow
def test_the_setting_takes_effect(setting: str) -> None:
    asked, answer = {**PROCESSORS, **OUR_PROCESSORS}[setting]
    program = f"import torch; import cfol_fast._host; print({asked})"
    assert run(setting, "-c", program).stdout.strip() == answer


@pytest.mark.slow
def test_an_instruction_set_that_does_not_exist_is_refused() -> None:
    ended = run("CFOL_MAX_CPU_ISA=AVX3", "-c", "from cfol_fast import ops")
    assert ended.returncode != 0
    assert "CFOL_MAX_CPU_ISA must be AVX512, AVX2 or SSE2, got 'AVX3'" in ended.stderr


@pytest.mark.parametrize("setting", OUR_PROCESSORS)
@pytest.mark.slow
def test_our_kernels_are_right_with_the_instructions_of_older_processors(setting: str) -> None:
    ended = run(setting, "-m", "pytest", "-q", *SELECTION, *KERNELS)
    assert ended.returncode == 0, ended.stdout[-4000:]


@pytest.mark.slow
def test_each_processor_has_a_cache_of_compiled_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(machine.COMPILE_CACHE, raising=False)
    asked = (
        "import torch._inductor.codecache; from cfol_fast import machine; machine.keep_compiled_code_apart();"
        " print(machine.os.environ[machine.COMPILE_CACHE])"
    )
    # Whatever the machine, or the environment of the tests, is limited to: these two differ.
    settings = ("ATEN_CPU_CAPABILITY=default", "ATEN_CPU_CAPABILITY=avx2")
    assert len({run(setting, "-c", asked).stdout for setting in settings}) == len(settings)
    assert run("TORCHINDUCTOR_CACHE_DIR=/mine", "-c", asked).stdout.strip() == "/mine"


@pytest.mark.slow
@every_processor
def test_attacks_augmentation_and_steps_are_right_on_it(setting: str) -> None:
    ended = run(setting, "-m", "pytest", "-q", *SELECTION, *FILES)
    assert ended.returncode == 0, ended.stdout[-4000:]
