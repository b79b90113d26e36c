"""Plants small faults in copies of the project, one at a time, and sees whether the tests find each.

The faults are the entries of faults/*.toml. `find` stands exactly once in `file`, which is any source of the
project; `replace` takes its place; `tests` are what pytest then runs, for one fault or at the top for all of
the file. A fault in csrc is also looked for by the sanitizers. An entry with `equivalent` cannot be told from
the original, and says why; every other one must be found.

All these tests run first without any fault: a test that fails anyway finds nothing. The table of what found
what is written to tests/mutants.md, with a hash of everything that each verdict depends on: --if-changed
plants only the faults of which it is another one (verdicts.py).

    python -m tests.mutants.run [--jobs 2] [--only TEXT] [--if-changed] [--faults FILE ...]
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
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.mutants import verdicts

ROOT = Path(__file__).resolve().parents[2]
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header")


@dataclass(frozen=True)
class Fault:
    number: int
    operator: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]
    equivalent: str = ""
    # So many of the tests must fail.
    failures: int = 1
    # The name of the file in faults/ that it stands in.
    list: str = ""

    @property
    def in_a_kernel(self) -> bool:
        return self.file.startswith("csrc/")

    @property
    def on_cuda_only(self) -> bool:
        return self.file.startswith("csrc/cuda/")

    @property
    def exercises(self) -> list[str]:
        """The programs of tests/emu, named like the tests, in which the sanitizers look for a fault in a
        kernel.
        """
        families = [Path(test).stem.removeprefix("test_") for test in self.tests] if self.in_a_kernel else []
        return [f for f in families if (ROOT / "tests" / "emu" / f"exercise_{f}.cpp").exists()]

    @property
    def line(self) -> int:
        """0 where somebody changed the file meanwhile."""
        before, found, _ = (ROOT / self.file).read_text().partition(self.find)
        return before.count("\n") + 1 if found else 0


def load_faults(paths: Iterable[Path] | None = None) -> list[Fault]:
    """The faults of these files; of all of ours by default."""
    entries = []
    for path in paths or sorted((ROOT / "tests" / "mutants" / "faults").glob("*.toml")):
        content = tomllib.loads(path.read_text())
        entries += [{"tests": content.get("tests"), "list": path.name, **entry} for entry in content["fault"]]
    return [Fault(number=i + 1, **{**e, "tests": tuple(e["tests"])}) for i, e in enumerate(entries)]


def copy_project(folder: Path) -> None:
    for name in ("cfol_fast", "csrc", "tests"):
        if (ROOT / name).exists():
            ignored = shutil.ignore_patterns("__pycache__", "mutants")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored, symlinks=True)
    for name in ("pyproject.toml", "setup.py"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, folder)


def plant(fault: Fault, folder: Path) -> None:
    source = folder / fault.file
    text = source.read_text()
    count = text.count(fault.find)
    assert count == 1, f"fault {fault.number}: its text stands {count} times in {fault.file}"
    source.write_text(text.replace(fault.find, fault.replace))


def limit_cpu_time() -> None:
    """A fault may make a loop endless.

    CPU seconds, not the clock's: the machine may be busy with something else.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (300, 300))


