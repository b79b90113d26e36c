"""The fair table's numbers, verdicts and words, from runs with accuracies of our choice."""

import json

import pytest

from cfol_fast.recipes import kept_predictions
from cfol_fast.recipes.frontier import carrying_out, drawing, facts, plan, sentences, text, writing
from cfol_fast.reporting import picture_files
from cfol_fast.runs.accuracy import Accuracy
from cfol_fast.runs.intervals import clopper_pearson
from tests.recipes import fake_frontier, tiny_frontier
from tests.recipes.test_committed_frontier import same_as_the_images
from tools.collection import collect, read_frontiers
from tools.index import text as index_text

# Whole plans and tables: `make check` leaves them out.
pytestmark = pytest.mark.slow

WORST = {
    "erm": [8, 12, 5, 10, 9],
    "cfol": [40, 38, 44, 36, 41],
    "lcvar": [12, 20, 9, 14, 11],
    "dafa": [50, 47, 52, 49, 46],
}
OTHERS = {"erm": 70, "cfol": 66, "lcvar": 69, "dafa": 60}
HELD = {"lcvar": 0.2, "dafa": 0.45}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    return out, fake_frontier.make(out, WORST, OTHERS, HELD)


def row(made, name):
    return next(row for row in made[1]["rows"] if row["name"] == name)


def test_the_rival_is_the_best_on_the_searchs_hold_out(made):
    assert made[1]["rival"] == "dafa"
    assert made[1]["rivals"] == [
        {"name": "dafa", "holdout_worst": 0.45},
        {"name": "lcvar", "holdout_worst": 0.2},
    ]


def test_the_tables_own_seeds_have_no_say_in_who_the_rival_is(tmp_path):
    """Where the rival is chosen by the runs that it is then judged by, luck with these seeds counts twice."""
    lucky = fake_frontier.make(tmp_path, WORST, OTHERS, {"lcvar": 0.3, "dafa": 0.1})
    assert lucky["rival"] == "lcvar"
    assert [item["better"] for item in lucky["declared"]] == ["cfol", "lcvar", "lcvar"]


def test_only_chosen_settings_of_rivals_are_ranked():
    tried = [("lcvar", 0.9, False), ("lcvar", 0.2, True), ("dafa", 0.4, True), ("cfol", 0.8, True)]
    search = [fake_frontier.searched(row, {}, worst, chosen) for row, worst, chosen in tried]
    assert facts.rank_rivals(plan.read(), search) == [("dafa", 0.4), ("lcvar", 0.2)]


def searched_again(folder, test_worst):
    """The search of a small table whose runs are there: hold-outs as ever, test figures with so many right in
    the worst class.
    """
    rows = tiny_frontier.write(
        folder / "rows.toml", tiny_frontier.ERM, tiny_frontier.CFOL, tiny_frontier.LCVAR
    )
    place = plan.Place(plan.read(rows), plan.read(rows).scales["mini"], device="cpu")
    held = {("cfol", 1e-4): 30, ("cfol", 2e-4): 40, ("lcvar", 0.5): 20}
    for (name, value), worst in held.items():
        row = place.table.row(name)
        job = place.search_run(row, {"alpha" if name == "lcvar" else "eta": value})
        fake_frontier.write(job, folder, worst, 60)
        result = json.loads((job.folder(folder) / "result.json").read_text())
        tested = {kind: fake_frontier.figures([test_worst[name, value], *[50] * 9]) for kind in facts.KINDS}
        result["test"] = tested
        result["checkpoints"] = {rule: {**kept, **tested} for rule, kept in result["checkpoints"].items()}
        (job.folder(folder) / "result.json").write_text(json.dumps(result))
    carrier = carrying_out.Carrier(place, folder, [], False, True)
    found = carrying_out._search(carrier)
    return found, facts.rank_rivals(place.table, found)


