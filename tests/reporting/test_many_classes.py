"""A page of many classes: it leads with figures that do not saturate."""

from __future__ import annotations

import json

import pytest

from cfol_fast import reporting
from cfol_fast.reporting import charts, tables
from cfol_fast.reporting.groups import compare
from cfol_fast.reporting.report import read_comparisons
from cfol_fast.reporting.wording import headline
from cfol_fast.runs.records import load_run
from tests.reporting.synthetic_runs import make_run

SIGNS = [f"sign-{number:02d}" for number in range(43)]


def signs(folder, method, zeros, classes=43):
    """A run with so many of its classes at 0 and the others at 60 %."""
    run = make_run(folder, method, classes=classes, names=SIGNS[:classes], dataset="gtsrb")
    result = json.loads((run / "result.json").read_text())
    shares = {name: 0.0 if number < zeros else 0.6 for number, name in enumerate(SIGNS[:classes])}
    figures = {
        "average": sum(shares.values()) / classes,
        "per_class": shares,
        "count": dict.fromkeys(shares, 20),
    }
    result["test"]["robust"] = figures
    (run / "result.json").write_text(json.dumps(result))
    return run


@pytest.fixture
def pair(tmp_path):
    return [signs(tmp_path / "erm", "erm", 18), signs(tmp_path / "cfol", "cfol", 5)]


def test_the_headline_counts_the_failing_classes(pair):
    first, second = headline(compare([load_run(run) for run in pair]))
    assert (
        first.replace("\u202f", " ") == "CFOL-AT lowers the number of classes below 10 % from 18 to 5 of 43"
    )
    assert "rises by" in second


def test_equal_numbers_are_left_and_worst_classes_are_counted(tmp_path):
    runs = [signs(tmp_path / "erm", "erm", 18), signs(tmp_path / "cfol", "cfol", 18)]
    comparison = compare([load_run(run) for run in runs])
    assert headline(comparison)[0].startswith("CFOL-AT leaves 18 of 43 classes below 10")
    assert comparison.baseline.worst_class("robust") == "18 classes"


def test_the_page_leads_with_what_does_not_saturate(pair, tmp_path):
    page = reporting.write_report(pair, tmp_path / "page.html", pictures=False).read_text()
    cards = page[page.index('class="cards"') :]
    titles = [
        cards.index(text) for text in ("Classes below 10", "Classes at 0", "Smooth worst", "Worst class")
    ]
    assert titles == sorted(titles)
    first_figure = page.index('<section id="')
    assert page[first_figure:].startswith('<section id="train-test"')


def test_training_errors_stand_against_test_errors(pair):
    run = load_run(pair[0])
    figure = charts.train_and_test(compare([load_run(run) for run in pair]))
    points = {point.name: point for point in figure.charts[0].points}
    assert points.keys() == set(SIGNS)
    assert points["sign-00"].x == pytest.approx(run.train[-1]["class_error"][0])
    assert points["sign-00"].y == 1.0
    assert len({chart.ends for chart in figure.charts}) == 1
    assert sum(point.labelled for point in points.values()) == charts.LABELLED


def test_a_smaller_number_of_failing_classes_is_the_best_and_a_gain(pair):
    table = tables.comparison_table(compare([load_run(run) for run in pair]))
    row = next(row for row in table.rows if row.stubs == ["", "Classes at 0 %"])
    erm, cfol = row.cells
    assert (erm.text, cfol.text) == ("18", "5")
    assert (cfol.difference, cfol.is_gain, cfol.best) == (-13, True, True)
    assert cfol.change() == "\u221213"


def test_the_floor_is_the_users(pair):
    (comparison,) = read_comparisons(pair, floor=0.7)
    assert headline(comparison)[0].startswith("CFOL-AT leaves 43 of 43 classes below 70")


def test_a_few_classes_above_0_lead_with_the_worst_one(tmp_path):
    runs = [make_run(tmp_path / name, name) for name in ("erm", "cfol")]
    comparison = compare([load_run(run) for run in runs])
    assert comparison.leading.key == "worst"
    assert charts.train_and_test(comparison) is None


def test_of_equal_worst_classes_the_better_tail_is_in_focus(tmp_path):
    zeros = {"erm": 18, "fol": 15, "cfol": 5}
    runs = [signs(tmp_path / name, name, number) for name, number in zeros.items()]
    assert compare([load_run(run) for run in runs]).focus.method == "cfol"
