"""The list of metrics: their formulas, their limits, and that one entry is enough for a new one."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from statistics import median

import pytest
import torch

from cfol_fast import reporting
from cfol_fast.evaluation import ClassAccuracy, Evaluation
from cfol_fast.evaluation.requirements import parse
from cfol_fast.recipes.frontier import facts
from cfol_fast.recipes.recipe import paper_metrics
from cfol_fast.reporting import charts, tables
from cfol_fast.reporting.terminal import as_comparison
from cfol_fast.runs.accuracy import Accuracy
from cfol_fast.runs.metrics import METRICS, Metric, smooth_worst, telling
from cfol_fast.training.callbacks import scalars
from tests.reporting.synthetic_runs import make_run


def of_classes(*hits: int, images: int = 100) -> Accuracy:
    """So many right of each class; what is wrong was taken for the next."""
    k = len(hits)
    confusion = [[0] * k for _ in hits]
    for row, right in enumerate(hits):
        confusion[row][row], confusion[row][(row + 1) % k] = right, images - right
    return Accuracy.from_confusion([f"c{row}" for row in range(k)], confusion)


def test_a_new_metric_is_one_entry(tmp_path, monkeypatch):
    """CONTRIBUTING, "a metric": it is then in files, --require, logs, tables, charts, cards and the facts."""
    entry = Metric("median", "Median class", lambda a: median(a.per_class.values()))
    monkeypatch.setitem(METRICS, "median", entry)
    found = of_classes(10, 40, 90)
    assert found.to_json()["median"] == 0.4
    assert found.to_json()["limits"]["median"] is None
    labels = torch.tensor([0, 1, 2])
    seen = ClassAccuracy(labels, torch.tensor([0, 1, 0]), ["a", "b", "c"])
    report = Evaluation(seen, seen)
    assert parse("median>=0.9", ["a"], attacked=True).verdict(report)["met"] is True
    assert "median class" in report.table()
    row = {"kind": "validation", "split": "holdout", "robust": found.to_json()}
    assert scalars(row, found.classes)["holdout robust/median"] == 0.4
    runs = [make_run(tmp_path / name, name) for name in ("erm", "cfol")]
    comparison = as_comparison(runs)
    assert "Median class" in [line.stubs[1] for line in tables.comparison_table(comparison).rows]
    assert "Robust median class" in charts.measures(comparison).charts[0].rows
    page = reporting.write_report(runs, tmp_path / "page.html", pictures=False).read_text()
    assert page.count("Median class") >= 2
    assert facts.measured([{"clean": found, "robust": found}])["robust"]["median"]["mean"] == 0.4


def test_the_papers_three_figures_are_what_a_recipe_shows_by_itself():
    assert paper_metrics() == [
        f"{kind}.{key}" for kind in ("clean", "robust") for key in ("average", "tail", "worst")
    ]


@pytest.mark.parametrize("key", METRICS)
def test_every_metric_is_a_number_of_json_and_lies_within_its_limits(key):
    for found in (
        of_classes(0, 0, 50, 100),
        of_classes(3, 97, 55, 20, 20),
        of_classes(*[0] * 18, *[60] * 25),
    ):
        value = found.to_json()[key]
        assert json.loads(json.dumps(value)) == value
        limits = found.limits(key)
        assert limits is None or limits[0] <= value <= limits[1]
        assert limits is None or json.loads(json.dumps(limits)) == list(limits)


def test_the_smooth_worst_lies_between_the_worst_class_and_the_average():
    shares = [0.0, 0.0, 0.3, 0.8]
    assert smooth_worst(shares, 0.5) == pytest.approx(
        1 - 0.5 * math.log((2 * math.exp(2) + math.exp(1.4) + math.exp(0.4)) / 4)
    )
    assert smooth_worst(shares, 1e-6) == pytest.approx(0.0, abs=1e-5)
    assert smooth_worst(shares, 1e6) == pytest.approx(0.275, abs=1e-5)
    assert smooth_worst([0.4] * 7) == pytest.approx(0.4)


def test_the_smooth_worst_does_not_saturate():
    """43 signs: 18 at 0, then 5 at 0: the worst class and the tail are 0 both times."""
    before, after = (of_classes(*[0] * zeros, *[60] * (43 - zeros)) for zeros in (18, 9))
    assert (before.worst, before.tail) == (after.worst, after.tail) == (0.0, 0.0)
    assert after.metric("smooth_worst") > before.metric("smooth_worst") + 0.03
    assert (before.metric("zero"), after.metric("zero")) == (18, 9)


def test_a_class_at_the_floor_is_not_below_it():
    found = of_classes(0, 9, 10, 11)
    assert (found.metric("zero"), found.metric("below_floor")) == (1, 2)
    assert replace(found, floor=0.11).metric("below_floor") == 3
    assert METRICS["below_floor"].heading(0.05) == "Classes below 5 %"


def test_the_number_below_the_floor_is_between_what_is_sure_and_what_may_be():
    assert of_classes(0, 8, 12, 60).limits("below_floor") == (1, 3)
    assert of_classes(0, 8, 12, 60, images=100).limits("zero") is None
    assert of_classes(0, 800, 1200, 6000, images=10_000).limits("below_floor") == (2, 2)


def test_what_does_not_saturate_is_shown_where_the_worst_class_says_little():
    few, many, zero = of_classes(20, 60), of_classes(*[20] * 40), of_classes(0, 60)
    paper = ["average", "tail", "worst"]
    assert [metric.key for metric in telling([few])] == paper
    for found in (many, zero):
        assert [metric.key for metric in telling([found])] == [*paper, "smooth_worst", "zero", "below_floor"]


def test_the_class_average_is_shown_where_classes_have_other_numbers_of_images():
    found = Accuracy.from_confusion(["a", "b"], [[3, 1], [1, 7]])
    assert "class_average" in [metric.key for metric in telling([found])]


def test_equal_worst_classes_are_counted():
    assert of_classes(0, 50, 0).worst_in_words == "2 classes"
    assert of_classes(10, 50, 0).worst_in_words == "c2"


@pytest.mark.parametrize(("key", "gain"), [("worst", 0.1), ("zero", -3), ("gap", -0.2)])
def test_a_metric_knows_which_change_is_a_gain(key, gain):
    assert METRICS[key].is_better(gain)
    assert not METRICS[key].is_better(-gain)
    assert METRICS[key].best([0, gain]) == gain


def test_a_metric_writes_its_values_in_its_unit():
    assert METRICS["worst"].with_unit(0.393) == "39.3 %"
    assert [METRICS["zero"].text(value) for value in (18, 18.5)] == ["18", "18.5"]
    assert METRICS["zero"].change(-13) == "\u221213"
    assert METRICS["worst"].change(0.29) == "+29.0"
