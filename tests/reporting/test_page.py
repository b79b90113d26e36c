"""The page says what the files say, alone, and says so when there is little to say."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser

import pytest

from cfol_fast import reporting
from cfol_fast.errors import InputError
from cfol_fast.plain_text import points
from cfol_fast.runs import predictions
from cfol_fast.runs.price import price
from cfol_fast.runs.records import load_run
from tests.reporting.synthetic_runs import FASHION, change, make_run


def page(runs, tmp_path, name="page.html", **options):
    return reporting.write_report(runs, tmp_path / name, pictures=False, **options).read_text()


@pytest.fixture
def pair(tmp_path):
    return [make_run(tmp_path / "erm", "erm"), make_run(tmp_path / "cfol", "cfol")]


def change_row(path, kind, number, change_it):
    """Change one row of a metrics file: the `number`-th of its kind."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change_it([row for row in rows if row["kind"] == kind][number])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.slow
def test_a_changed_result_is_a_changed_page(pair, tmp_path):
    before = page(pair, tmp_path)
    for keys, share, text in (
        (("test", "robust", "worst"), 0.4321, "43.2"),
        (("test", "robust", "average"), 0.6543, "65.4"),
        (("test", "clean", "tail"), 0.5437, "54.4"),
        (("test", "robust", "per_class", "Bag"), 0.8239, "82.4"),
        (("checkpoints", "best-worst", "robust", "worst"), 0.2937, "29.4"),
    ):
        change(pair[1] / "result.json", *keys, to=share)
        after = page(pair, tmp_path)
        assert after.count(text) > before.count(text)
        assert after != before
        before = after


def test_a_changed_worst_class_changes_the_headline(pair, tmp_path):
    change(pair[0] / "result.json", "test", "robust", "worst", to=0.0777)
    change(pair[1] / "result.json", "test", "robust", "worst", to=0.3999)
    assert "<h1>CFOL-AT lifts the worst class from 7.8 to 40.0\u202f%</h1>" in page(pair, tmp_path)


def test_changed_metrics_are_changed_charts(pair, tmp_path):
    before = page(pair, tmp_path)
    metrics = pair[1] / "metrics.jsonl"

    def more_shirts(row):
        row["p"][FASHION.index("Shirt")] = 0.2468

    change_row(metrics, "train", -1, more_shirts)
    after = page(pair, tmp_path)
    assert "Shirt, p: 24.7 %" in after
    assert "Shirt, p: 24.7 %" not in before

    def worse_bags(row):
        row["robust"]["per_class"]["Bag"] = 0.0123

    change_row(metrics, "validation", 5, worse_bags)
    assert "Bag, epoch 6: 1.2 %" in page(pair, tmp_path)


def test_a_changed_evaluation_gallery_configuration_and_version_show(pair, tmp_path):
    robust = json.loads((pair[0] / "result.json").read_text())["test"]["robust"]
    robust["worst"] = 0.0313
    (pair[0] / "autoattack.json").write_text(
        json.dumps({"robust": robust, "attack": {"kind": "autoattack", "eps": 8 / 255}})
    )
    change(pair[0] / "gallery.json", "examples", 0, "confidence", to=0.8777)
    change(pair[0] / "gallery.json", "examples", 0, "predicted", to="Ankle boot")
    change(pair[1] / "config.json", "optimizer", "lr", to=0.0625)
    change(pair[1] / "result.json", "versions", "torch", to="9.8.7")
    text = page(pair, tmp_path)
    assert "AutoAttack, ε = 8/255" in text
    assert "<td>3.1</td>" in text
    assert '<b class="wrong">Ankle boot</b>, 87.8\u202f% sure' in text
    assert "0.0625" in text
    assert "9.8.7" in text


def test_two_evaluations_of_one_run_with_one_attack_are_not_averaged(pair, tmp_path):
    robust = json.loads((pair[0] / "result.json").read_text())["test"]["robust"]
    for name, average in (("best", 0.5), ("last", 0.25)):
        evaluation = {
            "robust": {**robust, "average": average},
            "attack": {"kind": "pgd", "steps": 50, "eps": 0.1},
        }
        (pair[0] / f"{name}.json").write_text(json.dumps(evaluation))
    reporting.write_report(pair, tmp_path / "report.html", pictures=False)
    rows = (tmp_path / "report_files" / "evaluations.csv").read_text().splitlines()
    assert '"PGD-50, ε = 0.1 (best)",Average,0.5' in rows
    assert '"PGD-50, ε = 0.1 (last)",Average,0.25' in rows
    assert "deviation" not in rows[0]


def test_the_page_needs_nothing_outside_itself(pair, tmp_path):
    text = page(pair, tmp_path)
    assert "://" not in text
    assert "<script" not in text
    assert "@import" not in text
    assert "url(" not in text
    for address in re.findall(r'(?:src|href)="([^"]*)"', text):
        assert address.startswith("data:")


