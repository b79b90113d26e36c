"""What it costs to compare the Python state of a model with what an attack remembers of it: against the whole
attack, in the same run.
"""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.rows import Row, at_most, main
from benchmarks.steps import DEMO, RESNET, tiny_of
from benchmarks.timing import interleaved
from cfol_fast import PGD
from cfol_fast.frozen import fingerprint, named

# A share of the attack.
MOST = 0.002


def measure(tiny: bool) -> list[Row]:
    rows = []
    for problem in (DEMO, RESNET):
        problem = tiny_of(problem) if tiny else problem
        model = problem.model().eval()
        x = torch.rand(problem.batch, problem.channels, problem.side, problem.side)
        y = torch.arange(problem.batch) % problem.classes
        attack = PGD(model, problem.eps, steps=problem.steps)
        # Proofs are made at the first calls.
        for _ in range(2):
            attack(x, y)
        contestants = {
            "attack": partial(attack, x, y),
            "fingerprint": partial(fingerprint, model, named(model)),
        }
        found = interleaved(contestants, 3 if tiny else 15)
        share = found["fingerprint"].best / found["attack"].best
        name = f"a fingerprint of {problem.network}"
        note = f"{len(fingerprint(model))} values; the minimum of each"
        against = f"PGD-{problem.steps}, batch {problem.batch}"
        ours, theirs = found["fingerprint"].best, found["attack"].best
        rows.append(at_most(name, against, share, MOST, note, ours, theirs))
    return rows


if __name__ == "__main__":
    main(measure)
