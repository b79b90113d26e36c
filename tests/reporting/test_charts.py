"""Chart descriptions hold the files' numbers, and the drawing of a description shows all of it, on the page
and as a picture.
"""

from __future__ import annotations

import io
import json
import random
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from cfol_fast.errors import InputError
from cfol_fast.plain_text import percent
from cfol_fast.reporting import charts, picture_files, svg, theme
from cfol_fast.reporting.chart import BarChart, DotChart, LineChart, Matrix, round_up, spread, ticks
from cfol_fast.reporting.report import read_comparisons
from cfol_fast.runs.records import load_run
from tests.reporting.synthetic_runs import FASHION, ROBUST, accuracy, make_run

EVERYTHING = {
    "measures",
    "classes",
    "change",
    "training",
    "class-training",
    "distribution",
    "distribution-training",
    "confusion",
}


def build(*folders):
    return {figure.key: figure for figure in charts.build(read_comparisons(folders)[0])}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    top = tmp_path_factory.mktemp("pair")
    return make_run(top / "erm", "erm"), make_run(top / "cfol", "cfol")


@pytest.fixture(scope="module")
def drawn(pair):
    return build(*pair)


def test_a_comparison_has_every_chart_of_the_paper(drawn):
    assert set(drawn) == EVERYTHING


def test_class_bars_show_clean_and_robust_accuracy_with_average_and_worst_lines(drawn, pair):
    for chart, folder in zip(drawn["classes"].charts, pair, strict=True):
        run = load_run(folder)
        assert chart.categories == FASHION
        clean, robust = chart.bars
        assert clean.pale
        assert robust.values == list(run.robust.per_class.values())
        assert clean.values == list(run.clean.per_class.values())
        assert list(zip(robust.low, robust.high, strict=True)) == list(run.robust.interval.values())
        assert [(rule.kind, rule.value) for rule in chart.rules] == [
            ("average", run.robust.average),
            ("worst", run.robust.worst),
        ]
        lowest = sorted(FASHION, key=run.robust.per_class.get)[:2]
        assert {FASHION[place] for place in chart.marked} == set(lowest)


def test_the_distribution_is_the_last_of_the_metrics_and_its_course_all_of_them(drawn, pair):
    rows = load_run(pair[1]).train
    assert drawn["distribution"].charts[0].bars[0].values == rows[-1]["p"]
    shirt = next(line for line in drawn["distribution-training"].charts[0].lines if line.name == "Shirt")
    assert shirt.y == [row["p"][FASHION.index("Shirt")] for row in rows]
    # ERM learns none.
    assert len(drawn["distribution"].charts) == 1


def test_class_accuracies_over_epochs_come_from_the_validations(drawn, pair):
    rows = load_run(pair[0]).validation
    bag = next(line for line in drawn["class-training"].charts[0].lines if line.name == "Bag")
    assert bag.y == [row["robust"].per_class["Bag"] for row in rows]


def test_without_a_hold_out_the_training_rows_are_shown_instead(tmp_path):
    folder = make_run(tmp_path / "run")
    path = folder / "metrics.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if '"kind": "train"' in line))
    made = build(folder)
    rows = load_run(folder).train
    bag = next(line for line in made["class-training"].charts[0].lines if line.name == "Bag")
    assert bag.y == [1 - row["class_error"][FASHION.index("Bag")] for row in rows]
    worst = next(line for line in made["training"].charts[0].lines if line.dashed)
    assert worst.y == pytest.approx([1 - max(row["class_error"]) for row in rows])
    assert "training images" in made["class-training"].caption


def test_the_confusion_matrix_is_the_one_of_the_robust_test(drawn, pair):
    confusion = load_run(pair[0]).robust.confusion
    matrix = drawn["confusion"].charts[0]
    assert matrix.values == [[count / sum(row) for count in row] for row in confusion]
    assert matrix.right == list(range(10))


