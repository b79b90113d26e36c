"""Many processes: a step on two of one thread each against one of two threads, what the bandit sends, and
what a draw costs a rank.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from benchmarks.rows import Row, at_most, main, seconds
from benchmarks.scaling import exponent
from benchmarks.steps import DEMO, RESNET, OurStep, Problem, tiny_of
from benchmarks.timing import interleaved
from cfol_fast import ClassSampler, ExampleSampler
from cfol_fast.ranks import Ranks

PROCESSES = 2
# The issue's: two processes of one thread may take so much longer than one process of two.
SLOWER = 1.1
# The share of what is sent, and of a step's time, that the bandit may take.
SHARE = 0.005
# What each rank draws: the batch of the step that the draw is compared with.
EACH = DEMO.batch
SAMPLERS: dict[str, Callable[..., Any]] = {
    "class bandit, k = 10": lambda **place: ClassSampler(torch.arange(50_000) % 10, **place),
    "class bandit, k = 1,000": lambda **place: ClassSampler(torch.arange(50_000) % 1000, **place),
    "example bandit, N = 50,000": lambda **place: ExampleSampler(50_000, **place),
}


class TwoProcesses:
    """Two ranks of one thread each, with a trainer; calling it takes one step on both.

    They sleep while nobody calls.
    """

    def __init__(self, problem: Problem) -> None:
        self._open = ExitStack()
        folder = self._open.enter_context(tempfile.TemporaryDirectory())
        context, self._pipes, self._processes = multiprocessing.get_context("spawn"), [], []
        for rank in range(PROCESSES):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(rank, folder, problem, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> TwoProcesses:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join()
        self._open.close()

    def __call__(self) -> Any:
        return self.ask("step")

    def ask(self, what: str) -> Any:
        """Lets both do it, and returns what the first found."""
        for pipe in self._pipes:
            pipe.send(what)
        answers = [pipe.recv() for pipe in self._pipes]
        return answers[0]


def serve(rank: int, folder: str, problem: Problem, pipe: Connection) -> None:
    """One of the two processes: does what it is asked until it is asked for nothing."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=PROCESSES)
    step = OurStep(problem)
    # As the training loop does before its first step: otherwise both would race at the same time, for the
    # same cores.
    step.trainer.step.begin()

    def whole_step() -> None:
        step()
        # What the training loop does after a step.
        step.trainer.agreement.reach()

    work = {"step": whole_step, "bandit": lambda: bandit(step), "gradients": lambda: gradients(step)}
    while (asked := pipe.recv()) is not None:
        pipe.send(work[asked]())
    dist.destroy_process_group()


class CountingRanks(Ranks):
    """Counts the bytes that a rank sends, and the seconds until they have arrived everywhere."""

    sent, seconds = 0, 0.0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        dist.barrier()
        self.sent += values.nbytes
        began = time.perf_counter()
        values = super().sum(values)
        self.seconds += time.perf_counter() - began
        return values


def bandit(step: OurStep) -> tuple[int, float]:
    """(bytes, seconds) of one update: the ranks are together when it begins, so that none waits for another's
    step.
    """
    sampler, labels = step.trainer.step.sampler, step.images.labels
    before, sampler.ranks = sampler.ranks, CountingRanks(dist.get_rank(), PROCESSES)
    idx = sampler.draw(8)
    sampler.observe(idx, labels[idx], torch.ones(8), sampler.ticket())
    counted, sampler.ranks = sampler.ranks, before
    return counted.sent, counted.seconds


def gradients(step: OurStep) -> tuple[int, float]:
    """(bytes, seconds) of what DistributedDataParallel sends in a step: all gradients, once."""
    whole = torch.cat([p.detach().flatten() for p in step.trainer.step.model.parameters()])
    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(whole)
    return whole.nbytes, time.perf_counter() - began


def measure(tiny: bool) -> list[Row]:
    problem = tiny_of(RESNET) if tiny else RESNET
    return [*steps_and_share(problem, tiny), *draws(tiny)]


def steps_and_share(problem: Problem, tiny: bool) -> list[Row]:
    step = OurStep(problem)

    def one() -> None:
        torch.set_num_threads(PROCESSES)
        step()

    with TwoProcesses(problem) as two:
        timings = interleaved({"one": one, "two": two}, 2 if tiny else 5)
        repetitions = 3 if tiny else 50
        sent, arrived = min(two.ask("bandit") for _ in range(repetitions))
        weights, all_arrived = min(two.ask("gradients") for _ in range(repetitions))
    ours, theirs = timings["two"], timings["one"]
    network = problem.network
    return [
        at_most(
            f"step on {PROCESSES} processes of 1 thread, {network}, batch {problem.batch}",
            f"1 process of {PROCESSES} threads",
            ours.best / theirs.best,
            SLOWER,
            f"CFOL-AT, 2 shards of {problem.batch // 2} against 1 of {problem.batch}, gloo; medians"
            f" {ours.median / theirs.median:.2f}x, {len(ours.wall)} repetitions",
            ours.best,
            theirs.best,
        ),
        at_most(
            f"what the bandit sends in a step, {problem.classes} classes",
            f"the gradients of {network}",
            sent / weights,
            SHARE,
            f"{sent:,} bytes against {weights:,}, of each rank, whatever the batch",
        ),
        at_most(
            f"what the bandit's sum over {PROCESSES} processes takes, {problem.classes} classes",
            "the whole step",
            arrived / ours.best,
            SHARE,
            f"gloo on one machine; summing the gradients takes {seconds(all_arrived)}, so the bandit has "
            f"{arrived / (arrived + all_arrived):.1%} of the time of both sums",
            arrived,
            ours.best,
        ),
    ]


def draws(tiny: bool) -> list[Row]:
    """One process computes what each rank computes: the draw of all ranks, of which it takes its slots.

    The draw grows with the ranks and a rank's network does not. What counts is therefore its share of a
    rank's step, here the shortest step of the table.
    """
    sizes = (1, 2) if tiny else (1, 2, 4, 8)
    problem = tiny_of(DEMO) if tiny else DEMO

    def drawing(make: Callable[..., Any], size: int) -> Callable[[], object]:
        sampler = make(rank=size - 1, world_size=size)
        return lambda: sampler.draw(EACH)

    calls = {(name, size): drawing(make, size) for name, make in SAMPLERS.items() for size in sizes}
    calls["step", 1] = OurStep(problem)
    timings = interleaved(calls, 2 if tiny else 9, at_least=0.0 if tiny else 0.02)
    rows, step = [], timings["step", 1].best
    for name in SAMPLERS:
        best = {size: timings[name, size].best for size in sizes}
        note = ", ".join(f"{size}: {seconds(best[size])}" for size in sizes)
        rows.append(
            at_most(
                f"draw of {EACH} for each of {sizes[-1]} ranks, {name}",
                f"a rank's whole step, demo network, batch {problem.batch}, which does not grow with ranks",
                best[sizes[-1]] / step,
                SHARE,
                f"{best[sizes[-1]] / best[1]:.2f}x the draw of one rank alone, exponent"
                f" {exponent(sizes, list(best.values())):.2f}; what one rank computes, by the number of"
                f" ranks: {note}",
                best[sizes[-1]],
                step,
            )
        )
    return rows


if __name__ == "__main__":
    main(measure)
