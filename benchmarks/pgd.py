"""PGD-7 against every attack library: on ResNet-18 with CIFAR's shape, and on the demo's network."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks import peers
from benchmarks.machine import instructions
from benchmarks.rows import FASTEST, LIBRARY, Row, faster, main
from benchmarks.steps import DEMO, RESNET, Problem, tiny_of
from benchmarks.timing import interleaved, winner
from cfol_fast import PGD

FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


# Instruction set: the target against the fastest peer, for ResNet-18 and for the demo network.
TARGETS = {"AVX-512": (1.5, 1.25), "AVX2": (1.3, 1.15)}


def measure(tiny: bool) -> list[Row]:
    resnet, demo = TARGETS.get(instructions(), (None, None))
    return [
        *question("PGD-7, ResNet-18", RESNET, 4, resnet, tiny),
        *question("PGD-7, demo network", DEMO, 11, demo, tiny),
    ]


def question(
    name: str,
    problem: Problem,
    repetitions: int,
    target: float | None,
    tiny: bool,
    dtype: torch.dtype | None = None,
) -> list[Row]:
    """dtype: bfloat16 for ours in bfloat16, and theirs under autocast."""
    problem = replace(tiny_of(problem), steps=7) if tiny else problem
    model, (x, y) = problem.model(), problem.batch_of()
    found = best_formats(
        peers.InBfloat16(model) if dtype else model, x, y, problem.eps, problem.eps / 4, tiny
    )
    ours = PGD(model.train(), eps=problem.eps, step=problem.eps / 4, steps=7, dtype=dtype)
    calls: dict[str, Callable[[], object]] = {"ours": lambda: ours(x, y)}
    timings = interleaved(
        {**calls, **{peer: call for peer, (call, _) in found.items()}}, 2 if tiny else repetitions
    )
    marks = marked({peer: timings[peer].best for peer in found})
    return [
        faster(
            f"{name}, batch {problem.batch}",
            peer + marks.get(peer, ""),
            timings["ours"],
            timings[peer],
            target,
            f"theirs {layout}",
        )
        for peer, (_, layout) in found.items()
    ]


def marked(seconds: dict[str, float]) -> dict[str, str]:
    """What follows the name of the fastest of all, and of the fastest attack library where it is another."""
    fastest = min(seconds, key=seconds.__getitem__)
    libraries = {peer: time for peer, time in seconds.items() if peer not in peers.EXPERTS}
    marks = {min(libraries, key=libraries.__getitem__): LIBRARY} if libraries else {}
    return {**marks, fastest: FASTEST}


def best_formats(
    model: nn.Module, x: Tensor, y: Tensor, eps: float, step: float, tiny: bool
) -> dict[str, tuple[Callable[[], object], str]]:
    """Each peer's call in the memory format that is faster for it: the best of three calls of each."""
    calls: dict[tuple[str, str], Callable[[], object]] = {}
    for layout, memory_format in FORMATS.items():
        copied = copy.deepcopy(model).to(memory_format=memory_format)  # type: ignore[call-overload]
        images = x.contiguous(memory_format=memory_format)
        attacks = peers.pgd_attacks(copied, eps, step, 7, tuple(x.shape[1:]), 10, tiny)
        for peer, attack in attacks.items():
            calls[peer, layout] = partial(attack, images, y)
    best: dict[str, tuple[Callable[[], object], str]] = {}
    for peer in dict.fromkeys(peer for peer, _ in calls):
        layout = winner({layout: calls[peer, layout] for layout in FORMATS}, 1 if tiny else 3)
        best[peer] = (calls[peer, layout], layout)
    return best


if __name__ == "__main__":
    main(measure)