def test_only_pictures_are_linked_and_they_stand_beside_the_page(pair, tmp_path):
    out = reporting.write_report(pair, tmp_path / "my report.html")
    links = [a for a in re.findall(r'href="([^"]*)"', out.read_text()) if not a.startswith("data:")]
    assert len(links) == 8
    for link in links:
        assert (tmp_path / link.replace("%20", " ")).read_text().startswith("<svg")


class Balance(HTMLParser):
    """Complains about tags that are closed in another order than they were opened."""

    void = frozenset({"meta", "link", "input", "img", "br"})

    def __init__(self):
        super().__init__()
        self.open = []
        self.wrong = []

    def handle_starttag(self, tag, attributes):
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def test_the_page_is_well_formed(pair, tmp_path):
    balance = Balance()
    balance.feed(page(pair, tmp_path))
    assert balance.wrong == []
    assert balance.open == []


def test_names_are_text_and_never_markup(tmp_path):
    names = ["<script>alert(1)</script>", 'a"b', "c&d", *FASHION[3:]]
    folder = make_run(tmp_path / "run", names=names)
    change(folder / "result.json", "title", to="<b>CFOL</b>")
    change(folder / "config.json", "params", "note", to="<i>x</i>")
    text = page([folder], tmp_path)
    assert "<script" not in text
    assert "<b>CFOL" not in text
    assert "<i>x" not in text
    assert "&lt;script&gt;" in text


def test_tables_are_written_as_csv_in_full_precision(pair, tmp_path):
    page(pair, tmp_path)
    result = [json.loads((folder / "result.json").read_text())["test"]["robust"] for folder in pair]
    rows = list(csv.DictReader((tmp_path / "page_files" / "comparison.csv").open()))
    worst = rows[2]
    assert float(worst["ERM-AT"]) == result[0]["worst"]
    assert float(worst["CFOL-AT difference"]) == result[1]["worst"] - result[0]["worst"]
    classes = {row["Class"]: row for row in csv.DictReader((tmp_path / "page_files" / "classes.csv").open())}
    assert {name: float(row["robust CFOL-AT"]) for name, row in classes.items()} == result[1]["per_class"]


def test_tables_are_written_as_latex_with_everything_escaped(tmp_path):
    folder = make_run(tmp_path / "run", names=["a_b", "50%", "c&d", "$x$", *FASHION[4:]])
    page([folder], tmp_path)
    text = (tmp_path / "page_files" / "classes.tex").read_text()
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    for name in (r"a\_b", r"50\%", r"c\&d", r"\$x\$"):
        assert name in text
    assert r"\toprule" in text
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert len(body) == 10
    # Robust, clean, and the precision under attack.
    assert all(len(re.findall(r"(?<!\\)&", line)) == 3 for line in body)


def test_an_unfinished_run_is_shown_as_such_with_what_there_is(tmp_path):
    runs = [make_run(tmp_path / "erm", "erm"), make_run(tmp_path / "cfol", "cfol", stopped=7)]
    text = page(runs, tmp_path)
    assert "Unfinished: hold-out, epoch 7 of 12" in text
    assert 'id="distribution"' in text
    table = re.search(r'<table id="table-comparison">.*?</table>', text, re.S).group(0)
    # A hold-out accuracy is not compared with a test accuracy.
    assert "delta" not in table


def test_a_run_that_has_hardly_begun_makes_a_page_too(tmp_path):
    folder = make_run(tmp_path / "run", stopped=1)
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().splitlines(True)[0])
    text = page([folder], tmp_path)
    assert "Not finished yet" in text
    path.write_text("")
    assert "Not finished yet" in page([folder], tmp_path)


@pytest.mark.slow
def test_different_data_sets_are_shown_one_after_another_when_asked(tmp_path):
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", classes=100, epochs=2)]
    with pytest.raises(InputError, match="--separate"):
        page(runs, tmp_path)
    assert not (tmp_path / "page.html").exists()
    text = page(runs, tmp_path, separate=True)
    ids = re.findall(r' id="([^"]+)"', text)
    assert "part1-table-comparison" in ids
    assert "part2-versions" in ids
    assert len(ids) == len(set(ids))
    assert 'id="part1-classes"' in text
    assert 'id="part2-classes"' in text
    assert (tmp_path / "page_files" / "part2-classes.csv").exists()


def test_a_checkpoint_chosen_on_the_test_set_is_said(tmp_path):
    assert "chosen on the test set" in page([make_run(tmp_path / "run", holdout="test")], tmp_path)


def test_what_was_tested_in_another_way_is_shown_without_a_difference(pair, tmp_path):
    change(pair[1] / "result.json", "attack", "steps", to=50)
    text = page(pair, tmp_path)
    assert "CFOL-AT was tested in another way than ERM-AT (another attack)" in text
    assert "lifts the worst class" not in text
    assert "points</div>" not in text


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("shape", [28, 28], r"gallery\.json: shape"),
        ("shape", [28, 28, 3], r"examples\[0\].clean .*784.*2352"),
        ("examples", [{"clean": "!"}], r"examples\[0\].clean"),
        ("examples", [{}], r"examples\[0\].*'clean'"),
    ],
)
def test_a_bad_gallery_is_named(tmp_path, key, value, named):
    folder = make_run(tmp_path / "run")
    change(folder / "gallery.json", key, to=value)
    with pytest.raises(InputError, match=named):
        page([folder], tmp_path)


