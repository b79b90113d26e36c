"""`cfol-fast doctor --gpu`: runs every test marked `gpu` and a short benchmark, and writes gpu-report.json to send back.

The kernels were written on machines without a GPU; a report from a machine that has one tells whether they work there.
"""

from __future__ import annotations

import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from cfol_fast import atomic
from cfol_fast.errors import InputError

FORMAT = 1


def check(report: Path, findings: dict[str, Any]) -> int:
    """Runs the self-test and writes the report; 0 when all passed."""
    trouble = findings["cuda"]["trouble"]
    if trouble is not None:
        raise InputError(f"no GPU to check: {trouble}")
    return _check_on_gpu(report, findings)  # pragma: no cover


def test_folder() -> Path:
    """The tests live in the repository, not in the wheel."""
    folder = Path(__file__).resolve().parents[2] / "tests"
    if not (folder / "gpu").is_dir():
        raise InputError("the GPU self-test runs from a checkout of the repository: make test-gpu")
    return folder


def _check_on_gpu(report: Path, findings: dict[str, Any]) -> int:  # pragma: no cover
    # An absolute path, since pytest runs in the checkout and not where this was called.
    results = report.with_suffix(".xml").resolve()
    command = [sys.executable, "-m", "pytest", str(test_folder()), "-m", "gpu", "-q", f"--junitxml={results}"]
    print("running every test marked gpu ...", flush=True)
    status = subprocess.run(command, cwd=test_folder().parent).returncode
    tests = read_results(results)
    print("measuring ...", flush=True)
    outcome = {
        "format": FORMAT,
        "passed": status == 0,
        **findings,
        "tests": tests,
        "benchmark": measure("cuda"),
    }
    atomic.write_json(report, outcome)
    print(
        f"{len(tests)} tests, {sum(t['outcome'] != 'passed' for t in tests)} not passed; wrote {report}: please send it back"
    )
    return 0 if status == 0 else 1


def read_results(path: Path) -> list[dict[str, Any]]:
    """The tests of a JUnit file: name, outcome, and the message where one failed."""
    rows = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        bad = next(
            (case.find(kind) for kind in ("failure", "error", "skipped") if case.find(kind) is not None), None
        )
        row: dict[str, Any] = {"name": f"{case.get('classname')}::{case.get('name')}"}
        row["outcome"] = "passed" if bad is None else bad.tag
        if bad is not None:
            row["message"] = (bad.get("message") or "")[:2000]
        rows.append(row)
    return rows


def measure(device: str, seconds: float = 3.0) -> dict[str, float]:
    """Microseconds of the ops that a training step adds to the network's passes, and images/s of PGD-7 on a ResNet-18."""
    import torch

    from cfol_fast import PGD, ClassSampler, models, ops

    def settle() -> None:
        if device == "cuda":  # pragma: no cover
            torch.cuda.synchronize()

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

    x = torch.rand(128, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
    y = torch.arange(128, device=device) % 10
    adv, grad, wrong = x.clone(), x - 0.5, (y == 0).float()
    sampler = ClassSampler(torch.arange(50000) % 10, device=device)

    def bandit() -> None:
        sampler.draw(128)
        sampler.update(y, wrong)

    model = models.create("resnet18", num_classes=10).to(device)
    attack = PGD(model, eps=8 / 255, step=2 / 255, steps=7)
    return {
        "pgd_step_microseconds": 1e6 * per_call(lambda: ops.pgd_step_(adv, x, grad, 2 / 255, 8 / 255)),
        "draw_and_update_microseconds": 1e6 * per_call(bandit),
        "pgd7_resnet18_images_per_second": 128 / per_call(lambda: attack(x, y)),
    }
