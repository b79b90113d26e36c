"""How long a user waits before anything happens: importing the package, the help, and `train` until its first
step is done.

Every contestant is a process of its own, from its start to its end. Of the first step and what it is compared
with the end is left out,
on both sides: nobody waits for torch to be taken down before a step.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.rows import Row, at_most, main
from benchmarks.timing import Timing, interleaved

ROOT = Path(__file__).parent.parent
IMAGES = str(ROOT / "cfol_fast" / "data" / "embedded" / "fashion_mini.npz")
NOTHING, IMPORT, HELP, READ, FIRST = "nothing", "import", "help", "read", "first step"
# What `cfol-fast --help` runs; it says whether torch was loaded for it.
SHOW_HELP = """
import contextlib, io, sys
from cfol_fast.commands.main import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main(["--help"])
print("torch" in sys.modules)
"""
# Reading by numpy alone, so that no code of ours is on this side; left as soon as it is done, as TRAIN is.
READ_DATA = """
import os, sys
import torch
import numpy
with numpy.load(sys.argv[1]) as file:
    images = [torch.from_numpy(file[name]) for name in file.files]
os._exit(0)
"""
# The command itself, left as soon as its first step is done.
TRAIN = """
import os, sys
from cfol_fast.commands.main import main
from cfol_fast.training.step import Step
step = Step.__call__
def first(self, batches):
    step(self, batches)
    os._exit(0)
Step.__call__ = first
main(["train", "cfol", "--dataset=fashion-mini", "--device=cpu", "--quiet", "--out=" + sys.argv[1]])
os._exit(1)
"""


def run(*command: str) -> str:
    ended = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True, cwd=ROOT)
    return ended.stdout.strip()


def measure(tiny: bool) -> list[Row]:
    loads_torch = run("-c", SHOW_HELP) == "True"
    with tempfile.TemporaryDirectory() as folder:
        runs = iter(range(10**6))
        calls = {
            NOTHING: lambda: run("-c", "pass"),
            IMPORT: lambda: run("-c", "import cfol_fast"),
            HELP: lambda: run("-m", "cfol_fast", "--help"),
            READ: lambda: run("-c", READ_DATA, IMAGES),
            FIRST: lambda: run("-c", TRAIN, f"{folder}/{next(runs)}"),
        }
        timings = interleaved(calls, 1 if tiny else 7, warm_up=0 if tiny else 1)
    nothing, read = "`python -c pass`", "`import torch` and reading the same images with numpy"
    torch_or_not = f"torch is {'' if loads_torch else 'not '}loaded for it"
    return [
        row("start-up: `import cfol_fast`", nothing, timings[IMPORT], timings[NOTHING], 3),
        row("start-up: `cfol-fast --help`", nothing, timings[HELP], timings[NOTHING], 3, torch_or_not),
        row(
            "start-up: `cfol-fast train` to the end of its first step",
            read,
            timings[FIRST],
            timings[READ],
            1.5,
            "both processes are left by os._exit, without taking torch down",
        ),
    ]


def row(name: str, against: str, ours: Timing, theirs: Timing, target: float, note: str = "") -> Row:
    facts = (
        f"medians {ours.median / theirs.median:.2f}x, CPU {ours.cpu_best / theirs.cpu_best:.2f}x, "
        f"{len(ours.wall)} repetitions"
    )
    told = "; ".join(filter(None, (note, facts)))
    return at_most(name, against, ours.best / theirs.best, target, told, ours.best, theirs.best)


if __name__ == "__main__":
    main(measure)
