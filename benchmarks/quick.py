"""`make bench-quick`: the five main questions in about two minutes, for contributors.

It prints, writes nothing and needs no peers.

The peer is plain eager PyTorch in its faster layout; fewer and smaller samples than `make bench`, so trust no
second digit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from benchmarks import class_bandit, peers
from benchmarks.machine import cpu_model, instructions
from benchmarks.pgd import FORMATS, TARGETS
from benchmarks.rows import Row, at_most, faster, main
from benchmarks.steps import DEMO, RESNET, OurStep, Problem, bandit_only, bare_passes, tiny_of
from benchmarks.timing import THREADS, interleaved
from cfol_fast import PGD


def measure(tiny: bool) -> list[Row]:
    print(f"{cpu_model()}, {instructions()}, {THREADS} threads")
    resnet, demo = TARGETS.get(instructions(), (None, None))
    problem = tiny_of(RESNET) if tiny else replace(RESNET, batch=32, images=1000)
    return [
        attack("PGD-7, ResNet-18", problem, resnet, 2 if tiny else 4),
        attack("PGD-7, demo network", tiny_of(DEMO) if tiny else DEMO, demo, 2 if tiny else 11),
        *step(problem, tiny),
        bandit(tiny),
    ]


def attack(name: str, problem: Problem, target: float | None, repetitions: int) -> Row:
    model, (x, y) = problem.model(), problem.batch_of()
    ours = PGD(model.train(), eps=problem.eps, step=problem.eps / 4, steps=problem.steps)
    calls: dict[str, Callable[[], object]] = {"ours": partial(ours, x, y)}
    for layout, memory_format in FORMATS.items():
        other = copy.deepcopy(model).eval().requires_grad_(False).to(memory_format=memory_format)  # type: ignore[call-overload]
        theirs = peers.plain_pgd(other, problem.eps, problem.eps / 4, problem.steps)
        calls[layout] = partial(theirs, x.contiguous(memory_format=memory_format), y)
    timings = interleaved(calls, repetitions)
    best = min(FORMATS, key=lambda layout: timings[layout].best)
    title = f"{name}, batch {problem.batch}"
    return faster(title, peers.EAGER, timings["ours"], timings[best], target, f"theirs {best}")


def step(problem: Problem, tiny: bool) -> list[Row]:
    cfol = OurStep(problem)
    timings = interleaved({"ours": cfol, "bare": bare_passes(problem)}, 2 if tiny else 4)
    title = f"whole CFOL-AT step, ResNet-18, batch {problem.batch}"
    alone = interleaved({"bandit": bandit_only(cfol, problem.batch)}, 3, at_least=0.0 if tiny else 0.02)
    share = alone["bandit"].best / timings["ours"].best
    return [
        faster(title, "the bare passes", timings["ours"], timings["bare"], 1.15),
        at_most(
            "what CFOL costs: draw + update", "the whole step", share, 0.005, "the bandit alone, by the step"
        ),
    ]


def bandit(tiny: bool) -> Row:
    calls = {who: call for who, call in class_bandit.contestants(10).items() if who in ("ours", "torch")}
    timings = interleaved(calls, 2 if tiny else 9, at_least=0.0 if tiny else 0.02)
    title = f"class bandit, draw + update of {class_bandit.BATCH}, k = 10"
    return faster(title, "batched in torch", timings["ours"], timings["torch"], 2)


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    main(measure)
