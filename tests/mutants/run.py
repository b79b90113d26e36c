"""Plants small faults in copies of the kernels, one at a time, and sees whether the tests find each.

A fault is caught by the op's tests (on the CPU, or on emulated CUDA under four schedules) or by one of the sanitizers. The table of
what caught what is written to tests/mutants.md; a survivor that faults.toml does not argue to be equivalent fails the run.

    python -m tests.mutants.run [--jobs 2] [--only TEXT] [--check]
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "mutants.md"
CACHE = ROOT / "build" / "tests"


@dataclass(frozen=True)
class Fault:
    number: int
    operator: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]
    equivalent: str = ""

    @property
    def line(self) -> int:
        text = (ROOT / "csrc" / self.file).read_text()
        return text[: text.index(self.find)].count("\n") + 1


def load_faults() -> list[Fault]:
    entries = tomllib.loads((Path(__file__).parent / "faults.toml").read_text())["fault"]
    return [Fault(number=i + 1, **{**e, "tests": tuple(e["tests"])}) for i, e in enumerate(entries)]


def plant(fault: Fault, folder: Path) -> None:
    """A copy of what the tests need, with the fault in it. Objects come from the shared cache, so only what changed is compiled."""
    for name in ("cfol_fast", "csrc", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", "mutants")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored, symlinks=True)
    shutil.copy(ROOT / "pyproject.toml", folder)
    source = folder / "csrc" / fault.file
    text = source.read_text()
    assert text.count(fault.find) == 1, (
        f"fault {fault.number}: its text stands {text.count(fault.find)} times in {fault.file}"
    )
    source.write_text(text.replace(fault.find, fault.replace))


def limit_cpu_time() -> None:
    """A fault may make a loop endless. CPU seconds, not the clock's: the machine may be busy with something else."""
    resource.setrlimit(resource.RLIMIT_CPU, (300, 300))


def run_in(folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    environment = {
        **os.environ,
        **variables,
        "CFOL_TEST_CACHE": str(CACHE),
        "OMP_NUM_THREADS": "1",
        "CI": "",
        "PYTHONPATH": str(folder),
    }
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=limit_cpu_time,
    )
    return result.returncode, result.stdout + result.stderr


def caught_by(fault: Fault) -> str:
    """The first test that fails, or an empty string."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        plant(fault, folder)
        cuda_only = fault.file.startswith("cuda/")
        if not cuda_only:
            code = "import shutil; from tests.native import building; shutil.copy(building.cpu_ops(), 'cfol_fast/_ops.abi3.so')"
            status, output = run_in(folder, "-c", code)
            if status:
                return f"the compiler ({first_error(output)})"
        look_for_races = ("plain" in fault.operator or "barrier" in fault.operator) and cuda_only
        stages = [in_the_sanitizers, in_the_tests] if look_for_races else [in_the_tests, in_the_sanitizers]
        return stages[0](fault, folder, cuda_only) or stages[1](fault, folder, cuda_only)


PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header")


def in_the_tests(fault: Fault, folder: Path, cuda_only: bool) -> str:
    files = [f"tests/native/test_{family}.py" for family in fault.tests]
    variables = {"CFOL_ONLY_EMULATED": "1"} if cuda_only else {}
    status, output = run_in(folder, *PYTEST, *files, **variables)
    if status == 1:
        return first_failure(output)
    # a crash of the interpreter is a find too; 5: there was no test
    return "" if status in (0, 5) else f"a crash in {files[0]} (status {status})"


def in_the_sanitizers(fault: Fault, folder: Path, cuda_only: bool) -> str:
    kernels = "cuda_kernels and not between" if cuda_only else "kernels and not between"
    for family in fault.tests:
        status, output = run_in(
            folder, *PYTEST, "tests/native/test_sanitizers.py", "-k", kernels, EXERCISE_ONLY=family
        )
        if status == 1:
            return first_failure(output)
    return ""


def first_failure(output: str) -> str:
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    return found.group(1).removeprefix("tests/native/") if found else "a failing test session"


def first_error(output: str) -> str:
    found = re.search(r"error: (.+)", output)
    return found.group(1)[:60] if found else "no message"


def table(faults: list[Fault], catches: dict[int, str]) -> str:
    lines = ["# Planted faults and what caught them", ""]
    lines += [
        "Written by `make mutants` from `tests/mutants/faults.toml`. Each fault is planted alone in a copy of the kernels.",
        "",
    ]
    lines += ["| # | fault | file | caught by |", "|---|---|---|---|"]
    for fault in faults:
        verdict = (
            f"`{catches[fault.number]}`" if catches[fault.number] else f"**equivalent**: {fault.equivalent}"
        )
        if not catches[fault.number] and not fault.equivalent:
            verdict = "**SURVIVED**"
        lines.append(f"| {fault.number} | {fault.operator} | {fault.file}:{fault.line} | {verdict} |")
    caught = sum(bool(c) for c in catches.values())
    lines += ["", f"{caught} of {len(faults)} caught."]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--only", default="", help="only faults whose file or operator contains this; writes no table"
    )
    options = parser.parse_args()
    faults = [f for f in load_faults() if options.only in f.file or options.only in f.operator]
    # the unchanged objects once, before many workers ask for them
    status, output = run_in(
        ROOT, "-c", "from tests.native import building as b; b.emulated_ops(); b.cpu_ops()"
    )
    assert status == 0, output
    catches: dict[int, str] = {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(caught_by, fault): fault for fault in faults}
        for future in concurrent.futures.as_completed(running):
            fault = running[future]
            catches[fault.number] = future.result()
            verdict = catches[fault.number] or ("equivalent" if fault.equivalent else "SURVIVED")
            print(
                f"[{len(catches)}/{len(faults)}] {fault.operator}, {fault.file}:{fault.line}: {verdict}",
                flush=True,
            )
    if not options.only:
        TABLE.write_text(table(faults, catches))
    survivors = [f for f in faults if not catches[f.number] and not f.equivalent]
    print(f"{len(faults) - len(survivors)} passed, {len(survivors)} failed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