def test_a_single_checkpoint_is_not_shown_as_a_choice(pair, tmp_path):
    assert "Which checkpoint" in page(pair, tmp_path)
    for folder in pair:
        result = json.loads((folder / "result.json").read_text())
        result["checkpoints"] = {"last": result["checkpoints"]["last"]}
        (folder / "result.json").write_text(json.dumps(result))
    assert "Which checkpoint" not in page(pair, tmp_path)


def test_the_averaged_weights_stand_beside_the_others(pair, tmp_path):
    assert "Averaged weights" not in page(pair, tmp_path)
    path = pair[0] / "result.json"
    result = json.loads(path.read_text())
    result["checkpoints"]["ema-best-worst"] = result["checkpoints"]["best-worst"]
    path.write_text(json.dumps(result))
    assert page(pair, tmp_path).count("Averaged weights: best worst class") == 1


@pytest.mark.slow
def test_many_methods_are_rows_of_the_table(tmp_path):
    runs = [make_run(tmp_path / str(i), params={"gamma": 0.1 * i}, epochs=2) for i in range(1, 9)]
    table = re.search(r'<table id="table-comparison">.*?</table>', page(runs, tmp_path), re.S).group(0)
    assert table.count("<tr") == 9
    assert len(next(csv.reader((tmp_path / "page_files" / "comparison.csv").open()))) == 2 + 8 + 7


def test_extra_tables_and_figures_stand_first(pair, tmp_path):
    from cfol_fast.reporting import charts

    table = reporting.Table(
        "recipe",
        "Beside the paper",
        "x",
        ["Row"],
        ["Ours", "Paper"],
        [reporting.Row(["a"], [reporting.Cell("1.0", 0.01), reporting.Cell("2.0", 0.02)])],
    )
    drawn = charts.measures(reporting.read_comparisons(pair)[0])
    text = page(pair, tmp_path, extra=[table], extra_figures=[drawn], title="Table 1")
    assert (
        text.index("Beside the paper") < text.index('id="extra-measures"') < text.index("<h2>Comparison</h2>")
    )
    assert "Table 1" in text
    assert (tmp_path / "page_files" / "recipe.csv").read_text() == "Row,Ours,Paper\na,0.01,0.02\n"


def test_the_picture_is_written_where_asked_and_refuses_runs_without_accuracies(pair, tmp_path):
    assert reporting.picture(pair, tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert reporting.picture(pair, tmp_path / "picture.svg").read_text().startswith("<svg")
    path = pair[1] / "metrics.jsonl"
    path.write_text(path.read_text().splitlines(True)[0])
    (pair[1] / "result.json").unlink()
    with pytest.raises(InputError):
        reporting.picture(pair[1:], tmp_path / "other.png")


def test_a_folder_is_no_page(pair, tmp_path):
    with pytest.raises(InputError):
        reporting.write_report(pair, tmp_path)


def test_the_price_names_the_largest_loss_and_the_false_alarms(tmp_path):
    runs = [make_run(tmp_path / method, method) for method in ("erm", "cfol")]
    text = page(runs, tmp_path)
    accuracies = [load_run(run).robust for run in runs]
    found = price(accuracies[:1], accuracies[1:])
    body = text.split('id="table-price"')[1].split("</table>")[0]
    assert f"{found['largest_loss']['class']} {points(found['largest_loss']['change'])}" in body
    assert f"{found['losing']} of 10" in body
    assert "\u00a0→\u00a0".join(f"{value:.0f}" for value in found["false_alarms"]) in body
    assert text.index('id="table-price"') < text.index('id="measures"')


def test_every_scroll_box_can_be_reached_by_the_keyboard_and_has_a_name(tmp_path):
    text = page([make_run(tmp_path / "erm", "erm")], tmp_path)
    boxes = re.findall(r'<div class="scroll"[^>]*>', text)
    assert boxes
    assert all('tabindex="0"' in box and 'aria-label="' in box for box in boxes)


def test_one_run_against_one_on_the_same_images_has_mcnemars_test_of_the_average(pair, tmp_path):
    assert "p of the average" not in page(pair, tmp_path)
    labels = [0] * 20
    for folder, right in zip(pair, (10, 19), strict=True):
        taken = [0] * right + [1] * (20 - right)
        predictions.write(folder, labels, {"best-average": {"clean": taken, "robust": taken}})
    body = page(pair, tmp_path).split('id="table-price"')[1].split("</table>")[0]
    # Nine images are won and none is lost: 2 / 2^9.
    assert "0.0039" in body
