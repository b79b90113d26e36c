"""Plants small faults in copies of the project, one at a time, and sees whether the tests find each.

The faults are the entries of faults/*.toml. `find` stands exactly once in `file`, which is any source of the
project; `replace` takes its place; `tests` are what pytest then runs, for one fault or at the top for all of
the file. A fault in csrc is also looked for by the sanitizers. An entry with `equivalent` cannot be told from
the original, and says why; every other one must be found.

All these tests run first without any fault: a test that fails anyway finds nothing. The table of what found
what is written to tests/mutants.md, with a hash of everything that it depends on.

    python -m tests.mutants.run [--jobs 2] [--only TEXT] [--if-changed] [--faults FILE]
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
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

ROOT = Path(__file__).resolve().parents[2]
PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header")
# On all of these every fault may depend; the files that a fault and its tests name come to them.
SHARED = ("csrc/**/*", "tests/native/**/*", "tests/emu/**/*", "tests/ptx/**/*", "tests/reference/**/*")
SHARED += ("tests/mutants/run.py", "tests/mutants/faults/*", "tests/conftest.py", "cfol_fast/ops/**/*")
SOURCES = (".py", ".toml", ".h", ".cpp", ".cu")


@dataclass(frozen=True)
class Fault:
    number: int
    operator: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]
    equivalent: str = ""
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
        text = (ROOT / self.file).read_text()
        return text[: text.index(self.find)].count("\n") + 1


def load_faults(paths: Iterable[Path] | None = None) -> list[Fault]:
    """The faults of these files; of all of ours by default."""
    entries = []
    for path in paths or sorted((ROOT / "tests" / "mutants" / "faults").glob("*.toml")):
        content = tomllib.loads(path.read_text())
        entries += [{"tests": content.get("tests"), "list": path.name, **entry} for entry in content["fault"]]
    return [Fault(number=i + 1, **{**e, "tests": tuple(e["tests"])}) for i, e in enumerate(entries)]


def dependency_hash(faults: list[Fault]) -> str:
    """Changes with everything that decides which faults are found."""
    paths = {path for pattern in SHARED for path in ROOT.glob(pattern) if path.suffix in SOURCES}
    for fault in faults:
        tests = [ROOT / test.partition("::")[0] for test in fault.tests]
        paths |= {ROOT / fault.file, *tests, *(test.parent / "conftest.py" for test in tests)}
    digest = hashlib.sha256()
    for path in sorted(path for path in paths if path.is_file()):
        for part in (path.relative_to(ROOT).as_posix().encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:20]


def committed_hash() -> str:
    table = ROOT / "tests" / "mutants.md"
    found = re.search(r"^Hash: `(\w+)`", table.read_text(), re.MULTILINE) if table.exists() else None
    return found.group(1) if found else ""


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
    status, output = run_in(folder, *PYTEST, *fault.tests, **variables)
    if status == 1:
        return first_failure(output)
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
    return (*PYTEST, "tests/native/test_sanitizers.py", "-k", f"{kernels} and not between")


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
            running += [pool.submit(run_in, folder, *PYTEST, test) for test in tests]
            outcomes = [future.result() for future in running]
    return [
        f"{first_failure(output)} (status {status})\n{output[-2000:]}"
        for status, output in outcomes
        if status
    ]


def table(faults: list[Fault], finds: dict[int, str], hashed: str) -> str:
    lines = ["# Planted faults and what found them", ""]
    lines += [
        (
            "Written by `make mutants` from `tests/mutants/faults`. Each fault is planted alone in a copy of"
            " the project;"
        ),
        "the tests named here pass without it.",
        "",
    ]
    lines += ["| # | fault | file | found by |", "|---|---|---|---|"]
    for fault in faults:
        found = finds[fault.number]
        verdict = f"`{found}`" if found else "**NOT FOUND**"
        if not found and fault.equivalent:
            verdict = f"**equivalent**: {fault.equivalent}"
        lines.append(f"| {fault.number} | {fault.operator} | {fault.file}:{fault.line} | {verdict} |")
    lines += ["", f"{sum(map(bool, finds.values()))} of {len(faults)} found."]
    if hashed:
        lines += [
            "",
            (
                f"Hash: `{hashed}` of what this depends on; `.ci/run` plants the faults again when it has"
                " changed."
            ),
        ]
    return "\n".join(lines) + "\n"


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
        help="only faults of which the file, the list or the operator contains this; no table",
    )
    parser.add_argument(
        "--if-changed", action="store_true", help="do nothing if tests/mutants.md is of these very files"
    )
    parser.add_argument(
        "--faults",
        type=Path,
        help="plant those of this file alone, at once: that the tests pass without them was seen",
    )
    options = parser.parse_args(arguments)
    if options.faults is not None:
        return plant_all(load_faults([options.faults]), options.jobs)[1]
    faults = load_faults()
    hashed = dependency_hash(faults)
    if options.if_changed and committed_hash() == hashed:
        print(f"The faults were planted in these very files before (hash {hashed}): not again.")
        return 0
    faults = [f for f in faults if options.only in f"{f.file}\n{f.list}\n{f.operator}"]
    print(f"{len(faults)} faults; first the tests without any ...", flush=True)
    if any(fault.in_a_kernel for fault in faults):
        # the unchanged objects once, before many workers ask for them
        status, output = run_in(ROOT, "-c", "from tests.native import building; building.everything()")
        assert status == 0, output
    if failing := failing_without_a_fault(faults, options.jobs):
        print("These fail without any fault, so that nothing can be shown by them:", *failing, sep="\n")
        return 1
    finds, missed = plant_all(faults, options.jobs)
    if not options.only:
        if dependency_hash(load_faults()) != hashed:
            print("The files changed meanwhile: no table is written. Run it again.")
            return 1
        # without the hash, so that a table with a fault that nothing finds is never taken for a reason not to
        # run
        (ROOT / "tests" / "mutants.md").write_text(table(faults, finds, "" if missed else hashed))
    return missed


if __name__ == "__main__":
    sys.exit(main())
