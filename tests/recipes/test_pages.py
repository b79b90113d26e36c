"""Figures and the report page of a recipe's folder: from the stored JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cfol_fast.errors import InputError
from cfol_fast.recipes import figures, load_recipe, plan, render
from cfol_fast.recipes.page import read_table, write_page
from cfol_fast.recipes.reproduction import write
from cfol_fast.recipes.table import build
from cfol_fast.reporting.chart import BarChart, LineChart
from tests.recipes.fake_runs import CLASSES, robust_accuracies, write_all, write_run


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
@pytest.mark.slow
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
    for content in ("[]", '{"format": 2}'):
        (tmp_path / "table.json").write_text(content, encoding="utf-8")
        with pytest.raises(InputError, match=r"table\.json"):
            read_table(tmp_path)


def test_a_radius_is_named_as_it_is_at_this_scale(tmp_path: Path) -> None:
    table = read_table(folder_of("radius", tmp_path))
    assert [block["title"] for block in table["blocks"]] == [
        "‖δ‖∞ ≤ 0.1 (for 8/255)",
        "‖δ‖∞ ≤ 0.15 (for 12/255)",
    ]
    assert load_recipe("radius").blocks[0].title_at("paper") == "‖δ‖∞ ≤ 8/255"
