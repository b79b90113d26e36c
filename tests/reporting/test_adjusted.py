"""Plain and offset-adjusted figures side by side, and upper bounds that are called so."""

from __future__ import annotations

import json

import pytest

from cfol_fast import reporting
from cfol_fast.reporting import tables
from cfol_fast.reporting.groups import compare
from cfol_fast.reporting.wording import upper_bound
from cfol_fast.runs.records import load_run
from tests.reporting.synthetic_runs import make_run


def with_offsets(folder, method, shirt, seed=0):
    """A run whose adjusted figures have so much in the class Shirt and 0.7 in the others."""
    run = make_run(folder, method, seed=seed)
    result = json.loads((run / "result.json").read_text())
    shares = {name: shirt if name == "Shirt" else 0.7 for name in result["classes"]}
    figures = {"average": sum(shares.values()) / 10, "per_class": shares, "count": dict.fromkeys(shares, 300)}
    result["adjusted"] = {"checkpoint": "best-average", "round": 3, "clean": figures, "robust": figures}
    (run / "result.json").write_text(json.dumps(result))
    return run


@pytest.fixture
def pair(tmp_path):
    return [with_offsets(tmp_path / "erm", "erm", 0.4), with_offsets(tmp_path / "cfol", "cfol", 0.42)]


def test_the_report_has_plain_and_adjusted_columns(pair, tmp_path):
    comparison = compare([load_run(run) for run in pair])
    table = tables.adjusted(comparison)
    assert table.columns == ["ERM-AT", "ERM-AT, with offsets", "CFOL-AT", "CFOL-AT, with offsets"]
    row = next(row for row in table.rows if row.stubs[1] == "Worst class")
    plain, erm, cfol_plain, cfol = row.cells
    assert plain.value == comparison.baseline.stat("robust", "worst").mean
    assert (erm.text, cfol.text) == ("40.0", "42.0")
    assert (erm.difference, cfol.difference) == (None, pytest.approx(0.02))
    assert cfol_plain.difference == pytest.approx(cfol_plain.value - plain.value)
    page = reporting.write_report(pair, tmp_path / "page.html", pictures=False).read_text()
    assert "ERM-AT, with offsets" in page.replace("<span>", "").replace("</span>", "")


def test_a_group_counts_where_all_its_runs_have_offsets(tmp_path):
    runs = [
        with_offsets(tmp_path / "erm-0", "erm", 0.4),
        make_run(tmp_path / "erm-1", "erm", seed=1),
        with_offsets(tmp_path / "cfol-0", "cfol", 0.3),
        with_offsets(tmp_path / "cfol-1", "cfol", 0.5, seed=1),
    ]
    table = tables.adjusted(compare([load_run(run) for run in runs]))
    assert table.columns == ["CFOL-AT", "CFOL-AT, with offsets"]
    worst = next(row for row in table.rows if row.stubs[1] == "Worst class")
    assert worst.cells[1].value == pytest.approx(0.4)
    assert worst.cells[1].deviation == pytest.approx(0.02**0.5)


def test_without_offsets_there_is_no_such_table(tmp_path):
    assert tables.adjusted(compare([load_run(make_run(tmp_path / "erm", "erm"))])) is None


def test_classes_in_another_order_are_matched_in_adjusted_figures(pair):
    result = json.loads((pair[1] / "result.json").read_text())
    result["classes"] = result["classes"][::-1]
    (pair[1] / "result.json").write_text(json.dumps(result))
    comparison = compare([load_run(run) for run in pair])
    (adjusted,) = comparison.groups[1].adjusted("robust").accuracies
    assert adjusted.classes == comparison.classes
    assert adjusted.per_class["Shirt"] == 0.42


@pytest.mark.parametrize(
    ("attack", "is_bound"),
    [
        ({"kind": "pgd", "steps": 20, "eps": 0.1}, True),
        ({"kind": "fgsm", "eps": 0.1}, True),
        ({"kind": "autoattack", "eps": 0.1}, False),
        ({"kind": "worst case", "of": [{"kind": "pgd"}, {"kind": "autoattack"}]}, False),
        ({"kind": "worst case", "of": [{"kind": "pgd"}, {"kind": "trades"}]}, True),
        ({"kind": "none"}, False),
        ({}, False),
    ],
)
def test_what_a_weak_attack_leaves_is_an_upper_bound(attack, is_bound):
    assert bool(upper_bound(attack)) == is_bound


def test_the_page_says_that_pgd_gives_upper_bounds(pair):
    caption = tables.comparison_table(compare([load_run(run) for run in pair])).caption
    assert caption.count("PGD-20 are upper bounds") == 1