def test_test_figures_have_no_say_in_what_is_chosen(tmp_path):
    places = [tmp_path / name for name in ("good", "bad")]
    for place in places:
        place.mkdir()
    good = searched_again(places[0], {("cfol", 1e-4): 1, ("cfol", 2e-4): 50, ("lcvar", 0.5): 5})
    bad = searched_again(places[1], {("cfol", 1e-4): 50, ("cfol", 2e-4): 1, ("lcvar", 0.5): 45})
    assert good == bad
    assert [item["settings"] for item in good[0] if item["chosen"]] == [{"eta": 2e-4}, {"alpha": 0.5}]
    assert good[1] == [("lcvar", 0.2)]


def test_runs_are_paired_by_seed_and_not_by_place(made, tmp_path):
    backwards = {name: values[::-1] if name == "cfol" else values for name, values in WORST.items()}
    turned = fake_frontier.make(tmp_path, backwards, OTHERS, HELD, {"cfol": [14, 13, 12, 11, 10]})
    assert turned["declared"] == made[1]["declared"]
    assert turned["rows"][1]["price"] == made[1]["rows"][1]["price"]


def test_seeds_that_only_one_side_has_take_no_part(tmp_path):
    found = fake_frontier.make(
        tmp_path,
        {"erm": [90, 5, 7], "cfol": [20, 25, 0]},
        OTHERS,
        seeds={"erm": [9, 10, 11], "cfol": [10, 11, 12]},
    )
    assert found["declared"][0]["seeds"] == [10, 11]
    assert found["declared"][0]["values"] == [0.15, 0.18]
    assert found["rows"][1]["price"]["recall"] == pytest.approx([0.06, 0.225])


def test_the_three_comparisons_are_judged_together(made):
    found = {(item["better"], item["than"]): item for item in made[1]["declared"]}
    assert list(found) == [("cfol", "erm"), ("dafa", "erm"), ("dafa", "cfol")]
    assert [item["verdict"] for item in found.values()] == ["shown"] * 3
    assert found["cfol", "erm"]["mean"] == pytest.approx(0.31)
    assert found["dafa", "cfol"]["adjusted"] >= found["dafa", "cfol"]["probability"]


def test_equal_differences_of_thirds_do_not_differ_by_their_rounding():
    """Each seed's difference is 100 of 300 images; rounded to six digits first, they would differ, by next to
    nothing, and be shown.
    """

    def of(right):
        return {facts.RULE: {"robust": Accuracy.from_confusion(["a", "b"], [[right, 300 - right], [0, 300]])}}

    tested = {"erm": {10: of(0), 11: of(1), 12: of(2)}, "cfol": {10: of(100), 11: of(101), 12: of(102)}}
    (found,) = facts.declared(facts.compared(tested), None, {"erm": "ERM-AT", "cfol": "CFOL-AT"})
    assert (found["interval"], found["verdict"]) == (None, "not shown")
    assert found["values"] == [0.333333] * 3


def test_a_verdict_says_the_probability_that_it_was_judged_by(tmp_path):
    """Over one comparison alone it would be shown, over all three it is not: the interval of it alone does
    not tell.
    """
    worst = {"erm": [20, 30, 18, 22, 26], "cfol": [30, 35, 20, 33, 30], "lcvar": [24, 22, 30, 18, 27]}
    found = fake_frontier.make(tmp_path, worst, OTHERS, {"lcvar": 0.2})
    first = found["declared"][0]
    assert first["interval"][0] > 0
    assert first["probability"] < 0.05 < first["adjusted"]
    assert f"; 5 seeds, Holm-adjusted p = {first['adjusted']:.2g})." in sentences.verdicts(found)[0]
    assert ": not shown (" in sentences.verdicts(found)[0]


