"""How many instructions a draw and an update of the class bandit take, counted by callgrind: exact, and the
same on a busy machine.

`python -m benchmarks.instructions` prints the counts. Only the calls are counted, Python and torch's
dispatcher included; importing torch happens before the counting starts.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SWITCH = """
#include <valgrind/callgrind.h>
extern "C" void start() { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
extern "C" void dump(const char* name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_ZERO_STATS; }
"""
CALLS = 50


def draw_and_update(tiny: bool) -> str:
    """For a row's note: the count, or why there is none."""
    if tiny:
        return ""
    if not (
        shutil.which("valgrind")
        and shutil.which("g++")
        and Path("/usr/include/valgrind/callgrind.h").exists()
    ):
        return "; instructions not counted: valgrind and its headers are not installed"
    counts = count()
    return f"; callgrind: {counts['cfol']:,} instructions (uniform: {counts['uniform']:,}), Python included"


def count() -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder:
        switch = Path(folder) / "switch.so"
        source = switch.with_suffix(".cpp")
        source.write_text(SWITCH)
        subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-o", switch, source], check=True)
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out"]
        command += [sys.executable, "-m", "benchmarks.instructions", "--under-callgrind", str(switch)]
        alone = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        subprocess.run(command, check=True, env=alone, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = {}
        for part in Path(folder).glob("out.*"):
            text = part.read_text(errors="replace")
            name = re.search(r"^desc: Trigger: Client Request: (\w+)", text, re.M)
            total = re.search(r"^(?:summary|totals): (\d+)", text, re.M)
            if name and total:
                found[name[1]] = int(total[1]) // CALLS
        return found


def counted(switch: str) -> None:
    """The part that runs under callgrind."""
    import torch

    from cfol_fast import ClassSampler
    from cfol_fast.sampling import IndexSampler
    from cfol_fast.sampling.fixed import UniformSampler

    library = ctypes.CDLL(switch)
    labels, y = torch.arange(50_000) % 10, torch.arange(128) % 10
    loss = (torch.arange(128) % 2).float()

    def call(sampler: IndexSampler) -> None:
        sampler.observe(sampler.draw(128), y, loss, sampler.ticket())

    samplers = {"cfol": ClassSampler(labels), "uniform": UniformSampler(50_000)}
    for sampler in samplers.values():
        call(sampler)
    library.start()
    for name, sampler in samplers.items():
        # Valgrind translates the code at the first call, which is not counted.
        call(sampler)
        library.dump(b"nothing")
        for _ in range(CALLS):
            call(sampler)
        library.dump(name.encode())


if __name__ == "__main__":
    if "--under-callgrind" in sys.argv:
        counted(sys.argv[-1])
    else:
        print(count())
