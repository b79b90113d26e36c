"""The cost as work grows: a whole CFOL-AT step against batch, classes, examples and image size, as plots in benchmarks/results.

Each row compares the largest size with the smallest: `ratio` is how much longer the step takes, the note how much more work it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.machine import RESULTS, machine_name
from benchmarks.rows import Row, main, seconds
from benchmarks.steps import OurStep, Problem
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


def measure(tiny: bool) -> list[Row]:
    # ResNet-18 at a quarter of its width: parts that grow faster than they should are a larger share than in the full one.
    base = (
        Problem("resnet18@0.125", batch=2, images=100, steps=2)
        if tiny
        else Problem("resnet18@0.25", batch=32)
    )
    rows, curves = [], {}
    for axis in axes(tiny):
        steps = {}
        for size in axis.sizes:
            problem = replace(base, **{axis.field: size})  # type: ignore[arg-type]
            problem = replace(problem, images=max(problem.images, problem.classes))
            steps[str(size)] = OurStep(problem)
        timings = interleaved(steps, 1 if tiny else 3)
        times = [timings[str(size)].best for size in axis.sizes]
        curves[axis] = times
        first, last = axis.sizes[0], axis.sizes[-1]
        more = axis.work(last) / axis.work(first)
        listed = ", ".join(f"{size:,}: {seconds(time)}" for size, time in zip(axis.sizes, times, strict=True))
        rows.append(
            Row(
                f"cost of the step as it grows: {axis.title} {first:,} to {last:,}",
                f"{axis.title} {first:,}; the network's work grows {more:g}x",
                times[-1] / times[0],
                None,
                times[-1],
                times[0],
                f"ratio: the largest by the smallest; {listed}",
            )
        )
    if not tiny:
        plot(curves, RESULTS / f"{machine_name()}-scaling.png")
    return rows


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
