"""The README's picture shows the committed figures."""

from __future__ import annotations

import pytest

from tests.recipes.test_results import RESULTS
from tools import hero
from tools.collection import read_frontiers


@pytest.fixture(scope="module")
def shown() -> hero.Hero:
    return hero.read(RESULTS)


def test_the_bars_are_the_means_of_the_committed_runs(shown: hero.Hero) -> None:
    facts = next(kept for kept in read_frontiers(RESULTS) if kept["scale"] == "small")
    assert sorted(shown.classes) == sorted(facts["classes"])
    for name, heights in (("erm", shown.erm), ("cfol", shown.cfol)):
        row = next(row for row in facts["rows"] if row["name"] == name)
        average = row["rules"]["best-average"]["robust"]["class_average"]["mean"]
        assert sum(heights) / len(heights) == pytest.approx(average, abs=1e-5)
    assert shown.erm == sorted(shown.erm)


def test_the_probabilities_are_distributions_of_one_run_of_the_table(shown: hero.Hero) -> None:
    facts = next(kept for kept in read_frontiers(RESULTS) if kept["scale"] == "small")
    runs = next(row for row in facts["rows"] if row["name"] == "cfol")["runs"]
    assert (RESULTS / hero.HISTORY).read_text().count(runs[0]) == 1
    assert len(shown.p) == 16
    assert all(sum(p) == pytest.approx(1, abs=1e-4) for p in shown.p)


def test_both_themes_show_the_same_drawing(shown: hero.Hero) -> None:
    light, dark = (hero.draw(shown, colours) for colours in hero.THEMES.values())
    assert light == hero.draw(shown, hero.THEMES["hero.svg"])
    assert len(light) == len(dark)
    assert light != dark
