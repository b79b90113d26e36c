"""The cost as work grows: a whole CFOL-AT step against batch, classes, examples and image size, as plots in
benchmarks/results.

Each row compares the growth of the step with that of the bare passes, the network's own, from the smallest
size to the largest. The note states both as exponents e, fitted to time = constant * size^e over all sizes.
How a draw grows with ranks is in `ranks.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.machine import RESULTS, machine_name
from benchmarks.rows import Row, at_most, main, seconds
from benchmarks.steps import OurStep, Problem, bare_passes
from benchmarks.timing import interleaved


@dataclass(frozen=True)
class Axis:
    title: str
    field: str
    sizes: tuple[int, ...]
    # What the step's time should be proportional to.
    work: Callable[[int], float]


def axes(tiny: bool) -> list[Axis]:
    small = [
        Axis("batch", "batch", (2, 4), float),
        Axis("classes", "classes", (2, 10), lambda _: 1.0),
        Axis("examples", "images", (100, 200), lambda _: 1.0),
        Axis("image side (pixels)", "side", (16, 32), lambda side: float(side * side)),
    ]
    full = [
        Axis("batch", "batch", (16, 32, 64, 128), float),
        Axis("classes", "classes", (10, 100, 1_000, 10_000), lambda _: 1.0),
        Axis("examples", "images", (10_000, 50_000, 200_000), lambda _: 1.0),
        Axis("image side (pixels)", "side", (16, 32, 64), lambda side: float(side * side)),
    ]
    return small if tiny else full


# The step may grow this much more than the network's own passes: the noise of two timings.
MOST = 1.1


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The e of time = constant * size^e, by least squares of the logarithms."""
    x, y = [math.log(size) for size in sizes], [math.log(time) for time in times]
    middle = sum(x) / len(x)
    return sum((a - middle) * b for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)


def measure(tiny: bool) -> list[Row]:
    # ResNet-18 at a quarter of its width: parts that grow faster than they should are a larger share than in
    # the full one.
    base = (
        Problem("resnet18@0.125", batch=2, images=100, steps=2)
        if tiny
        else Problem("resnet18@0.25", batch=32)
    )
    rows, curves = [], {}
    for axis in axes(tiny):
        calls: dict[tuple[str, int], Callable[[], object]] = {}
        for size in axis.sizes:
            problem = replace(base, **{axis.field: size})  # type: ignore[arg-type]
            problem = replace(problem, images=max(problem.images, problem.classes))
            calls["ours", size], calls["bare", size] = OurStep(problem), bare_passes(problem)
        timings = interleaved(calls, 1 if tiny else 3)
        ours, bare = ([timings[who, size].best for size in axis.sizes] for who in ("ours", "bare"))
        curves[axis] = ours
        rows.append(row(axis, ours, bare))
    if not tiny:
        plot(curves, RESULTS / f"{machine_name()}-scaling.png")
    return rows


def row(axis: Axis, ours: list[float], bare: list[float]) -> Row:
    first, last = axis.sizes[0], axis.sizes[-1]
    listed = ", ".join(
        f"{size:,}: {seconds(mine)} / {seconds(theirs)}"
        for size, mine, theirs in zip(axis.sizes, ours, bare, strict=True)
    )
    note = (
        f"exponent {exponent(axis.sizes, ours):.2f}, the bare passes' {exponent(axis.sizes, bare):.2f};"
        f" {ours[-1] / ours[0]:.2f}x against {bare[-1] / bare[0]:.2f}x, the network's work grows"
        f" {axis.work(last) / axis.work(first):g}x; step / bare passes: {listed}"
    )
    return at_most(
        f"growth of the step: {axis.title} {first:,} to {last:,}",
        "the growth of the bare passes",
        (ours[-1] / ours[0]) / (bare[-1] / bare[0]),
        MOST,
        note,
        ours[-1],
        bare[-1],
    )


def plot(curves: dict[Axis, list[float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    # One scale for all: on separate scales the noise of the flat curves would look like growth.
    figure, places = plt.subplots(
        1, len(curves), figsize=(4 * len(curves), 3.4), sharey=True, layout="constrained"
    )
    for place, (axis, times) in zip(places, curves.items(), strict=True):
        place.plot(axis.sizes, [1e3 * time for time in times], "o-", label="measured")
        work = [axis.work(size) for size in axis.sizes]
        expected = [1e3 * times[-1] * share / work[-1] for share in work]
        place.plot(axis.sizes, expected, "--", color="grey", label="in proportion to the network's work")
        place.set(xscale="log", yscale="log", xlabel=axis.title)
        place.set_xticks(axis.sizes, [f"{size:,}" for size in axis.sizes])
        place.minorticks_off()
    every = [1e3 * time for times in curves.values() for time in times]
    low, high = min(every) / 3, max(every) * 2
    ticks = [tick for power in range(-2, 6) for tick in (10.0**power, 3 * 10.0**power) if low < tick < high]
    places[0].set_yticks(ticks, [f"{tick:,g}" for tick in ticks])
    places[0].set(ylim=(low, high), ylabel="milliseconds per step")
    places[0].legend(fontsize=8, loc="lower right")
    figure.suptitle("A CFOL-AT step (PGD-7, ResNet-18 at a quarter of its width) as the work grows")
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main(measure)
