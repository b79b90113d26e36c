"""The fair table's numbers, verdicts and words, from runs with accuracies of our choice."""

import json

import pytest

from cfol_fast.errors import InputError
from cfol_fast.recipes import kept_predictions
from cfol_fast.recipes.collection import collect, read_frontiers
from cfol_fast.recipes.frontier import drawing, facts, headline, text
from cfol_fast.recipes.index import text as index_text
from cfol_fast.reporting import picture_files
from tests.recipes import fake_frontier

WORST = {
    "erm": [8, 12, 5, 10, 9],
    "cfol": [40, 38, 44, 36, 41],
    "lcvar": [12, 20, 9, 14, 11],
    "dafa": [50, 47, 52, 49, 46],
}
OTHERS = {"erm": 70, "cfol": 66, "lcvar": 69, "dafa": 60}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    return out, fake_frontier.make(out, WORST, OTHERS)


def row(made, name):
    return next(row for row in made[1]["rows"] if row["name"] == name)


@pytest.mark.slow
def test_the_rival_is_the_best_on_the_hold_out(made):
    assert made[1]["rival"] == "dafa"
    assert [item["name"] for item in made[1]["rivals"]] == ["dafa", "lcvar"]


def test_the_three_comparisons_are_judged_together(made):
    found = {(item["better"], item["than"]): item for item in made[1]["declared"]}
    assert list(found) == [("cfol", "erm"), ("dafa", "erm"), ("dafa", "cfol")]
    assert [item["verdict"] for item in found.values()] == ["shown"] * 3
    assert found["cfol", "erm"]["mean"] == pytest.approx(0.31)
    assert found["dafa", "cfol"]["adjusted"] >= found["dafa", "cfol"]["probability"]


def test_one_seed_shows_nothing(tmp_path):
    alone = fake_frontier.make(tmp_path, {"erm": [5], "cfol": [60]}, OTHERS)
    assert [item["verdict"] for item in alone["declared"]] == ["not shown"]
    assert "None of the 1 declared differences" in headline.markdown(alone)


def test_means_have_intervals_over_the_seeds_and_worst_classes_limits_for_their_images(made):
    worst = row(made, "erm")["rules"]["best-average"]["robust"]["worst"]
    assert worst["values"] == [0.08, 0.12, 0.05, 0.1, 0.09]
    assert worst["interval"][0] < worst["mean"] < worst["interval"][1]
    assert all(
        low <= value <= high for value, (low, high) in zip(worst["values"], worst["limits"], strict=True)
    )


def test_the_gap_is_from_the_best_class_to_the_worst(made):
    assert row(made, "erm")["rules"]["last"]["robust"]["gap"]["values"][0] == pytest.approx(0.62)


def test_the_price_names_who_loses_and_the_false_alarms(made):
    price = row(made, "cfol")["price"]
    assert (price["losing"], price["classes"], price["favoured"]) == (9, 10, "class 0")
    assert price["largest_loss"]["change"] == pytest.approx(-0.04)
    assert price["recall"] == pytest.approx([0.088, 0.398])
    # Wrong images of the last class are taken for the first.
    assert price["false_alarms"] == [30, 34]
    assert "price" not in row(made, "erm")


def test_the_words_state_verdicts_price_and_place(made):
    lines = " ".join(text.findings(made[1]))
    assert "CFOL-AT above ERM-AT, robust worst class: is shown (+31.0 points, 95 % interval" in lines
    assert "the best worst class is DAFA-AT's" in lines
    assert "CFOL-AT is number 2 of 4" in lines
    assert "9 of 10 classes lose" in lines


def test_an_erm_under_five_percent_is_called_too_hard(tmp_path):
    weak = fake_frontier.make(tmp_path, {"erm": [1, 2], "cfol": [3, 9]}, OTHERS)
    assert "too hard for a fine comparison" in " ".join(text.findings(weak))


def test_the_page_has_every_table_and_says_what_is_descriptive(made):
    page = text.markdown(made[1])
    for title in (
        "The declared comparisons",
        "Every rule for the checkpoint",
        "The price of each method",
        "AutoAttack",
        "Budget and settings",
        "The settings that were tried",
    ):
        assert f"**{title}.**" in page
    assert page.count("Descriptive") >= 4


def test_settings_of_another_scale_are_said_to_be_its(made):
    assert text.search_table(made[1]).caption.startswith("On the hold-out of seed 1000")
    carried = {**made[1], "settings_from": "mini"}
    assert text.search_table(carried).caption.startswith("At the mini scale, on the hold-out")


def test_the_headline_has_three_rules_and_only_what_is_shown(made):
    found = headline.markdown(made[1])
    assert found.count("ERM-AT") == 5
    assert "DAFA-AT above CFOL-AT" in found
    assert "mean over 5 seeds" in found


def test_the_headline_goes_between_its_marks():
    page = f"before\n{headline.BEGIN}\nold\n{headline.END}\nafter"
    assert headline.put_into(page, "new\n", "x") == f"before\n{headline.BEGIN}\nnew\n{headline.END}\nafter"
    with pytest.raises(InputError, match="no place for the headline"):
        headline.put_into("nothing", "new", "README.md")


def test_the_plot_names_every_row(made):
    drawn = picture_files.drawing(drawing.figure(made[1]))
    for name in ("ERM-AT", "CFOL-AT", "LCVaR-AT", "DAFA-AT"):
        assert f">{name}</text>" in drawn


def same_as_the_images(made, tree):
    """Every figure of the facts again, from what each image was taken for."""
    for entry in made["rows"]:
        for rule, kinds in entry["rules"].items():
            for kind in facts.KINDS:
                for metric in facts.METRICS:
                    values = [
                        facts.statistic(
                            kept_predictions.accuracy(tree, run, rule, kind, made["classes"]), metric
                        )
                        for run in entry["runs"]
                    ]
                    assert kinds[kind][metric]["values"] == pytest.approx(values, abs=1e-6), (
                        entry["name"],
                        rule,
                    )


def test_what_is_kept_has_every_image_and_gives_the_figures_again(made, tmp_path):
    out, found = made
    folder = tmp_path / "reproduction"
    (folder / "frontier").mkdir(parents=True)
    (folder / "runs").symlink_to(out / "runs")
    (folder / "frontier/frontier.json").write_text(json.dumps(found))
    (folder / "frontier/frontier.svg").write_text("<svg/>")
    collect(folder, tmp_path / "results")
    (kept,) = read_frontiers(tmp_path / "results")
    same_as_the_images(kept, kept_predictions.read(tmp_path / "results/mini"))
    before = (tmp_path / "results/mini/predictions.json.gz").read_bytes()
    collect(folder, tmp_path / "results")
    assert (tmp_path / "results/mini/predictions.json.gz").read_bytes() == before
    assert "(mini/frontier.svg)" in index_text(tmp_path / "results")


def test_the_committed_tables_are_what_the_committed_images_say():
    from tests.recipes.test_results import RESULTS

    for kept in read_frontiers(RESULTS):
        same_as_the_images(kept, kept_predictions.read(RESULTS / kept["scale"]))