def test_one_seed_shows_nothing(tmp_path):
    alone = fake_frontier.make(tmp_path, {"erm": [5], "cfol": [60]}, OTHERS)
    assert [item["verdict"] for item in alone["declared"]] == ["not shown"]
    said = "CFOL-AT above ERM-AT, robust worst class: not shown (+55.0 points; 1 seed)."
    assert said in sentences.verdicts(alone)
    assert "mean over 1 seed ±" in text.main_tables(alone)[0].caption


def test_means_have_intervals_over_the_seeds_and_worst_classes_limits_for_their_images(made):
    worst = row(made, "erm")["rules"]["best-average"]["robust"]["worst"]
    assert worst["values"] == [0.08, 0.12, 0.05, 0.1, 0.09]
    assert worst["interval"][0] < worst["mean"] < worst["interval"][1]
    assert all(
        low <= value <= high for value, (low, high) in zip(worst["values"], worst["limits"], strict=True)
    )


def test_every_seed_has_its_worst_class_with_an_interval_for_its_images(made):
    table = text.seeds_table(made[1])
    assert table.columns == ["seed 10", "seed 11", "seed 12", "seed 13", "seed 14"]
    # Eight of 100 images, at the level of ten classes.
    low, high = clopper_pearson(8, 100, 0.05 / 10)
    assert table.rows[0].cells[0].text == f"8.0 [{100 * low:.1f}, {100 * high:.1f}]"
    assert "AT,ERM-AT,0.08,0.12,0.05,0.1,0.09" in table.csv()
    assert "1 − 0.05/10" in table.caption


def test_a_row_with_fewer_seeds_has_a_dash_for_the_others(tmp_path):
    found = fake_frontier.make(tmp_path, {"erm": [5, 7, 6], "cfol": [20, 25]}, OTHERS)
    assert [cell.text for cell in text.seeds_table(found).rows[1].cells][2] == "–"


def test_whose_worst_class_a_mean_is_of_is_said(made):
    said = "Tail and worst class are those of each seed"
    assert said in text.main_tables(made[1])[0].caption


def test_a_method_of_the_search_that_the_table_leaves_out_has_its_title(made):
    search = [fake_frontier.searched("faal", {"radius": 0.5}, 0.3)]
    assert text.search_table({**made[1], "search": search}).rows[0].stubs == ["FAAL-AT"]


def test_the_command_says_nothing_about_the_machine_it_ran_on():
    assert carrying_out._command("mini", None) == "cfol-fast reproduce frontier --scale mini"
    assert carrying_out._command("small", "/home/somebody/cifar10").endswith("--scale small --data DIR")


def test_where_all_rows_are_equal_none_is_the_best(tmp_path):
    found = fake_frontier.make(tmp_path, {"erm": [5, 7], "cfol": [5, 7]}, {"erm": 70, "cfol": 70})
    assert not any(cell.best for row in text.main_tables(found)[0].rows for cell in row.cells)