def test_seeds_are_drawn_with_one_deviation(tmp_path):
    made = build(*[make_run(tmp_path / str(seed), seed=seed) for seed in range(3)])
    bars = made["classes"].charts[0].bars[1]
    for value, low, high in zip(bars.values, bars.low, bars.high, strict=True):
        assert value - low == pytest.approx(high - value)
    assert "one standard deviation" in made["classes"].caption
    assert made["training"].charts[0].lines[0].low


@pytest.mark.parametrize("classes", [100, pytest.param(200, marks=pytest.mark.slow)])
def test_many_classes_are_sorted_with_the_tail_marked_and_named(tmp_path, classes):
    made = build(*[make_run(tmp_path / m, m, classes=classes, epochs=3) for m in ("erm", "cfol")])
    erm, cfol = made["classes"].charts
    assert erm.columns
    assert erm.categories == cfol.categories
    assert erm.bars[1].values == sorted(erm.bars[1].values)
    assert erm.marked == frozenset(range(classes // 5))
    assert len(cfol.marked) == classes // 5
    assert made["tail"].charts[0].categories == erm.categories[: classes // 5]
    assert len(made["confusion"].charts[0].columns) == 20
    assert all(len(chart.lines) == 6 for chart in made["class-training"].charts)


def numbers_in(chart):
    """Every value a chart shows, as its hover titles write it."""
    if isinstance(chart, (BarChart, DotChart)):
        series = chart.bars if isinstance(chart, BarChart) else chart.dots
        return [value for one in series for value in one.values if value is not None]
    if isinstance(chart, LineChart):
        return [value for line in chart.lines for value in line.y]
    return [value for row in chart.values for value in row]


@pytest.mark.parametrize("key", sorted(EVERYTHING))
@pytest.mark.parametrize("width", [1010, 342])
def test_each_value_of_a_chart_is_named_in_its_drawing(drawn, key, width):
    for chart in drawn[key].charts:
        text = svg.draw(chart, width).svg("wide", "chart")
        titles = re.findall(r"<title>([^<]*)</title>", text)
        named = " ".join(titles)
        for value in numbers_in(chart):
            assert f"{percent(value)} %" in named
        assert "nan" not in text.lower()


@pytest.mark.parametrize("key", sorted(EVERYTHING))
def test_drawings_stay_inside_their_frame(drawn, key):
    for chart in drawn[key].charts:
        for width in (1010.0, 478.0, 342.0):
            text = svg.draw(chart, width).svg("wide", "chart")
            height = float(re.search(r'viewBox="0 0 \S+ (\d+)"', text).group(1))
            for x, y, w, h in re.findall(
                r'<rect[^>]*? x="([\d.-]+)" y="([\d.-]+)" width="([\d.-]+)" height="([\d.-]+)"', text
            ):
                assert -0.2 <= float(x) <= float(x) + float(w) <= width + 0.2
                assert -0.2 <= float(y) <= float(y) + float(h) <= height + 0.2


def pixels(text):
    return np.asarray(Image.open(io.BytesIO(picture_files.png(text))).convert("RGB")).astype(int)


def share_of(colour, image):
    """The share of an image's pixels that have a colour such as #3d4fd1, or nearly so."""
    wanted = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    return (abs(image - wanted).max(axis=2) <= 3).mean()


@pytest.mark.parametrize("key", sorted(EVERYTHING))
def test_a_picture_holds_every_drawing_of_its_figure_with_its_colours_in_place(drawn, key):
    figure = drawn[key]
    text = picture_files.drawing(figure)
    assert "var(" not in text
    width = picture_files.PAIR if figure.pair else picture_files.WIDE
    for chart in figure.charts:
        assert theme.in_light_colours("".join(svg.draw(chart, width).parts)) in text
    for name, _, _ in figure.legend:
        assert f">{name}</text>" in text


@pytest.mark.slow
def test_a_png_shows_the_colours_of_the_series(drawn):
    image = pixels(picture_files.drawing(drawn["classes"]))
    for method in ("slate", "indigo"):
        assert share_of(theme.SERIES[method][0], image) > 0.02
    assert share_of(theme.INK["worst"][0], image) > 0.0005


@pytest.mark.slow
def test_a_png_shows_headings_and_labels_without_fonts_of_the_system(drawn):
    figure = drawn["classes"]
    text = picture_files.drawing(figure)
    whole = pixels(text)
    for word in (figure.title, *FASHION, "average", "40"):
        without = pixels(re.sub(rf"(<text[^>]*>){re.escape(word)}", r"\1", text))
        assert (whole != without).any(), word


@pytest.mark.slow
def test_a_png_is_the_same_each_time_and_changes_with_its_description(drawn, tmp_path):
    figure = drawn["distribution"]
    chart = figure.charts[0]
    bars = replace(chart.bars[0], values=list(reversed(chart.bars[0].values)))
    other = replace(figure, charts=[replace(chart, bars=[bars])])
    first, again, changed = (
        picture_files.write(one, tmp_path / f"{name}.png").read_bytes()
        for name, one in (("first", figure), ("again", figure), ("changed", other))
    )
    assert first == again
    assert first != changed


def test_every_kind_of_chart_is_covered_here(drawn):
    kinds = {type(chart) for figure in drawn.values() for chart in figure.charts}
    assert kinds == {BarChart, LineChart, DotChart, Matrix}


def test_labels_are_pushed_apart_and_kept_in_range():
    placed = spread([10, 11, 12, 100], 13, 0, 110)
    assert all(b - a >= 12.999 for a, b in zip(sorted(placed), sorted(placed)[1:], strict=False))
    assert max(placed) <= 110
    assert spread([50, 50], 10, 0, 110) == [45, 55]
    assert spread([1, 100], 10, 0, 110) == [1, 100]
    assert spread([], 10, 0, 110) == []


def test_scales_end_at_round_numbers():
    assert [round_up(v) for v in (0.137, 0.61, 1.0, 0.006)] == pytest.approx([0.15, 0.8, 1.0, 0.006])
    assert ticks(0, 1, 5) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(1, 12, 4, whole=True) == [5, 10]


def with_curve(folder, radii, norm="linf"):
    """Saves a radius curve beside a run; returns its points as they were written."""
    points = []
    for number, eps in enumerate(radii):
        shares = [share / (1 + number) for share in ROBUST["cfol"]]
        points.append({"eps": eps, "robust": accuracy(FASHION, shares, 300, random.Random(0))})
    attack = {"kind": "pgd", "steps": 20, "norm": norm, "eps": radii[-1]}
    saved = {
        "format": 1,
        "kind": "evaluation",
        "clean": points[0]["robust"],
        "robust": points[-1]["robust"],
        "attacks": [{"attack": attack, "robust": points[-1]["robust"]}],
        "curve": points,
    }
    (folder / "eval-radii.json").write_text(json.dumps(saved))
    return points


def test_curves_over_the_radius_are_those_that_eval_saved(tmp_path):
    erm, cfol = make_run(tmp_path / "erm", "erm"), make_run(tmp_path / "cfol", "cfol")
    points = with_curve(cfol, [0.0, 2 / 255, 8 / 255])
    (chart,) = build(erm, cfol)["radius"].charts
    for line in chart.lines:
        assert line.x == pytest.approx([0, 2, 8])
        assert line.y == [point["robust"]["per_class"][line.name] for point in points]
    assert {line.name for line in chart.lines} == set(FASHION)
    assert chart.x_label == "radius in 1/255"
    assert chart.note == "PGD-20"


def test_an_evaluation_file_of_its_own_shows_its_curve_in_the_units_of_its_norm(tmp_path):
    run = make_run(tmp_path / "cfol", "cfol")
    with_curve(run, [0.0, 0.25, 0.5], norm="l2")
    (chart,) = build(run / "eval-radii.json")["radius"].charts
    assert chart.lines[0].x == [0.0, 0.25, 0.5]
    assert chart.x_label == "radius in l2"


@pytest.mark.parametrize("radii", [[0.1, 0.0], [0.1, 0.1], [-0.1, 0.1]])
def test_radii_that_do_not_rise_are_refused(tmp_path, radii):
    run = make_run(tmp_path / "cfol", "cfol")
    with_curve(run, radii)
    with pytest.raises(InputError, match="radii"):
        build(run)
