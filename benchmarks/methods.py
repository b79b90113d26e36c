"""What a method costs over its base: a whole step of every row of the table against a step of ERM, or of
TRADES.

The base of a row is the plain training with the same attack. And what the moving average of the weights
costs, after every step.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.rows import Row, at_most, main
from benchmarks.steps import RESNET, OurStep, tiny_of
from benchmarks.timing import interleaved
from cfol_fast.methods import METHODS

# A step of any row may cost this much of its base's step.
MOST = 1.03
BASES = ("erm", "trades")


def measure(tiny: bool) -> list[Row]:
    problem = tiny_of(RESNET) if tiny else replace(RESNET, batch=32)
    rows = []
    # One base at a time, so that a step is timed close to those that it is compared with.
    for base in BASES:
        group = [name for name in METHODS if name != base and METHODS[name].attack == METHODS[base].attack]
        steps = {name: OurStep(problem, name) for name in (base, *group)}
        averaged = f"{base} with ema"
        steps[averaged] = OurStep(problem, base, decay=0.999)
        timings = interleaved(steps, 2 if tiny else 5)
        rows += [
            at_most(
                f"a step of {name}, ResNet-18, batch {problem.batch}",
                f"a step of {base}",
                timings[name].best / timings[base].best,
                MOST,
                f"whole steps, interleaved; medians {timings[name].median / timings[base].median:.2f}x, CPU"
                f" {timings[name].cpu_best / timings[base].cpu_best:.2f}x, {len(timings[name].wall)}"
                " repetitions",
                timings[name].best,
                timings[base].best,
            )
            for name in (*group, averaged)
        ]
    return rows


if __name__ == "__main__":
    main(measure)