def test_autoattack_says_that_its_images_are_a_part_of_the_others(made):
    assert (
        "compare its rows with each other, not with the tables above"
        in text.autoattack_table(made[1]).caption
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
    lines = " ".join(sentences.findings(made[1]))
    assert (
        "CFOL-AT above ERM-AT, robust worst class: shown (+31.0 points, unadjusted 95 % confidence interval +"
        in lines
    )
    assert "the best worst class is DAFA-AT's" in lines
    assert "Exploratory: CFOL-AT is number 2 of 4" in lines
    assert "9 of 10 classes lose" in lines


def test_an_erm_under_five_percent_is_called_too_hard(tmp_path):
    weak = fake_frontier.make(tmp_path, {"erm": [1, 2], "cfol": [3, 9]}, OTHERS)
    assert "too hard for a fine comparison" in " ".join(sentences.findings(weak))


def test_the_page_has_every_table_and_says_what_is_descriptive(made):
    page = text.markdown(made[1])
    for title in (
        "The declared comparisons",
        "The worst class of every seed",
        "Every rule for the checkpoint",
        "The price of each method",
        "AutoAttack",
        "Budget, tested epochs and settings",
        "The settings that were tried",
    ):
        assert f"**{title}.**" in page
    assert page.count("Descriptive") >= 4
    assert page.count("over seeds, on one fixed test set") >= 3


def test_whatever_compares_and_was_not_declared_calls_itself_descriptive(made):
    compares = [
        table
        for table in text.tables(made[1])
        if table.key not in ("frontier-declared", "frontier-budget", "frontier-search")
    ]
    assert len(compares) == 6
    assert all("Descriptive" in table.caption for table in compares)
    said = [line for line in sentences.findings(made[1]) if line not in sentences.verdicts(made[1])]
    states = ("xploratory", "chosen on", "begins to act")
    assert [line for line in said if not any(word in line for word in states)] == []
    assert "Descriptive" in drawing.figure(made[1]).caption


def test_what_was_seen_before_the_comparisons_were_declared_is_said(made):
    caption = text.declared_table(made[1]).caption
    assert caption.startswith("Declared before any run of the table's seeds")
    assert "Seeds 0 to 2 of ERM-AT and CFOL-AT were published before" in caption


def test_where_the_settings_come_from_stands_under_them(made):
    caption = text.search_table(made[1]).caption
    assert (
        "CFOL-AT, CFOL-AT (reweighted), FOL-AT, CFOL-TRADES: eta=auto for the length of these runs, times"
        in caption
    )
    assert "TRADES: beta 6, as in every row on it but FRL" in caption
    assert "Group DRO: the authors' 0.01" in caption


def test_step_sizes_that_follow_the_length_of_a_run_are_said_to_be_scaled(made):
    assert "so many times those listed" not in text.markdown(made[1])
    small = {**made[1], "eta_times": {"CFOL-AT": 0.381}}
    assert "Step sizes are so many times those listed: CFOL-AT 0.381." in text.markdown(small)


def test_settings_of_another_scale_are_said_to_be_its(made):
    assert text.search_table(made[1]).caption.startswith("On the hold-out of seed 1000")
    carried = {**made[1], "settings_from": "mini"}
    assert text.search_table(carried).caption.startswith("At the mini scale, on the hold-out")
    assert "chosen on the search's hold-out, is DAFA-AT" in " ".join(sentences.findings(made[1]))
    assert "chosen on the mini scale's hold-out, is DAFA-AT" in " ".join(sentences.findings(carried))


def test_the_page_is_headed_by_the_declared_comparisons_alone(made, tmp_path):
    out, found = made
    (tmp_path / "page").mkdir()
    writing.write(found, tmp_path / "page", out / "runs")
    page = (tmp_path / "page/report.html").read_text()
    assert "<h1>The declared comparisons of the worst class</h1>" in page
    assert "DAFA-AT above CFOL-AT, robust worst class: shown" in page
    assert "what comes after the plot is on ERM-AT, CFOL-AT and DAFA-AT alone." in page
    assert "lifts the worst class" not in page
    assert 'class="cards"' not in page


def with_offsets(made, right):
    """The same runs, but offsets give erm so many right images of 100 in the worst class, and 66 in the
    others.
    """
    out, found = made
    tested = {
        entry["name"]: {
            seed: facts.of_run(out / "runs" / run)
            for seed, run in zip(entry["seeds"], entry["runs"], strict=True)
        }
        for entry in found["rows"]
    }
    after = Accuracy.from_json(fake_frontier.figures([right, *[66] * 9]), "offsets")
    for of_run in tested["erm"].values():
        of_run["offsets"] = {"clean": after, "robust": after}
    return tested


def test_the_rows_that_are_judged_stand_beside_erm_with_class_offsets(made):
    found = facts.beside_offsets(with_offsets(made, 38), ["cfol", "dafa"])
    assert [item["row"] for item in found] == ["cfol", "dafa"]
    # 40, 38, 44, 36 and 41 right against 38; of the other classes 66 against 66.
    assert found[0]["worst"]["values"] == [0.02, 0, 0.06, -0.02, 0.03]
    assert found[0]["average"]["mean"] == pytest.approx(0.0018)
    assert found[0]["worst"]["interval"][0] < 0 < found[0]["worst"]["interval"][1]
    lines = sentences.findings({**made[1], "beside_offsets": found})
    (said,) = [line for line in lines if "class offsets on ERM-AT" in line]
    assert "CFOL-AT beside it: +1.8 [" in said
    assert "in the worst class, +0.2 [" in said
    assert "verdict" not in found[0]["worst"]


def test_without_offsets_nothing_is_said_of_them(made):
    tested = with_offsets(made, 38)
    for of_run in tested["erm"].values():
        del of_run["offsets"]
    assert facts.beside_offsets(tested, ["cfol"]) == []


def test_who_is_the_best_by_other_rules_is_said(made):
    changed = json.loads(json.dumps(made[1]))
    changed["rows"][2]["rules"]["last"]["robust"]["worst"].update(mean=0.9, interval=None)
    (said,) = [line for line in sentences.findings(changed) if "by other rules" in line]
    assert "chosen by the worst class, DAFA-AT's" in said
    assert "the last epoch, LCVaR-AT's, 90.0 %" in said


def test_a_checkpoint_from_before_the_method_began_is_called_its_base(made):
    """DAFA waits for 7/11 of a run, 8 of 12 epochs; the best average of these runs is epoch 2."""
    dafa, cfol = row(made, "dafa"), row(made, "cfol")
    assert (dafa["begins"], dafa["epochs"]) == (8, [2] * 5)
    assert cfol["begins"] is None
    (said,) = [line for line in sentences.findings(made[1]) if "begins to act" in line]
    assert said.startswith(
        "DAFA-AT begins to act after epoch 8, and the best-average checkpoint of 5 of 5 seeds"
    )
    assert "ERM-AT under another name" in said
    later = json.loads(json.dumps(made[1]))
    for entry in later["rows"]:
        entry["epochs"] = [8, 9, 12, 12, 12]
    (said,) = [line for line in sentences.findings(later) if "begins to act" in line]
    assert "of 1 of 5 seeds" in said
    assert text.budget_table(later).rows[0].cells[4].text == "8, 9, 12, 12, 12"


def test_methods_that_train_with_the_hold_out_are_named_where_they_are_chosen_by_it(made):
    assert "hold-out in training" not in text.search_table(made[1]).caption
    search = [fake_frontier.searched(name, {}, 0.3) for name in ("wat", "cfol", "frl")]
    caption = text.search_table({**made[1], "search": search}).caption
    assert "WAT and FRL set their class weights by the same hold-out in training" in caption
    assert "WAT sets its class weights" in text.search_table({**made[1], "search": search[:1]}).caption


def test_a_rival_on_another_base_is_said_to_be(tmp_path):
    worst = {"erm": [8, 12], "cfol": [40, 38], "trades": [10, 14], "wat": [30, 28]}
    found = fake_frontier.make(tmp_path, worst, {**OTHERS, "trades": 68, "wat": 66}, {"wat": 0.4})
    lines = " ".join(sentences.findings(found))
    assert "is WAT; it is built on TRADES, ERM-AT and CFOL-AT are not." in lines
    assert "Trade-off of WAT against TRADES (exploratory):" in lines
    assert "(ERM-AT and TRADES)" in text.price_table(found).caption


def test_the_plots_file_says_what_its_crosses_are_and_has_the_judged_rows_on_top(made, tmp_path):
    out, found = made
    writing.write(found, tmp_path, out / "runs")
    assert "crosses are 95 % t-intervals" in (tmp_path / "frontier.svg").read_text()
    points = drawing.figure(found).charts[0].points
    assert [point.strong for point in points] == [False, True, True, True]


def test_the_plot_names_every_row(made):
    drawn = picture_files.drawing(drawing.figure(made[1]))
    for name in ("ERM-AT", "CFOL-AT", "LCVaR-AT", "DAFA-AT"):
        assert f">{name}</text>" in drawn


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
    assert "## The fair table: the mini scale\n" in index_text(tmp_path / "results")
    # What was tried before, and what a person makes of it, cannot be computed.
    (tmp_path / "results/notes.toml").write_text('["mini/frontier"]\nnote = "Eight epochs were too few."\n')
    assert "\n\nEight epochs were too few.\n\n" in index_text(tmp_path / "results")


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts["declared"][0].update(verdict="not shown"),
        lambda facts: facts["rows"][1]["rules"]["last"]["clean"]["worst"].update(limits=[[0, 1]] * 5),
        lambda facts: facts["rows"][1]["price"].update(losing=0),
        lambda facts: facts["rows"][0]["autoattack"]["robust"]["worst"].update(mean=0.5),
        lambda facts: facts["beside_offsets"][0]["worst"].update(mean=0.5),
        lambda facts: facts["search"][0].update(chosen=True),
        lambda facts: facts.update(rival="lcvar"),
    ],
    ids=["declared", "limits", "price", "autoattack", "offsets", "search", "rival"],
)
def test_a_figure_that_the_images_do_not_give_is_found(made, tmp_path, change):
    out, found = made
    altered = json.loads(json.dumps(found))
    kept_predictions.add(tmp_path, out / "runs", [run for entry in found["rows"] for run in entry["runs"]])
    same_as_the_images(altered, kept_predictions.read(tmp_path))
    change(altered)
    with pytest.raises(AssertionError):
        same_as_the_images(altered, kept_predictions.read(tmp_path))


