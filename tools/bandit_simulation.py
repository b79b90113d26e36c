"""Simulates the class bandits on classes of known errors: which do they find, and how much of p is noise?

Usage: python -m tools.bandit_simulation [--results docs/bandit-simulation.json] [--page docs/bandit.md]
[--picture docs/bandit.svg]

The samplers are the product's; only the network is replaced, by mistakes with given probabilities. Takes some
minutes of one core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from cfol_fast import atomic
from cfol_fast.reporting import picture_files
from cfol_fast.reporting.chart import BarChart, Chart, Figure, Series
from cfol_fast.sampling import ClassSampler, step_size

ROOT = Path(__file__).resolve().parents[1]
BATCH = 128
BEGIN, END = "<!-- made by tools/bandit_simulation.py -->", "<!-- end -->"
# k, draws, seeds
SIZES = ((10, 9_728, 100), (100, 9_728, 100), (1_000, 97_280, 20))


@dataclass(frozen=True)
class Errors:
    """What the network gets wrong: of the bad class and of the others, at the start of the run and at its
    end.
    """

    title: str
    bad: tuple[float, float]
    others: tuple[float, float]
    # The others' errors are spread by so much to both sides.
    spread: float = 0.0

    def at(self, k: int, time: float) -> Tensor:
        """(k,) float64 at a time from 0 to 1; class 0 is the bad one."""
        bad, others = ((1 - time) * ends[0] + time * ends[1] for ends in (self.bad, self.others))
        found = others + self.spread * torch.linspace(-1, 1, k, dtype=torch.float64)
        found[0] = bad
        return found


ERRORS = {
    "hard": Errors("1.0, others 0.9", (1.0, 1.0), (0.9, 0.9)),
    "half": Errors("0.7, others 0.5", (0.7, 0.7), (0.5, 0.5)),
    "easy": Errors("0.4, others 0.2", (0.4, 0.4), (0.2, 0.2)),
    "spread": Errors("0.95, others 0.15 to 0.85", (0.95, 0.95), (0.5, 0.5), 0.35),
    "drifting": Errors("1.0 falling to 0.4, others 0.9 to 0.3", (1.0, 0.4), (0.9, 0.3)),
}


class ImplicitExploration(ClassSampler):
    """Exp3-IX (Neu 2015) on the same draws: w -= eta (1 - loss) / (p + eta / 2)."""

    def update(self, y: Tensor, loss: Tensor, p: object = None) -> None:
        drawn = self.ticket()
        assert drawn is not None
        missed = (1 - loss.double()) / (drawn[y] + self.eta / 2)
        self.w.index_add_(0, y, -self.eta * missed)
        self._updates += 1


def _before(k: int, draws: int, least_p: float) -> float:
    """The eta of "auto" before it was capped by what chance adds up to."""
    return min(step_size.for_lead(k, draws), least_p)


Make = Callable[[int, int, int], ClassSampler]


def _classes(kind: type[ClassSampler] = ClassSampler, capped: bool = True, **options: object) -> Make:
    def make(k: int, draws: int, seed: int) -> ClassSampler:
        made = kind(torch.arange(k), draws=draws, seed=seed, **options)  # type: ignore[arg-type]
        if not capped:
            made.eta = _before(k, draws, made.gamma / k)
        return made

    return make


BANDITS: dict[str, Make] = {
    "none, eta of before": _classes(capped=False),
    "mean, eta of before": _classes(baseline="mean", capped=False),
    "running, eta of before": _classes(baseline="running", capped=False),
    "none": _classes(),
    "mean": _classes(baseline="mean"),
    "running": _classes(baseline="running"),
    "Exp3-IX": _classes(ImplicitExploration),
    "Group DRO": _classes(reweight=True, gamma=0.01),
}


@dataclass(frozen=True)
class Found:
    """Of many runs: the median of the bad class's rank by p, the share of runs in which it is first, and the
    median of the total variation between p and what it would be without noise.
    """

    k: int
    draws: int
    errors: str
    bandit: str
    eta: float
    rank: float
    first: float
    noise: float


def run(bandit: ClassSampler, errors: Errors, draws: int, seed: int) -> tuple[int, float]:
    """(the bad class's rank, the total variation from the noiseless p) at the end of a run."""
    steps, k = draws // BATCH, bandit.k
    mistakes = torch.Generator().manual_seed(seed)
    quiet = torch.zeros(k, dtype=torch.float64)
    for step in range(steps):
        error = errors.at(k, step / max(1, steps - 1))
        y = bandit.draw(BATCH)
        bandit.update(y, torch.rand(BATCH, generator=mistakes, dtype=torch.float64) < error[y])
        quiet += bandit.eta * BATCH * error
    p = bandit.p
    noiseless = bandit.gamma / k + (1 - bandit.gamma) * torch.softmax(quiet, 0)
    return int((p > p[0]).sum()) + 1, float((p - noiseless).abs().sum()) / 2


def simulate(name: str, errors: str, k: int, draws: int, seeds: Iterable[int]) -> Found:
    """What a bandit finds, over the seeds."""
    ends = [run(BANDITS[name](k, draws, seed), ERRORS[errors], draws, seed) for seed in seeds]
    ranks, noises = (torch.tensor(column, dtype=torch.float64) for column in zip(*ends, strict=True))
    eta = BANDITS[name](k, draws, 0).eta
    rank, noise = (float(values.quantile(0.5)) for values in (ranks, noises))
    return Found(k, draws, errors, name, eta, rank, float((ranks == 1).double().mean()), noise)


def table(found: list[Found]) -> str:
    """Markdown: a line for each size and errors, a column for each bandit."""
    names = list(BANDITS)
    lines = [
        f"| classes, draws | error of the bad class | {' | '.join(names)} |",
        f"|---|---|{'---|' * len(names)}",
    ]
    for k, draws, _ in SIZES:
        for key, errors in ERRORS.items():
            cells = [
                f"{one.rank:g} / {one.first:.2f} / {one.noise:.3f}"
                for name in names
                for one in found
                if (one.k, one.draws, one.errors, one.bandit) == (k, draws, key, name)
            ]
            lines.append(f"| {k:,}, {draws:,} | {errors.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def picture(found: list[Found]) -> Figure:
    """For each size: in what share of the runs the bad class is first, by bandit."""
    shown = ["none", "running", "Exp3-IX", "Group DRO"]
    colours = ["slate", "indigo", "amber", "rose"]
    charts: list[Chart] = []
    for k, draws, _ in SIZES:
        bars = []
        for name, colour in zip(shown, colours, strict=True):
            values: list[float | None] = [
                one.first
                for key in ERRORS
                for one in found
                if (one.k, one.errors, one.bandit) == (k, key, name)
            ]
            bars.append(Series(name, colour, values, values, values))
        titles = [errors.title for errors in ERRORS.values()]
        charts.append(BarChart(f"{k:,} classes, {draws:,} draws", titles, bars, limit=1.0))
    return Figure("bandit", "share of runs in which the bad class is first by p, in percent", "", charts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=ROOT / "docs/bandit-simulation.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/bandit.md")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs/bandit.svg")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for k, draws, seeds in SIZES:
        for errors in ERRORS:
            for name in BANDITS:
                found.append(simulate(name, errors, k, draws, range(seeds)))
                print(found[-1], flush=True)
    atomic.write_text(chosen.results, json.dumps([asdict(one) for one in found], indent=1) + "\n")
    picture_files.write(picture(found), chosen.picture)
    text = chosen.page.read_text()
    head, _, rest = text.partition(BEGIN)
    atomic.write_text(chosen.page, f"{head}{BEGIN}\n\n{table(found)}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
