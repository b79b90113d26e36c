"""What a method beyond the paper costs over its base: a whole step of each row against a step of ERM, or of TRADES.

And what the moving average of the weights costs, after every step.
"""

from __future__ import annotations

from benchmarks.rows import Row, at_most, main
from benchmarks.steps import OurStep, Problem
from benchmarks.timing import interleaved
from cfol_fast.methods import METHODS

# A step of any row may cost this much of its base's step.
MOST = 1.03
AFTER = "group-dro"


def measure(tiny: bool) -> list[Row]:
    problem = Problem("resnet18@0.125", batch=4, images=100, steps=2) if tiny else Problem()
    names = list(METHODS)
    beyond = names[names.index(AFTER) + 1 :]
    rows = []
    # One base at a time, so that a step is timed close to those that it is compared with.
    for base in ("erm", "trades"):
        group = [name for name in beyond if METHODS[name].attack == METHODS[base].attack]
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
                "whole steps, interleaved",
                timings[name].best,
                timings[base].best,
            )
            for name in (*group, averaged)
        ]
    return rows


if __name__ == "__main__":
    main(measure)