FEWER = {
    "erm": [8, 12, 5, 10, 9],
    "cfol": [20, 18, 24, 16, 21],
    "trades": [9, 8, 9],
    "wat": [30, 32, 31, 50, 60],
}


@pytest.fixture(scope="module")
def fewer(tmp_path_factory):
    """A table whose rows have different numbers of seeds: TRADES has three, what is built on it five."""
    others = {**OTHERS, "trades": 66, "wat": 60}
    found = fake_frontier.make(tmp_path_factory.mktemp("fewer"), FEWER, others, {"wat": 0.4})
    return {**found, "settings_from": "mini", "dataset": "folder"}


def test_different_numbers_of_seeds_are_said(fewer, made):
    for table in text.main_tables(fewer):
        assert table.columns[-1] == "seeds"
        assert [row.cells[-1].text for row in table.rows] == ["5", "5", "3", "5"]
    assert text.main_tables(made[1])[0].columns[-1] != "seeds"
    lines = " ".join(sentences.findings(fewer))
    assert "the best worst class is WAT's, 40.6 ± 16.9 % (5 seeds)" in lines
    # Of the first three seeds, where its row in the tables has five.
    assert "Trade-off of WAT against TRADES over the 3 seeds that both have" in lines
    assert "Trade-off of CFOL-AT against ERM-AT (exploratory)" in lines
    assert "over the seeds that both have" in text.price_table(fewer).caption
    assert " seeds)" not in " ".join(sentences.findings(made[1])[3:])


def test_a_scale_with_some_of_the_rows_says_which_and_why(fewer, made):
    page = text.markdown(fewer)
    assert (
        "Not every row of the mini scale is trained here: ERM-AT, CFOL-AT and WAT have 5 seeds, TRADES 3"
        " seeds;" in page
    )
    assert "Not every row" not in text.markdown(made[1])


def test_a_table_on_a_folder_says_what_another_copy_of_the_images_needs(fewer, made):
    assert "leave `data.content` out" in text.markdown(fewer)
    assert "data.content" not in text.markdown(made[1])
