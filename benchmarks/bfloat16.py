"""The attack and the whole step in bfloat16, against the peers under autocast.

A processor without bfloat16 is told so instead.
"""

from __future__ import annotations

import torch

from benchmarks.machine import cpu_model
from benchmarks.peers import InBfloat16
from benchmarks.pgd import FORMATS, question
from benchmarks.rows import AT_LEAST, Row, faster, main, not_asked
from benchmarks.settings import limits
from benchmarks.steps import DEMO, RESNET, OurStep, Problem, UsualStep, tiny_of
from benchmarks.timing import Call, interleaved, winner
from cfol_fast.cpu_features import cpu_flags
from cfol_fast.machine import bfloat16_trouble

TARGET = 1.5
# Linux's names on x86 and on Arm.
INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16")
ATTACKS = {"PGD-7 in bfloat16, ResNet-18": (RESNET, 4), "PGD-7 in bfloat16, demo network": (DEMO, 11)}
STEP, USUAL = "whole CFOL-AT step in bfloat16, ResNet-18", "the usual way under autocast"


def why_not() -> str | None:
    """Why bfloat16 is not measured here, or None. oneDNN emulates it where the processor has none, more
    slowly than float32.
    """
    if limits():
        return "this run is limited to AVX2, which has no bfloat16"
    if not cpu_flags() & set(INSTRUCTIONS):
        return f"{cpu_model()} has no bfloat16 instructions ({', '.join(INSTRUCTIONS[:2])})"
    return bfloat16_trouble(torch.device("cpu"))


def measure(tiny: bool) -> list[Row]:
    why = why_not()
    if why is not None and (not tiny or bfloat16_trouble(torch.device("cpu"))):
        attacks = [
            (name, problem, "the fastest peer under autocast") for name, (problem, _) in ATTACKS.items()
        ]
        asked = [
            (f"{name}, batch {problem.batch}", against)
            for name, problem, against in (*attacks, (STEP, RESNET, USUAL))
        ]
        return [not_asked(name, against, f"{AT_LEAST} {TARGET:g}", why) for name, against in asked]
    rows = []
    for name, (problem, repetitions) in ATTACKS.items():
        rows += question(name, problem, repetitions, TARGET, tiny, torch.bfloat16)
    return [*rows, step(tiny)]


def usual_step(problem: Problem) -> tuple[str, UsualStep]:
    """The usual step under autocast, in the layout that wins."""
    ways = {layout: UsualStep(problem) for layout in FORMATS}
    for layout, way in ways.items():
        way.use(InBfloat16(problem.model()), FORMATS[layout])
    best = winner(ways, 3)
    return best, ways[best]


def step(tiny: bool) -> Row:
    problem = tiny_of(RESNET) if tiny else RESNET
    best, usual = usual_step(problem)
    calls: dict[str, Call] = {"ours": OurStep(problem, precision="bfloat16"), "usual": usual}
    timings = interleaved(calls, 2 if tiny else 5)
    name = f"{STEP}, batch {problem.batch}"
    return faster(name, USUAL, timings["ours"], timings["usual"], TARGET, f"theirs {best}")


if __name__ == "__main__":
    main(measure)
