"""A whole CFOL-AT step on ResNet-18 against an expert's own step and against the bare passes it must do, and
what CFOL costs over ERM.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks import instructions
from benchmarks.machine import instructions as instruction_set
from benchmarks.pgd import FORMATS
from benchmarks.rows import Row, at_most, faster, main, seconds
from benchmarks.steps import RESNET, ExpertStep, OurStep, Problem, bandit_only, bare_passes, tiny_of
from benchmarks.timing import Call, interleaved, winner

# The share of a step that CFOL may cost.
SHARE = 0.005


def measure(tiny: bool) -> list[Row]:
    problem = tiny_of(RESNET) if tiny else RESNET
    cfol, erm = OurStep(problem), OurStep(problem, "erm")
    experts = {layout: ExpertStep(problem, memory_format=FORMATS[layout]) for layout in FORMATS}
    layout = winner(experts, 1 if tiny else 3)
    calls: dict[str, Call] = {
        "cfol": cfol,
        "bare": bare_passes(problem),
        "erm": erm,
        "expert": experts[layout],
    }
    timings = interleaved(calls, 2 if tiny else 5)
    name = f"whole CFOL-AT step, ResNet-18, batch {problem.batch}"
    passes = (
        f"bare passes: {problem.steps} x (forward + input backward) + 1 x (forward + backward), eager,"
        " contiguous"
    )
    expert = "plain PyTorch, images in memory, BatchNorm folded for the attack"
    target = {"AVX-512": 1.45}.get(instruction_set())
    rows = [
        faster(name, expert, timings["cfol"], timings["expert"], target, f"theirs {layout}"),
        faster(name, passes, timings["cfol"], timings["bare"], 1.15),
    ]
    rows.append(cost(problem, cfol, erm, timings["cfol"].best, timings["erm"].best, tiny))
    small = replace(problem, network="demo-cnn", batch=4 if tiny else 128)
    cfol, erm = OurStep(small), OurStep(small, "erm")
    timings = interleaved({"cfol": cfol, "erm": erm}, 2 if tiny else 15)
    return [*rows, cost(small, cfol, erm, timings["cfol"].best, timings["erm"].best, tiny)]


def cost(problem: Problem, cfol: OurStep, erm: OurStep, step: float, erm_step: float, tiny: bool) -> Row:
    """All of CFOL's sampling as a share of the step.

    It is measured alone: two timings of a whole step differ by more.
    """
    parts = {"cfol": bandit_only(cfol, problem.batch), "erm": bandit_only(erm, problem.batch)}
    timings = interleaved(parts, 2 if tiny else 9, at_least=0.0 if tiny else 0.02)
    counted = instructions.draw_and_update(tiny) if problem.network == "demo-cnn" else ""
    note = (
        f"ours: draw + update, theirs: the step; the uniform sampler takes {seconds(timings['erm'].best)}"
        f" itself; whole steps: CFOL {seconds(step)}, ERM {seconds(erm_step)}{counted}"
    )
    return at_most(
        f"what CFOL costs over ERM: its draw + update, {problem.network}, batch {problem.batch}",
        "the whole ERM step",
        timings["cfol"].best / erm_step,
        SHARE,
        note,
        timings["cfol"].best,
        erm_step,
    )


if __name__ == "__main__":
    main(measure)
