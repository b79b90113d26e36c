"""The step and the attack on a GPU: synchronised, eager and with `--compile`, and the peak memory.

Without a GPU there are no rows.

Written without a GPU at hand: until a results file with these rows exists, nothing here has been measured.
"""

from __future__ import annotations

import copy
import gc
from dataclasses import replace

import torch

from benchmarks import peers
from benchmarks.memory import CONTESTANTS
from benchmarks.rows import Row, at_most, faster, main
from benchmarks.steps import OurStep, Problem, UsualStep, bandit_only, bare_passes
from benchmarks.timing import Call, interleaved
from cfol_fast import PGD


def measure(tiny: bool) -> list[Row]:
    if not torch.cuda.is_available():
        return []
    problem = Problem(batch=128, device="cuda")
    if tiny:
        problem = replace(problem, network="resnet18@0.125", batch=4, images=100, steps=2)
    return attack(problem, tiny) + step(problem, tiny) + memory(problem)


def attack(problem: Problem, tiny: bool) -> list[Row]:
    model = problem.model()
    x, y = problem.batch_of(torch.channels_last)
    ours = PGD(model, eps=problem.eps, step=problem.eps / 4, steps=problem.steps)
    other = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    make = peers.torchattacks_pgd if peers.require(("torchattacks",), tiny) else peers.plain_pgd
    theirs = make(other.eval().requires_grad_(False), problem.eps, problem.eps / 4, problem.steps)
    timings = interleaved({"ours": lambda: ours(x, y), "theirs": lambda: theirs(x, y)}, 20, warm_up=3)
    name = f"GPU: PGD-{problem.steps}, ResNet-18, batch {problem.batch}"
    return [faster(name, "torchattacks, channels_last", timings["ours"], timings["theirs"], 1.25)]


def step(problem: Problem, tiny: bool) -> list[Row]:
    cfol, erm = OurStep(problem), OurStep(problem, "erm")
    calls: dict[str, Call] = {
        "ours": cfol,
        "erm": erm,
        "bare": bare_passes(problem),
        "usual": UsualStep(problem),
    }
    if not tiny:
        calls["compiled"] = OurStep(problem, compile=True)
    calls["draw + update"] = bandit_only(cfol, problem.batch)
    timings = interleaved(calls, 20, warm_up=3)
    rows = []
    for who, label in (("ours", "eager"), ("compiled", "--compile")):
        if who in timings:
            name = f"GPU: whole CFOL-AT step, ResNet-18, batch {problem.batch}, {label}"
            rows.append(faster(name, "the bare passes", timings[who], timings["bare"], 1.15))
            rows.append(faster(name, "the usual way", timings[who], timings["usual"]))
    share = timings["draw + update"].best / timings["erm"].best
    rows.append(
        at_most("GPU: what CFOL costs over ERM", "the ERM step", share, 0.005, "draw + update, synchronised")
    )
    return rows


def memory(problem: Problem) -> list[Row]:
    peaks = {}
    for name, make in CONTESTANTS.items():
        # What the contestant before held is no part of this one's.
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        one = make(problem)
        # The first step makes the momentum, after its own peak.
        for _ in range(2):
            one()
        peaks[name] = torch.cuda.max_memory_allocated() - before
        del one
    ours, bare = peaks["ours"], peaks["bare"]
    note = (
        f"{ours / 2**20:,.0f} MiB against {bare / 2**20:,.0f} MiB; both with momentum, ours holds"
        f" {problem.images:,} images, too"
    )
    return [at_most("GPU: peak memory of the step", "the bare passes with momentum", ours / bare, 1.0, note)]


if __name__ == "__main__":
    main(measure)
