"""`make test-gpu`: runs every test marked `gpu` and a short benchmark, and writes gpu-report.json to send
back.

The kernels were written on machines without a GPU; a report from a machine that has one tells whether they
work there. After a bad access nothing else works in its process, so each test file has a process of its own;
the report is written before the first of them and again after each, so that it is there whatever happens.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cfol_fast import atomic
from cfol_fast.commands import doctor
from cfol_fast.errors import InputError
from tools import graph_check

FORMAT = 2
ROOT = Path(__file__).resolve().parents[1]
# Of a file's failures, so many are tried again, each in a process of its own.
TRIED_AGAIN = 10


def check(report: Path, findings: dict[str, Any]) -> int:
    """Runs the self-test and writes the report; 0 when all passed."""
    trouble = findings["cuda"]["trouble"]
    if trouble is not None:
        raise InputError(f"no GPU to check: {trouble}")
    outcome: dict[str, Any] = {"format": FORMAT, "finished": False, "passed": False, **findings, "tests": []}
    atomic.write_json(report, outcome)
    print(f"running every test marked gpu; {report} grows meanwhile ...", flush=True)
    for file in test_files():
        rows = run_file(file)
        outcome["tests"] += rows
        atomic.write_json(report, outcome)
        if rows:
            bad = sum(row["outcome"] not in ("passed", "skipped") for row in rows)
            print(f"  {file}: {len(rows)} tests, {bad} failed", flush=True)
    for name, part in PARTS.items():
        print(f"{name} ...", flush=True)
        outcome[name] = _tried(part)
        if "advice" in outcome[name]:
            print(outcome[name]["advice"], flush=True)
        atomic.write_json(report, outcome)
    passed = [row["outcome"] == "passed" for row in outcome["tests"] if row["outcome"] != "skipped"]
    outcome |= {"finished": True, "passed": any(passed) and all(passed)}
    atomic.write_json(report, outcome)
    print(f"{len(passed)} tests, {passed.count(False)} not passed; wrote {report}: please send it back")
    return 0 if outcome["passed"] else 1


def test_files() -> list[str]:
    """The files with tests for a GPU, from the checkout's root: the native ops first, since all else is built
    on them.
    """
    folder = ROOT / "tests"
    marked = [path for path in sorted(folder.rglob("test_*.py")) if "pytest.mark.gpu" in path.read_text()]
    found = [
        *sorted((folder / "native").glob("test_*.py")),
        *sorted((folder / "gpu").glob("test_*.py")),
        *marked,
    ]
    return [path.relative_to(ROOT).as_posix() for path in dict.fromkeys(found)]


def run_file(file: str) -> list[dict[str, Any]]:
    """The outcome of each test of a file.

    What failed is tried again, where a failing launch is told at its own place.
    """
    rows = run_tests(file)
    for row in [row for row in rows if row["outcome"] not in ("passed", "skipped")][:TRIED_AGAIN]:
        again = run_tests(row["name"], CUDA_LAUNCH_BLOCKING="1")
        row["again"] = [{key: value for key, value in one.items() if key != "name"} for one in again]
    return rows


def run_tests(selection: str, **variables: str) -> list[dict[str, Any]]:
    """Runs the tests marked gpu of a file, or one test, in a process; a process that dies is an
    outcome too.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.xml")
        command = [sys.executable, "-m", "pytest", selection, "-m", "gpu", "-v", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, f"--junitxml={results}"],
            cwd=ROOT,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        rows = read_results(results, selection.partition("::")[0]) if results.exists() else []
    # 0: all passed, 1: some failed, 5: the file has no test for a GPU.
    if done.returncode not in (0, 1, 5) or (done.returncode == 1 and not rows):
        message = f"pytest ended with status {done.returncode}; its last words: {done.stdout[-2000:]}"
        rows.append({"name": selection, "outcome": "crashed", "message": message})
    return rows


def read_results(path: Path, file: str) -> list[dict[str, Any]]:
    """The tests of a JUnit file: name as pytest takes it, outcome, and the message where one failed."""
    rows = []
    module = file.removesuffix(".py").replace("/", ".")
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        bad = next(
            (case.find(kind) for kind in ("failure", "error", "skipped") if case.find(kind) is not None), None
        )
        # The JUnit name of a class's test: tests.native.test_x.TestBadInput.
        classes = (case.get("classname") or "").removeprefix(module).strip(".")
        name = "::".join([file, *filter(None, classes.split(".")), case.get("name") or ""])
        row: dict[str, Any] = {"name": name, "outcome": "passed" if bad is None else bad.tag}
        if bad is not None:
            row["message"] = ((bad.get("message") or "") + "\n" + (bad.text or ""))[-2000:].strip()
        rows.append(row)
    return rows


def _tried(part: Callable[[], Any]) -> Any:
    """What a part of the report finds; its error, if it has one, belongs to the report too."""
    try:
        return part()
    except Exception as error:
        return {"trouble": f"{type(error).__name__}: {error}"[:2000]}


def measure(device: str, seconds: float = 3.0, batch: int = 128) -> dict[str, float]:
    """Microseconds of the ops that a training step adds to the network's passes, and images/s of PGD-7 on a
    ResNet-18.
    """
    import torch

    from cfol_fast import PGD, ClassSampler, models, ops

    def settle() -> None:
        if device == "cuda":  # pragma: no cover
            torch.cuda.synchronize(device)

    def per_call(call: Any) -> float:
        for _ in range(3):
            call()
        settle()
        start, calls = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            for _ in range(10):
                call()
            settle()
            calls += 10
        return (time.perf_counter() - start) / calls

    x = torch.rand(batch, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
    y = torch.arange(batch, device=device) % 10
    adv, grad, wrong = x.clone(), x - 0.5, (y == 0).float()
    sampler = ClassSampler(torch.arange(50000) % 10, device=device)

    def bandit() -> None:
        sampler.draw(batch)
        sampler.update(y, wrong)

    model = models.create("resnet18", num_classes=10).to(device)
    attack = PGD(model, eps=8 / 255, step=2 / 255, steps=7)
    return {
        "pgd_step_microseconds": 1e6 * per_call(lambda: ops.pgd_step_(adv, x, grad, 2 / 255, 8 / 255)),
        "draw_and_update_microseconds": 1e6 * per_call(bandit),
        "pgd7_resnet18_images_per_second": batch / per_call(lambda: attack(x, y)),
    }


def compare_graph() -> dict[str, Any]:
    """Whether --graph on gives what eager steps give, and whether it pays."""
    return graph_check.in_a_process()


def fused_convolutions(device: str = "cuda:0") -> dict[str, bool]:
    """Whether cuDNN's convolution + bias (+ sum) + ReLU is used in each precision: where it gives what ops
    one by one give.
    """
    import torch

    from cfol_fast.frozen import cudnn

    return {str(dtype): cudnn.fuses(torch.device(device), dtype) for dtype in cudnn.TOLERANCE}


# What the report has beside the tests: its name there -> what finds it.
PARTS: dict[str, Callable[[], Any]] = {
    "benchmark": lambda: measure("cuda"),
    "fused_convolutions": fused_convolutions,
    "graph": compare_graph,
}


def main() -> int:
    try:
        return check(Path("gpu-report.json"), doctor.examine())
    except InputError as error:
        print(f"gpu_check: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
