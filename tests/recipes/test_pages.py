"""Figures, the report page of a recipe's folder, and results/README.md: all from the stored JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cfol_fast.errors import InputError
from cfol_fast.recipes import figures, list_recipes, load_recipe, plan, render
from cfol_fast.recipes.index import UNEXPLAINED, stored, text, write_index
from cfol_fast.recipes.page import read_table, write_page
from cfol_fast.recipes.reproduction import write
from cfol_fast.recipes.table import build
from cfol_fast.reporting.charts import BarChart, LineChart
from tests.recipes.fake_runs import CLASSES, robust_accuracies, write_all, write_run

RESULTS = Path(__file__).parents[2] / "results"


def folder_of(name: str, out: Path) -> Path:
    item = plan(load_recipe(name), "mini")
    write_all(item, out)
    return write(item, out, f"cfol-fast reproduce {name} --scale mini")


def draw(name: str, out: Path) -> list[figures.Figure]:
    item = plan(load_recipe(name), "mini")
    write_all(item, out)
    return figures.build(item.recipe.figures, build(item, out, ""), out)


def test_bars_have_the_papers_two_lines_and_the_deviations_of_the_seeds(tmp_path: Path) -> None:
    (figure,) = draw("figure-cfol-vs-erm", tmp_path)
    chart = figure.charts[1]
    assert isinstance(chart, BarChart)
    assert chart.categories == CLASSES
    assert [rule.kind for rule in chart.rules] == ["average", "worst"]
    assert chart.rules[1].value == pytest.approx(0.11)
    assert chart.bars[0].low[0] == pytest.approx(0.10)
    assert chart.bars[0].high[0] == pytest.approx(0.12)


def test_classes_can_stand_in_the_order_of_erm(tmp_path: Path) -> None:
    item = plan(load_recipe("figure-class-sorted"), "mini")
    for job in item.jobs():
        write_run(job, tmp_path, robust=list(reversed(robust_accuracies(job.config.method))))
    (figure,) = figures.build(item.recipe.figures, build(item, tmp_path, ""), tmp_path)
    assert [chart.categories[:2] for chart in figure.charts if isinstance(chart, BarChart)] == [
        [CLASSES[9], CLASSES[8]]
    ] * 2


def test_the_distribution_is_the_last_one_of_the_run(tmp_path: Path) -> None:
    (figure,) = draw("figure-distribution", tmp_path)
    (chart,) = figure.charts
    assert isinstance(chart, BarChart)
    assert chart.bars[0].values[:2] == [0.2, 0.12]


def test_epochs_end_at_the_kept_checkpoint(tmp_path: Path) -> None:
    (figure,) = draw("figure-epochs", tmp_path)
    assert len(figure.charts) == 4
    for chart in figure.charts:
        assert isinstance(chart, LineChart)
        assert {line.x[-1] for line in chart.lines} == {2.0}


def test_sorted_curves_run_from_the_worst_class_up(tmp_path: Path) -> None:
    (figure,) = draw("tiny-imagenet", tmp_path)
    (chart,) = figure.charts
    assert isinstance(chart, LineChart)
    assert all(line.y == sorted(line.y) for line in chart.lines)


@pytest.mark.parametrize("name", ["cifar10", "exploration"])
def test_a_recipes_folder_holds_its_table_in_three_forms_its_figures_and_its_page(
    name: str, tmp_path: Path
) -> None:
    folder = folder_of(name, tmp_path)
    table = read_table(folder)
    assert {"table.md", "table.tex", "table.json", "report.html"} <= {path.name for path in folder.iterdir()}
    for figure in table["figures"]:
        assert (folder / f"{figure}.svg").read_text(encoding="utf-8").startswith("<svg")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "LCVaR-AT" in page
    assert 'id="table-recipe"' in page
    assert 'id="table-orderings"' in page
    # The paper's worst class of CFOL.
    assert ">32.00<" in page


def test_the_page_shows_the_recipes_own_figures_and_changes_with_the_json(tmp_path: Path) -> None:
    folder = folder_of("figure-distribution", tmp_path)
    before = (folder / "report.html").read_text(encoding="utf-8")
    assert "The learned distribution p over the classes" in before
    table = read_table(folder)
    table["blocks"][0]["entries"][0]["values"]["robust.worst"]["mean"] = 0.987
    (folder / "table.json").write_text(json.dumps(table), encoding="utf-8")
    after = write_page(folder).read_text(encoding="utf-8")
    assert ">98.7" in after
    assert ">98.7" not in before


def test_the_pages_table_has_a_column_for_the_paper_beside_each_of_ours(tmp_path: Path) -> None:
    table = render.main_table(read_table(folder_of("seeds", tmp_path)))
    assert table.columns == ["ERM-AT", "paper", "CFOL-AT", "paper"]
    assert [cell.text for cell in table.rows[-1].cells] == [
        "11.00 ± 1.00",
        "20.67 ± 2.54",
        "41.00 ± 1.00",
        "30.83 ± 5.15",
    ]


def test_a_folder_that_is_no_recipes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        write_page(tmp_path)
    with pytest.raises(InputError):
        write_index(tmp_path)
    for content in ("[]", '{"format": 2}'):
        (tmp_path / "table.json").write_text(content, encoding="utf-8")
        with pytest.raises(InputError, match=r"table\.json"):
            read_table(tmp_path)


def test_the_index_explains_orderings_that_are_not_shown(tmp_path: Path) -> None:
    folder_of("seeds", tmp_path / "mini")
    page = write_index(tmp_path).read_text(encoding="utf-8")
    assert f"ERM-AT above CFOL-AT, robust average: {UNEXPLAINED}" in page
    (tmp_path / "notes.toml").write_text(
        'introduction = "Made on a laptop."\n["mini/seeds"]\n"erm > cfol: robust.average" = "because the runs are made up"\n',
        encoding="utf-8",
    )
    page = write_index(tmp_path).read_text(encoding="utf-8")
    assert "Made on a laptop." in page
    assert "robust average: because the runs are made up" in page
    assert UNEXPLAINED not in page
    assert "| [seeds](#seeds-mini) | Table 10 | 3 | 3 of 4 | yes |" in page


def test_the_index_comes_from_the_stored_json(tmp_path: Path) -> None:
    folder = folder_of("seeds", tmp_path / "mini")
    before = text(tmp_path)
    table = read_table(folder)
    table["blocks"][0]["entries"][0]["values"]["robust.worst"]["mean"] = 0.98765
    (folder / "table.json").write_text(json.dumps(table), encoding="utf-8")
    assert "98.77" in text(tmp_path)
    assert "98.77" not in before


def test_the_committed_results_page_is_up_to_date() -> None:
    assert (RESULTS / "README.md").read_text(encoding="utf-8") == text(RESULTS), (
        "run: cfol-fast reproduce --index results"
    )


def test_the_committed_results_are_valid_and_explain_what_they_do_not_show() -> None:
    assert {table["recipe"] for _, table in stored(RESULTS) if table["scale"] == "mini"} == set(
        list_recipes()
    )
    assert all((table["valid"] or {}).get("ok") is not False for _, table in stored(RESULTS))
    for place, table in stored(RESULTS):
        assert all((place / f"{figure}.svg").exists() for figure in table["figures"])
    assert UNEXPLAINED not in (RESULTS / "README.md").read_text(encoding="utf-8")


def test_recipes_that_were_not_carried_out_are_named(tmp_path: Path) -> None:
    folder_of("seeds", tmp_path / "mini")
    line = next(line for line in text(tmp_path).splitlines() if line.startswith("Not carried out yet"))
    assert line.startswith("Not carried out yet at the mini scale: cifar10, cifar100-stl10, ")
    assert "seeds" not in line


def test_four_methods_are_compared_over_three_seeds_in_the_committed_results() -> None:
    for table in (
        table for _, table in stored(RESULTS) if table["recipe"] == "cifar10" and table["scale"] == "mini"
    ):
        assert [(entry["method"], entry["seeds"]) for entry in table["blocks"][0]["entries"]] == [
            (method, [0, 1, 2]) for method in ("erm", "cfol", "lcvar", "fol")
        ]


def test_the_same_comparison_in_two_tables_counts_once(tmp_path: Path) -> None:
    folder_of("cifar10", tmp_path / "mini")
    alone = text(tmp_path)
    claims = len(read_table(tmp_path / "mini" / "cifar10")["claims"])
    assert f"{claims} distinct comparisons" in alone
    folder_of("cifar100-stl10", tmp_path / "mini")  # at the mini scale these are the runs of cifar10
    assert len(read_table(tmp_path / "mini" / "cifar100-stl10")["claims"]) > 0
    assert f"{claims} distinct comparisons" in text(tmp_path)


def test_a_radius_is_named_as_it_is_at_this_scale(tmp_path: Path) -> None:
    table = read_table(folder_of("radius", tmp_path))
    assert [block["title"] for block in table["blocks"]] == [
        "‖δ‖∞ ≤ 0.1 (for 8/255)",
        "‖δ‖∞ ≤ 0.15 (for 12/255)",
    ]
    assert load_recipe("radius").blocks[0].title_at("paper") == "‖δ‖∞ ≤ 8/255"
