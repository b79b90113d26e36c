"""The table: our numbers and the paper's, their differences, deviations over seeds, orderings, notes; and its
Markdown page.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cfol_fast.errors import InputError
from cfol_fast.methods import METHODS
from cfol_fast.recipes import load_recipe, plan, render
from cfol_fast.recipes.recipe import Claim
from cfol_fast.recipes.table import build, improved_worst_classes, judge
from tests.recipes.fake_runs import accuracy, write_all, write_run


def made(name: str, out: Path, scale: str = "mini") -> dict[str, Any]:
    item = plan(load_recipe(name), scale)
    write_all(item, out)
    return build(item, out, f"cfol-fast reproduce {name}")


def entry(table: dict[str, Any], name: str, block: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = next(e for e in table["blocks"][block]["entries"] if e["name"] == name)
    return found


def test_numbers_stand_beside_the_papers_with_their_difference_and_seeds(tmp_path: Path) -> None:
    value = entry(made("seeds", tmp_path), "cfol")
    worst = value["values"]["robust.worst"]
    assert value["seeds"] == [0, 1, 2]
    assert worst["values"] == pytest.approx([0.40, 0.41, 0.42])
    assert worst["mean"] == pytest.approx(0.41)
    assert worst["deviation"] == pytest.approx(0.01)
    assert (worst["paper"], worst["paper_deviation"]) == (0.3083, 0.0515)
    assert worst["difference"] == pytest.approx(0.41 - 0.3083)


def test_the_average_of_a_table_is_over_the_classes_as_the_paper_s(tmp_path: Path) -> None:
    item = plan(load_recipe("vgg16"), "mini")
    write_all(item, tmp_path)
    for job in item.jobs():
        file = job.folder(tmp_path) / "result.json"
        result = json.loads(file.read_text())
        result["test"]["robust"] |= {"average": 0.9, "class_average": 0.5}
        file.write_text(json.dumps(result))
    table = build(item, tmp_path, "")
    assert entry(table, "cfol")["values"]["robust.average"]["mean"] == 0.5


def test_a_single_seed_has_no_deviation(tmp_path: Path) -> None:
    value = entry(made("seeds", tmp_path), "erm")
    single = entry(made("vgg16", tmp_path), "erm")
    assert value["values"]["robust.worst"]["deviation"] is not None
    assert single["values"]["robust.worst"]["deviation"] is None


def test_the_early_stopping_table_is_about_the_other_checkpoint(tmp_path: Path) -> None:
    main, stopped = made("cifar10", tmp_path), made("early-stopping", tmp_path)
    assert main["runs"] == stopped["runs"]
    gain = (
        entry(stopped, "erm")["values"]["robust.worst"]["mean"]
        - entry(main, "erm")["values"]["robust.worst"]["mean"]
    )
    assert gain == pytest.approx(0.02)


def test_another_attack_is_read_from_its_own_evaluation(tmp_path: Path) -> None:
    item = plan(load_recipe("autoattack"), "mini")
    write_all(item, tmp_path)
    with pytest.raises(InputError, match="unfinished"):
        build(item, tmp_path, "")
    for cell in item.cells:
        for job in cell.jobs:
            assert cell.attack is not None
            path = job.evaluation_file(tmp_path, cell.attack, "best-average")
            path.write_text(
                json.dumps({"clean": accuracy([0.9] * 10), "robust": accuracy([0.05] * 10)}), encoding="utf-8"
            )
    table = build(item, tmp_path, "")
    assert entry(table, "erm")["values"]["robust.worst"]["mean"] == 0.05
    # Judged by the run's own test, not by the stronger attack.
    assert table["valid"]["erm_robust_average"] > 0.3


def test_orderings_are_judged_with_the_paper_beside(tmp_path: Path) -> None:
    table = made("cifar10", tmp_path)
    by_key = {claim["key"]: claim for claim in table["claims"]}
    good = by_key["cfol > erm: robust.worst"]
    assert good["paper"] == pytest.approx(0.32 - 0.235)
    assert good["ours"] == pytest.approx(0.3)
    # The made-up seeds differ by the same in every method: such differences do not tell their spread.
    assert (good["seeds"], good["interval"], render.verdict(good)) == (3, None, "not shown")
    assert render.verdict({**good, "seeds": 1}) == "not shown (one seed)"


def worst_classes(values: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Blocks with one measure of two methods."""
    entries = [
        {
            "name": name,
            "title": name,
            "runs": [name],
            "attack": None,
            "parameters": {},
            "seeds": list(range(len(found))),
            "values": {"robust.worst": {"values": found, "paper": None}},
        }
        for name, found in values.items()
    ]
    return [{"name": "b", "title": "B", "entries": entries}]


