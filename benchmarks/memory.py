"""Peak memory of a step, ours and the bare passes: each in a process of its own, above what that process had
after importing.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from json import dumps, loads
from pathlib import Path

import torch

from benchmarks.rows import Row, at_most, main
from benchmarks.steps import OurStep, Problem, bare_passes
from benchmarks.timing import THREADS

CONTESTANTS: dict[str, Callable[[Problem], Callable[[], None]]] = {
    "ours": OurStep,
    "bare": partial(bare_passes, momentum=True),
}


def measure(tiny: bool) -> list[Row]:
    problem = (
        Problem("resnet18@0.125", batch=4, images=100, steps=2)
        if tiny
        else Problem(batch=128, images=1000, steps=1)
    )
    # In turns, and the median: the same calls need up to a tenth more or less memory from one process to the
    # next.
    peaks = [[peak_of(name, problem) for name in CONTESTANTS] for _ in range(1 if tiny else 5)]
    ours, bare = (statistics.median(each) for each in zip(*peaks, strict=True))
    note = (
        f"{ours / 2**20:,.0f} MiB against {bare / 2**20:,.0f} MiB beyond the imports, medians of {len(peaks)}"
        f" processes; both with momentum, ours holds {problem.images:,} images, too (50,000 of this size"
        " would be 146 MiB); the number of PGD steps does not matter"
    )
    name = f"peak memory of the step, ResNet-18, batch {problem.batch}, {problem.images:,} resident images"
    return [at_most(name, "the bare passes with momentum", ours / bare, 1.0, note)]


def peak_of(contestant: str, problem: Problem) -> int:
    command = [sys.executable, "-m", "benchmarks.memory", "--child", contestant, dumps(asdict(problem))]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def child(contestant: str, problem: Problem) -> None:
    """Prints the bytes that two steps need at their peak."""
    torch.set_num_threads(THREADS)
    torch.rand(64, 64) @ torch.rand(64, 64)
    # Resets the process's recorded peak.
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    step = CONTESTANTS[contestant](problem)
    for _ in range(2):
        step()
    print(peak() - before)


def peak() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(sys.argv[2], Problem(**loads(sys.argv[3])))
    else:
        main(measure)
