"""Recipes are data: every table and figure of the paper has one, and a mistake in a file is told with its
place.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cfol_fast.errors import InputError
from cfol_fast.recipes import list_recipes, load_recipe, paper

ALL = list_recipes()
TINY = """\
title = "Tiny"
blocks = [{ name = "b", title = "B", run = { "data.name" = "cifar10" } }]
entries = [{ name = "erm", title = "ERM-AT", run = { method = "erm" } }]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "tiny.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_table_and_figure_of_the_paper_has_a_recipe() -> None:
    assert set(ALL) == set(paper.tables())
    numbers = {paper.reference(name) for name in ALL}
    assert {
        f"Table {i}" for i in range(1, 17) if i != 5
    } < numbers  # Table 5 compares uncertainty sets: it has no results
    assert {"Figures 1 and 5", "Figure 2", "Figure 3", "Figure 4", "Figure 6", "Figure 7"} < numbers


def test_recipes_are_listed_in_the_papers_order() -> None:
    assert list(paper.tables()) == ALL


@pytest.mark.parametrize("name", [name for name in ALL if "blocks" in paper.tables()[name]])
def test_a_recipe_shows_every_number_of_its_table(name: str) -> None:
    recipe = load_recipe(name)
    shown = {
        (b.name, e.name, metric) for b in recipe.blocks for e in recipe.entries for metric in recipe.metrics
    }
    for block, columns in paper.tables()[name]["blocks"].items():
        for column, cell in columns.items():
            for kind in ("clean", "robust"):
                for statistic in cell.get(kind, {}):
                    assert (block, column, f"{kind}.{statistic}") in shown


@pytest.mark.parametrize("name", ALL)
def test_the_papers_own_numbers_have_the_orderings_that_are_claimed(name: str) -> None:
    recipe = load_recipe(name)
    for claim in recipe.claims:
        for block in recipe.blocks:
            better = paper.number(recipe.numbers, block.name, claim.better, claim.metric)
            than = paper.number(recipe.numbers, block.name, claim.than, claim.metric)
            if better and than:
                assert better.value > than.value, (block.name, claim.key)


def test_the_seeds_are_those_of_the_paper() -> None:
    for name in ("gamma", "seeds", "figure-class-sorted"):
        assert load_recipe(name).seeds_at("paper") == [0, 1, 2]
    assert load_recipe("cifar10").seeds_at("paper") == [0]
    assert load_recipe("cifar10").seeds_at("mini") == [0, 1, 2]


def test_an_unknown_recipe_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="did you mean 'cifar10'"):
        load_recipe("cifar-10")
    with pytest.raises(InputError, match="did you mean 'two-run'"):
        load_recipe("tworun")


def test_a_recipe_of_ones_own_is_a_file(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, TINY))
    assert recipe.name == "tiny"
    assert [entry.title for entry in recipe.entries] == ["ERM-AT"]


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ("chekpoint = 'last'", "did you mean 'checkpoint'"),
        ("checkpoint = 'first'", "last, ema-last, got 'first'"),
        ("metrics = ['robust.best']", "metric.*'robust.best'"),
        (
            "claims = [{ better = 'cfol', than = 'erm', metric = 'robust.worst' }]",
            "'better'.*erm, got 'cfol'",
        ),
        ("claims = [{ better = 'erm', metric = 'robust.worst' }]", "claims 1: than"),
        ("seeds = { mini = [-1] }", r"seeds.*\[-1\]"),
        ("seeds = { tiny = [1] }", "'tiny'"),
        ("seeds = { mini = [0, 1, 0] }", "each seed counts once"),
        ("layout = 'diagonal'", "columns, rows, got 'diagonal'"),
        (
            "figures = [{ name = 'f', kind = 'pie', title = 't', panels = [] }]",
            "figure f.*'pie'",
        ),
        (
            "figures = [{ name = 'f', kind = 'bars', title = 't', panels = [['erm']] }]",
            r"figure f.*\['erm'\]",
        ),
        ("title = 'again'", "is not TOML"),
    ],
)
def test_a_mistake_in_a_recipe_is_named_with_its_file(tmp_path: Path, more: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint) as found:
        load_recipe(write(tmp_path, TINY + more + "\n"))
    assert "tiny.toml" in str(found.value)


def test_missing_and_empty_recipe_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.toml"):
        load_recipe(tmp_path / "gone.toml")
    with pytest.raises(InputError, match="title"):
        load_recipe(write(tmp_path, ""))
    with pytest.raises(InputError, match="block"):
        load_recipe(write(tmp_path, 'title = "nothing"\n'))