@pytest.mark.parametrize(
    ("better", "expected"),
    [([0.4, 0.42, 0.39], "shown"), ([0.0, 0.01, 0.02], "contradicted"), ([0.1, 0.5, 0.2], "not shown")],
)
def test_an_ordering_is_judged_by_the_interval_over_the_seeds(better: list[float], expected: str) -> None:
    blocks = worst_classes({"cfol": better, "erm": [0.2, 0.21, 0.22 + 0.01]})
    (claim,) = judge([Claim("cfol", "erm", "robust.worst")], blocks)
    assert claim["verdict"] == expected
    assert claim["interval"][0] < claim["ours"] < claim["interval"][1]


def test_an_ordering_is_paired_by_seed() -> None:
    blocks = worst_classes({"cfol": [0.5, 0.4, 0.6], "erm": [0.1, 0.3, 0.2]})
    blocks[0]["entries"][1]["seeds"] = [1, 0, 7]
    (claim,) = judge([Claim("cfol", "erm", "robust.worst")], blocks)
    assert (claim["seeds"], claim["ours"]) == (2, pytest.approx((0.2 + 0.3) / 2))


def test_one_seed_shows_no_ordering() -> None:
    (claim,) = judge([Claim("cfol", "erm", "robust.worst")], worst_classes({"cfol": [0.9], "erm": [0.0]}))
    assert render.verdict(claim) == "not shown (one seed)"


def test_a_mini_table_needs_an_erm_well_above_chance(tmp_path: Path) -> None:
    assert made("cifar10", tmp_path)["valid"]["ok"] is True
    weak = tmp_path / "weak"
    item = plan(load_recipe("vgg16"), "mini")
    for job in item.jobs():
        write_run(job, weak, robust=[0.29] * 10)
    table = build(item, weak, "")
    assert table["valid"]["ok"] is False
    assert "Not valid" in render.markdown(table)


@pytest.mark.slow
def test_a_table_carries_the_notes_of_its_methods(tmp_path: Path) -> None:
    note = METHODS["lcvar"].note
    assert note
    for name, expected in (("cifar10", True), ("exploration", True), ("seeds", False)):
        assert (note in render.markdown(made(name, tmp_path))) is expected


def test_mini_blocks_that_are_the_same_runs_say_so(tmp_path: Path) -> None:
    notes = " ".join(made("cifar100-stl10", tmp_path)["footnotes"])
    assert "all blocks are the same runs" in notes
    assert "all blocks" not in " ".join(made("radius", tmp_path)["footnotes"])


def test_a_column_without_its_checkpoint_says_how_to_get_it(tmp_path: Path) -> None:
    table = made("larger-models", tmp_path, "paper")
    column = entry(table, "erm")
    assert column["values"]["robust.worst"] == {
        "mean": None,
        "deviation": None,
        "values": [],
        "paper": 0.2590,
        "paper_deviation": None,
        "difference": None,
    }
    text = render.markdown(table)
    assert "--checkpoint erm=PATH" in text
    assert "| – | 25.90 |" in text
    assert [claim["verdict"] for claim in table["claims"] if "erm" in claim["key"]] == ["not measured"] * 2