def run_in(folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    environment = {
        **os.environ,
        **variables,
        "CFOL_TEST_CACHE": str(ROOT / "build" / "tests"),
        "OMP_NUM_THREADS": "1",
        "CI": "",
        "PYTEST_ADDOPTS": "",
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


def compile_cpu_ops(folder: Path) -> str:
    """Puts the copy's own CPU kernels into it; the compiler's first error, or an empty string.

    Unchanged objects come from the cache.
    """
    code = (
        "import shutil; from tests.native import building; shutil.copy(building.cpu_ops(),"
        " 'cfol_fast/_ops.abi3.so')"
    )
    status, output = run_in(folder, "-c", code)
    if not status:
        return ""
    found = re.search(r"error: (.+)", output)
    return f"the compiler ({found.group(1)[:60] if found else output[-60:]})"


def found_by(fault: Fault) -> str:
    """The first test that fails, or an empty string."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        copy_project(folder)
        plant(fault, folder)
        if not fault.in_a_kernel:
            return by_tests(fault, folder)
        if not fault.on_cuda_only and (error := compile_cpu_ops(folder)):
            return error
        race = fault.on_cuda_only and ("plain" in fault.operator or "barrier" in fault.operator)
        stages = [by_sanitizers, by_tests] if race else [by_tests, by_sanitizers]
        return stages[0](fault, folder) or stages[1](fault, folder)


def by_tests(fault: Fault, folder: Path) -> str:
    variables = {"CFOL_NATIVE_SIDE": "emulated"} if fault.on_cuda_only else {}
    stop = f"--maxfail={fault.failures}"
    status, output = run_in(folder, *PYTEST, stop, *fault.tests, **variables)
    if status == 1:
        failed = re.findall(r"^(?:FAILED|ERROR) ", output, re.MULTILINE)
        return first_failure(output) if len(failed) >= fault.failures else ""
    # A crash of the interpreter finds the fault too. 5: there was no test, as with one side alone for an op
    # without CUDA.
    return "" if status in (0, 5) else f"a crash in {fault.tests[0]} (status {status})"


def by_sanitizers(fault: Fault, folder: Path) -> str:
    kernels = "cuda_kernels" if fault.on_cuda_only else "kernels"
    for family in fault.exercises:
        status, output = run_in(folder, *sanitizers(kernels), EXERCISE_ONLY=family)
        if status == 1:
            return first_failure(output)
    return ""


def sanitizers(kernels: str) -> tuple[str, ...]:
    return (*PYTEST, "-x", "tests/native/test_sanitizers.py", "-k", f"{kernels} and not between")


def first_failure(output: str) -> str:
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    return found.group(1).removeprefix("tests/native/") if found else "a failing test session"


def failing_without_a_fault(faults: list[Fault], jobs: int) -> list[str]:
    """What fails in an unchanged copy, of all that is asked to find a fault.

    What CUDA faults run is a part of what is run here.
    """
    families = sorted({family for fault in faults for family in fault.exercises})
    tests = sorted({test for fault in faults for test in fault.tests})
    with tempfile.TemporaryDirectory(prefix="unchanged-") as name:
        folder = Path(name)
        copy_project(folder)
        if any(fault.in_a_kernel for fault in faults) and (error := compile_cpu_ops(folder)):
            return [error]
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            running = [pool.submit(run_in, folder, *sanitizers("kernels"), EXERCISE_ONLY=f) for f in families]
            running += [pool.submit(run_in, folder, *PYTEST, "-x", test) for test in tests]
            outcomes = [future.result() for future in running]
    return [
        f"{first_failure(output)} (status {status})\n{output[-2000:]}"
        for status, output in outcomes
        if status
    ]


def plant_all(faults: list[Fault], jobs: int) -> tuple[dict[int, str], int]:
    """(what found each fault, 1 if one was missed else 0)."""
    finds: dict[int, str] = {}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(found_by, fault): fault for fault in faults}
        for future in concurrent.futures.as_completed(running):
            fault = running[future]
            finds[fault.number] = future.result()
            verdict = finds[fault.number] or ("equivalent" if fault.equivalent else "NOT FOUND")
            print(
                f"[{len(finds)}/{len(faults)}] {fault.operator}, {fault.file}:{fault.line}: {verdict}",
                flush=True,
            )
    missed = [f for f in faults if not finds[f.number] and not f.equivalent]
    print(f"{len(faults) - len(missed)} passed, {len(missed)} failed")
    return finds, 1 if missed else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--only",
        default="",
        help="only faults of which the file, the list or the operator contains this",
    )
    parser.add_argument(
        "--if-changed",
        action="store_true",
        help="plant only the faults of which the verdict depends on something that changed since the table",
    )
    parser.add_argument(
        "--faults",
        type=Path,
        nargs="+",
        help="plant those of these files alone, at once: that the tests pass without them was seen",
    )
    options = parser.parse_args(arguments)
    table = ROOT / "tests" / "mutants.md"
    faults = load_faults()
    hashes = {fault.number: verdicts.hash_of(fault, ROOT) for fault in faults}
    finds = {
        f.number: found for f in faults if (found := verdicts.kept(table).get(hashes[f.number])) is not None
    }
    chosen = [f for f in faults if options.only in f"{f.file}\n{f.list}\n{f.operator}"]
    if options.if_changed:
        chosen = [fault for fault in chosen if fault.number not in finds]
    if options.faults is not None:
        ours = [fault for fault in faults if fault.list in {path.name for path in options.faults}]
        given = load_faults(options.faults)
        same = [(f.operator, f.find, f.replace) for f in ours] == [
            (f.operator, f.find, f.replace) for f in given
        ]
        chosen = ours if same else given
        if not same:
            return plant_all(chosen, options.jobs)[1]
    elif not chosen:
        print(
            f"{len(faults)} faults: nothing changed that their verdicts depend on, and none is planted again."
        )
        return 0
    else:
        print(f"{len(chosen)} of {len(faults)} faults; first the tests without any ...", flush=True)
        if failing := prepare(chosen, options.jobs):
            print("These fail without any fault, so that nothing can be shown by them:", *failing, sep="\n")
            return 1
    planted, missed = plant_all(chosen, options.jobs)
    again = {fault.number: verdicts.hash_of(fault, ROOT) for fault in faults}
    if again != hashes:
        print("The files changed meanwhile: no table is written. Run it again.")
        return 1
    # Another run may have written rows meanwhile.
    now = verdicts.kept(table)
    finds |= {f.number: now[hashes[f.number]] for f in faults if hashes[f.number] in now}
    table.write_text(verdicts.written(faults, finds | planted, hashes))
    return missed


def prepare(faults: list[Fault], jobs: int) -> list[str]:
    if any(fault.in_a_kernel for fault in faults):
        # the unchanged objects once, before many workers ask for them
        status, output = run_in(ROOT, "-c", "from tests.native import building; building.everything()")
        assert status == 0, output
    return failing_without_a_fault(faults, jobs)


if __name__ == "__main__":
    sys.exit(main())
