"""Timing contestants against each other: in turns, so that whatever else the machine does affects all of them
alike.

Warm-up is outside the timing. A sample is one call or, for what is too short to time, as many calls as fill
`at_least` seconds. Each contestant has its minimum (the machine at its quietest) and its median; CPU time is
that of all threads of this process and of the children that have ended.
"""

from __future__ import annotations

import gc
import os
import resource
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch

Call = Callable[[], object]
Name = TypeVar("Name", bound=Hashable)
THREADS = int(os.environ.get("OMP_NUM_THREADS", 0)) or len(os.sched_getaffinity(0))


@dataclass
class Timing:
    """Seconds of one call, one entry per repetition."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        return min(self.wall)

    @property
    def median(self) -> float:
        return statistics.median(self.wall)

    @property
    def cpu_best(self) -> float:
        return min(self.cpu)


def cpu_seconds() -> float:
    return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def synchronize() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def interleaved(
    contestants: Mapping[Name, Call], repetitions: int, at_least: float = 0.0, warm_up: int = 1
) -> dict[Name, Timing]:
    """Every contestant once per repetition, each time beginning with another one."""
    torch.set_num_threads(THREADS)
    names = list(contestants)
    calls = {name: _prepared(contestants[name], at_least, warm_up) for name in names}
    timings = {name: Timing() for name in names}
    gc.collect()
    gc.disable()
    try:
        for repetition in range(repetitions):
            shift = repetition % len(names)
            for name in names[shift:] + names[:shift]:
                wall, cpu = sample(contestants[name], calls[name])
                timings[name].wall.append(wall)
                timings[name].cpu.append(cpu)
            gc.collect()
    finally:
        gc.enable()
    return timings


def winner(contestants: Mapping[Name, Call], repetitions: int = 1, warm_up: int = 1) -> Name:
    """The fastest of a race: which layout or how many workers a peer gets in the measurement."""
    race = interleaved(contestants, repetitions, warm_up=warm_up)
    return min(race, key=lambda name: race[name].best)


def sample(call: Call, times: int = 1) -> tuple[float, float]:
    """(wall, CPU) seconds of one call, averaged over `times`."""
    synchronize()
    cpu, wall = cpu_seconds(), time.perf_counter()
    for _ in range(times):
        call()
    synchronize()
    return (time.perf_counter() - wall) / times, (cpu_seconds() - cpu) / times


def _prepared(call: Call, at_least: float, warm_up: int) -> int:
    """Warms up and says how many calls make a sample."""
    for _ in range(warm_up):
        call()
    if at_least == 0.0:
        return 1
    times = 1
    while (seconds := sample(call, times)[0] * times) < at_least:
        times = max(2 * times, int(times * at_least / max(seconds, 1e-7)))
    return times