def test_the_count_of_improved_worst_classes() -> None:
    assert improved_worst_classes([0.0, 0.1, 0.5, 0.9], [0.1, 0.2, 0.4, 0.5]) == 3
    assert improved_worst_classes([0.1, 0.2], [0.1, 0.2]) == 0
    # each model's own worst classes: the order of the classes does not matter
    assert improved_worst_classes([0.9, 0.0], [0.1, 0.5]) == 1


def test_tiny_imagenets_count_stands_beside_the_papers(tmp_path: Path) -> None:
    table = made("tiny-imagenet", tmp_path)
    assert table["counts"] == [
        {
            "text": "worst classes whose average robust accuracy CFOL-AT improves",
            "block": "tiny-imagenet",
            "ours": 10,
            "classes": 10,
            "paper": "123 of 200",
        }
    ]
    assert "(the paper: 123 of 200)" in render.markdown(table)


def test_markdown_has_the_papers_form(tmp_path: Path) -> None:
    lines = render.markdown(made("cifar10", tmp_path)).splitlines()
    header = next(line for line in lines if line.startswith("|"))
    rows = [line for line in lines if line.startswith("|")]
    assert header == "|  |  | ERM-AT | paper | CFOL-AT | paper | LCVaR-AT | paper | FOL-AT | paper |"
    assert "| clean average |" in rows[2]
    assert "| robust average |" in rows[5]
    assert rows[7].startswith(
        "|  | robust worst class | 11.00 ± 1.00 (−12.50) | 23.50 | **41.00 ± 1.00** (+9.00) | 32.00 |"
    )


def test_rows_can_be_the_methods_with_their_parameters(tmp_path: Path) -> None:
    rows = [
        line for line in render.markdown(made("exploration", tmp_path)).splitlines() if line.startswith("|")
    ]
    assert rows[0].startswith("|  | η | α | robust average | paper | robust worst class | paper |")
    # A mini row without a twin in the paper.
    assert rows[2].startswith("| CFOL-AT | 2.3e-05 | – | ")
    assert "(" not in rows[2]
    assert rows[4].startswith("| CFOL-AT | 0.0001 | – | ")
    assert "| 50.14 |" in rows[4]


def test_how_it_was_made_is_told(tmp_path: Path) -> None:
    text = render.markdown(made("seeds", tmp_path))
    assert "Made by `cfol-fast reproduce seeds`: 6 runs, seeds 0, 1, 2, 3.0 minutes" in text
    assert "torch 2.0" in text


def test_latex_is_a_booktabs_table_without_stray_characters(tmp_path: Path) -> None:
    text = render.latex(made("radius", tmp_path))
    body = text.split(r"\midrule", 1)[1].split(r"\bottomrule")[0]
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 1
    assert r"\textbf{40.00} (+8.00) & 32.00" in body
    assert r"$\|$$\delta$$\|$$_\infty$ $\leq$ 0.15 (for 12/255)" in body
    assert r"robust 20 \% tail" in body
    columns = {line.count(" & ") for line in body.splitlines() if line.endswith(r"\\")}
    assert len(columns) == 1
    assert text.isascii()


def test_a_run_that_was_copied_to_another_seeds_name_is_no_other_seed(tmp_path: Path) -> None:
    item = plan(load_recipe("seeds"), "mini")
    write_all(item, tmp_path)
    first, second = (job.folder(tmp_path) for job in item.cells[0].jobs[:2])
    shutil.rmtree(second)
    shutil.copytree(first, second)
    with pytest.raises(InputError, match="holds a run of seed 0, not 1"):
        build(item, tmp_path, "")


def test_a_broken_result_is_named(tmp_path: Path) -> None:
    item = plan(load_recipe("vgg16"), "mini")
    write_all(item, tmp_path)
    (item.jobs()[0].folder(tmp_path) / "result.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"result\.json: broken JSON at line"):
        build(item, tmp_path, "")
