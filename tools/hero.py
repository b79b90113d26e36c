"""The picture on the README's first screen: robust accuracy per class, and p over the epochs.

`python -m tools.hero results docs` draws docs/hero.svg and docs/hero-dark.svg. The accuracies are those of
the committed predictions of the table on real images, the mean over its seeds. p is that of one CFOL run of
the table, trained again (results/history.json, from its metrics.jsonl).
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cfol_fast import atomic
from cfol_fast.recipes import kept_predictions
from cfol_fast.recipes.frontier.facts import RULE
from cfol_fast.recipes.frontier.plan import CFOL, ERM
from cfol_fast.recipes.frontier.sentences import row_of
from tools.collection import read_frontiers

HISTORY = "history.json"


@dataclass(frozen=True)
class Colours:
    text: str
    grid: str
    erm: str
    cfol: str
    others: str


THEMES = {
    "hero.svg": Colours("#1f2328", "#d1d9e0", "#8c959f", "#0969da", "#b1bac4"),
    "hero-dark.svg": Colours("#f0f6fc", "#3d444d", "#9198a1", "#4493f8", "#656c76"),
}


@dataclass(frozen=True)
class Hero:
    """classes: from the worst to the best under ordinary training. p: (epochs, classes)."""

    classes: list[str]
    erm: list[float]
    cfol: list[float]
    p: list[list[float]]


def read(results: Path) -> Hero:
    history = json.loads((results / HISTORY).read_text(encoding="utf-8"))
    facts = next(kept for kept in read_frontiers(results) if kept["scale"] == history["scale"])
    tree = kept_predictions.read(results / facts["scale"])
    names = list(facts["classes"])
    erm, cfol = (class_means(facts, tree, name) for name in (ERM, CFOL))
    order = sorted(range(len(names)), key=lambda c: erm[names[c]])
    return Hero(
        [names[c] for c in order],
        [erm[names[c]] for c in order],
        [cfol[names[c]] for c in order],
        [[row[history["classes"].index(names[c])] for c in order] for row in history["p"]],
    )


def class_means(facts: Mapping[str, Any], tree: Mapping[str, Any], name: str) -> dict[str, float]:
    """Each class's robust accuracy by the table's rule for the checkpoint, the mean over the seeds."""
    row = row_of(facts, name)
    assert row is not None
    found = [
        kept_predictions.accuracy(tree, run, RULE, "robust", facts["classes"]).per_class
        for run in row["runs"]
    ]
    return {c: sum(one[c] for one in found) / len(found) for c in facts["classes"]}


def draw(hero: Hero, colours: Colours) -> str:
    """The SVG. A version of matplotlib writes the same bytes each time."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    look: dict[Any, Any] = {
        "svg.hashsalt": "cfol_fast",
        "font.size": 9,
        "text.color": colours.text,
        "axes.labelcolor": colours.text,
        "axes.edgecolor": colours.grid,
        "xtick.color": colours.text,
        "ytick.color": colours.text,
    }
    with mpl.rc_context(look):
        figure, (left, right) = plt.subplots(1, 2, figsize=(8.3, 3.2), width_ratios=(3, 2))
        _bars(left, hero, colours)
        _curves(right, hero, colours)
        figure.tight_layout()
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    return file.getvalue()


def _bars(axes: Any, hero: Hero, colours: Colours) -> None:
    places = range(len(hero.classes))
    for shift, values, colour, label in (
        (-0.2, hero.erm, colours.erm, "ordinary adversarial training"),
        (0.2, hero.cfol, colours.cfol, "CFOL"),
    ):
        axes.bar([x + shift for x in places], [100 * v for v in values], 0.4, color=colour, label=label)
    axes.set_xticks(list(places), hero.classes, rotation=40, ha="right")
    axes.set_title("Robust accuracy per class (%)", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    _plain(axes, colours)


def _curves(axes: Any, hero: Hero, colours: Colours) -> None:
    epochs = range(1, len(hero.p) + 1)
    columns = list(zip(*hero.p, strict=True))
    marked = sorted(range(len(columns)), key=lambda c: -columns[c][-1])[:2]
    for c, column in enumerate(columns):
        axes.plot(epochs, column, color=colours.cfol if c in marked else colours.others, lw=1.6)
    for c, height in zip(marked, _apart([columns[c][-1] for c in marked]), strict=True):
        axes.annotate(hero.classes[c], (len(hero.p), height), xytext=(3, 0), textcoords="offset points")
    axes.set_xlim(1, 1.25 * len(hero.p))
    axes.set_ylim(0)
    axes.set_xlabel("epoch")
    axes.set_title("Probability of drawing a class", loc="left", fontsize=10)
    _plain(axes, colours)


def _apart(heights: Sequence[float], least: float = 0.012) -> list[float]:
    """The heights of labels, highest first, moved down so that they do not overlap."""
    placed: list[float] = []
    for height in heights:
        placed.append(min(height, placed[-1] - least) if placed else height)
    return placed


def _plain(axes: Any, colours: Colours) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=colours.grid, lw=0.6)
    axes.set_axisbelow(True)


def main(results: Path, docs: Path) -> None:
    hero = read(results)
    for name, colours in THEMES.items():
        atomic.write_text(docs / name, draw(hero, colours))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
