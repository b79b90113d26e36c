"""Seeds become one group, methods keep their colours, and only comparable runs are compared."""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path

import pytest

from cfol_fast.errors import InputError
from cfol_fast.methods import METHODS
from cfol_fast.plain_text import points
from cfol_fast.reporting.groups import compare
from cfol_fast.reporting.report import read_comparisons
from cfol_fast.reporting.theme import SERIES
from cfol_fast.reporting.wording import attack_phrase, duration, headline, radius
from cfol_fast.runs.records import find_runs, load_run
from tests.reporting.synthetic_runs import change, make_run


def comparison(*folders, **options):
    return compare([load_run(folder) for folder in folders], **options)


def test_seeds_of_one_configuration_are_a_mean_and_a_deviation(tmp_path):
    folders = [make_run(tmp_path / str(seed), "cfol", seed=seed) for seed in range(3)]
    made = comparison(*folders)
    assert [[run.seed for run in group.runs] for group in made.groups] == [[0, 1, 2]]
    worst = [load_run(folder).robust.worst for folder in folders]
    stat = made.groups[0].stat("robust", "worst")
    assert stat.mean == pytest.approx(statistics.mean(worst))
    assert stat.deviation == pytest.approx(statistics.stdev(worst))
    shirt = [load_run(folder).robust.per_class["Shirt"] for folder in folders]
    assert made.groups[0].class_stat("robust", "Shirt").deviation == pytest.approx(statistics.stdev(shirt))


@pytest.mark.parametrize("tested", ["both", "the copy"])
def test_a_copied_run_is_no_second_seed(tmp_path, tested):
    first, other = make_run(tmp_path / "a", "cfol", seed=0), make_run(tmp_path / "b", "cfol", seed=1)
    copy = Path(shutil.copytree(first, tmp_path / "copy"))
    if tested == "the copy":
        (first / "result.json").unlink()
    made = comparison(first, copy, other)
    chosen, left = (copy, first) if tested == "the copy" else (first, copy)
    assert [run.path for run in made.groups[0].runs] == [chosen, other]
    alone = comparison(chosen, other)
    assert made.groups[0].stat("robust", "worst") == alone.groups[0].stat("robust", "worst")
    assert made.groups[0].heading == alone.groups[0].heading
    assert [caveat for caveat in made.caveats() if str(left) in caveat and "count as one" in caveat]
    assert not alone.caveats()


def test_evaluations_of_unknown_seeds_are_no_seeds_of_one_run(tmp_path):
    run = make_run(tmp_path / "run", "cfol", seed=0)
    tree = json.loads((run / "result.json").read_text())
    files = [tmp_path / name / "eval.json" for name in "ab"]
    for file in files:
        file.parent.mkdir()
        file.write_text(json.dumps({key: value for key, value in tree.items() if key != "seed"}))
    assert [len(group.runs) for group in comparison(*files).groups] == [1, 1]


def test_runs_that_were_set_aside_are_passed_over_unless_they_are_named(tmp_path):
    for name in ("runs/a", "runs/a.old-1", "runs/a.old-12", "runs/b.old-3/below", "runs/c.older-1"):
        make_run(tmp_path / name)
    runs = tmp_path / "runs"
    assert find_runs([runs]) == [runs / "a", runs / "c.older-1"]
    assert find_runs([runs / "a.old-1"]) == [runs / "a.old-1"]
    assert find_runs([runs / "b.old-3"]) == [runs / "b.old-3/below"]
    both = [runs / "a", runs / "a.old-1"]
    assert find_runs(both) == both
    # With the settings and the seed of its new run it is no second seed.
    assert [len(group.runs) for group in comparison(*both).groups] == [1]


def test_a_single_run_has_the_interval_of_its_file(tmp_path):
    folder = make_run(tmp_path / "run")
    stat = comparison(folder).groups[0].class_stat("robust", "Bag")
    assert (stat.low, stat.high) == load_run(folder).robust.interval["Bag"]


def test_other_settings_are_another_group_and_its_label_says_which(tmp_path):
    made = comparison(
        make_run(tmp_path / "a", params={"gamma": 0.5}),
        make_run(tmp_path / "b", params={"gamma": 0.9}),
        make_run(tmp_path / "c", seed=1, params={"gamma": 0.9}),
    )
    assert [(group.label, len(group.runs)) for group in made.groups] == [
        ("CFOL-AT (gamma 0.5)", 1),
        ("CFOL-AT (gamma 0.9)", 2),
    ]


def test_a_label_names_only_what_is_unusual(tmp_path):
    settings = [
        {"eta": 1e-4, "prior": "a"},
        {"eta": 2e-4, "prior": "a"},
        {"eta": 3e-4, "prior": "a"},
        {"eta": 1e-4, "prior": "b"},
    ]
    made = comparison(*[make_run(tmp_path / str(i), params=params) for i, params in enumerate(settings)])
    assert [group.label for group in made.groups] == [
        "CFOL-AT (eta 0.0001)",
        "CFOL-AT (eta 0.0002)",
        "CFOL-AT (eta 0.0003)",
        "CFOL-AT (prior b)",
    ]


def test_where_a_run_was_carried_out_does_not_split_a_group(tmp_path):
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b", seed=1)
    change(second / "config.json", "device", to="cuda:1")
    change(second / "config.json", "data", "root", to="/elsewhere")
    assert len(comparison(first, second).groups) == 1


def test_erm_is_the_baseline_wherever_it_stands_and_another_can_be_chosen(tmp_path):
    cfol, erm = make_run(tmp_path / "cfol", "cfol"), make_run(tmp_path / "erm", "erm")
    assert [group.method for group in comparison(cfol, erm).groups] == ["erm", "cfol"]
    assert comparison(erm, cfol, baseline="cfol").baseline.method == "cfol"
    assert comparison(erm, cfol, baseline="CFOL-AT").baseline.method == "cfol"
    with pytest.raises(InputError, match=r"'trades'.*cfol, erm"):
        comparison(erm, cfol, baseline="trades")


def test_a_method_has_the_same_colour_on_every_page(tmp_path):
    runs = {method: make_run(tmp_path / method, method) for method in ("erm", "cfol", "lcvar", "fol")}
    everything = {group.method: group.colour for group in comparison(*runs.values()).groups}
    assert len(set(everything.values())) == 4
    for method, folder in runs.items():
        assert comparison(folder).groups[0].colour == everything[method]


def test_colours_of_the_table_of_methods_are_in_the_palette():
    own = [method.colour for method in METHODS.values() if method.colour is not None]
    assert set(own) <= set(SERIES)
    assert len(own) == len(set(own))


def test_more_groups_than_colours_share_them_by_method(tmp_path):
    folders = [make_run(tmp_path / str(i), params={"gamma": 0.05 * i}) for i in range(1, 13)]
    folders.append(make_run(tmp_path / "erm", "erm"))
    colours = [(group.method, group.colour) for group in comparison(*folders).groups]
    assert set(colours) == {(method, METHODS[method].colour) for method in ("erm", "cfol")}


def test_runs_on_different_data_sets_are_refused_with_the_way_out(tmp_path):
    folders = [make_run(tmp_path / "a"), make_run(tmp_path / "b", dataset="cifar10")]
    with pytest.raises(InputError, match=r"cifar10.*fashion-mini.*--separate"):
        read_comparisons(folders)
    assert [made.dataset for made in read_comparisons(folders, separately=True)] == [
        "fashion-mini",
        "cifar10",
    ]


def test_runs_with_other_classes_are_refused(tmp_path):
    names = [f"c{i}" for i in range(10)]
    folders = [make_run(tmp_path / "a"), make_run(tmp_path / "b", names=names)]
    with pytest.raises(InputError, match="c0, c1, c2"):
        read_comparisons(folders)


def test_an_unfinished_seed_is_left_out_of_the_mean(tmp_path):
    done, stopped = make_run(tmp_path / "a"), make_run(tmp_path / "b", seed=1, stopped=4)
    group = comparison(done, stopped).groups[0]
    assert group.label == "CFOL-AT"
    assert len(group.runs) == 2
    assert group.stat("robust", "average").mean == load_run(done).robust.average


def test_a_group_without_a_test_result_shows_its_last_validation(tmp_path):
    folder = make_run(tmp_path / "run", stopped=7)
    group = comparison(folder).groups[0]
    assert group.partial == "hold-out, epoch 7 of 12"
    assert group.stat("robust", "worst").mean == load_run(folder).validation[-1]["robust"].worst


def test_an_unfinished_run_is_not_what_the_headline_is_about(tmp_path):
    made = comparison(make_run(tmp_path / "erm", "erm"), make_run(tmp_path / "cfol", "cfol", stopped=7))
    assert made.focus is None
    assert headline(made)[0].startswith("ERM-AT holds")


def test_the_headline_says_which_way_the_worst_class_went(tmp_path):
    erm, cfol = make_run(tmp_path / "erm", "erm"), make_run(tmp_path / "cfol", "cfol")
    for worst, words in (
        (0.4, "lifts the worst class from 20.0 to 40.0"),
        (0.1, "lowers the worst class from 20.0 to 10.0"),
        (0.2, "leaves the worst class at 20.0"),
    ):
        change(erm / "result.json", "test", "robust", "worst", to=0.2)
        change(cfol / "result.json", "test", "robust", "worst", to=worst)
        assert f"CFOL-AT {words}" in headline(comparison(erm, cfol))[0]


def seeds_with_worst(tmp_path, worst):
    """Runs of ERM and CFOL with these worst classes, one value for each seed."""
    folders = []
    for method, values in worst.items():
        for seed, value in enumerate(values):
            folders.append(make_run(tmp_path / f"{method}-{seed}", method, seed=seed))
            change(folders[-1] / "result.json", "test", "robust", "worst", to=value)
    return comparison(*folders)


@pytest.mark.parametrize(
    ("cfol", "said"),
    [
        ([0.4], "One seed shows no difference"),
        ([0.4, 0.1, 0.2], "The difference is not shown over 3 seeds"),
        ([0.4, 0.42, 0.41], "The difference is shown over 3 seeds: its 95 % interval is +1"),
        ([0.3, 0.31, 0.32], "the same in each of 3 seeds"),
    ],
)
def test_the_headline_says_what_the_seeds_show(tmp_path, cfol, said):
    erm = [0.2, 0.21, 0.22][: len(cfol)]
    assert said in headline(seeds_with_worst(tmp_path, {"erm": erm, "cfol": cfol}))[1]


def test_the_best_of_several_by_its_test_result_is_called_descriptive(tmp_path):
    """Which one it is was seen in the figures that the interval is made of: nothing is shown by them."""
    worst = {"erm": [0.2, 0.21, 0.22], "cfol": [0.4, 0.42, 0.41], "lcvar": [0.3, 0.31, 0.33]}
    first, second = headline(seeds_with_worst(tmp_path, worst))
    assert first.startswith("CFOL-AT lifts")
    assert "CFOL-AT is the best of 2 methods by this test result itself" in second
    assert "The unadjusted 95 % interval of the difference over 3 seeds is +1" in second
    assert "shown" not in second


def test_the_worst_class_has_an_interval_for_whichever_class_it_is(tmp_path):
    group = comparison(make_run(tmp_path / "erm", "erm")).groups[0]
    accuracy = group.accuracies("robust")[0]
    stat = group.stat("robust", "worst")
    assert (stat.low, stat.high) == accuracy.limits("worst")
    assert stat.low < accuracy.interval[accuracy.worst_class][0]


@pytest.mark.parametrize(
    ("eps", "text"),
    [(8 / 255, "8/255"), (0.1, "0.1"), (0.5, "0.5"), (1 / 255, "1/255"), (0.031, "0.031"), (0, "0")],
)
def test_perturbation_sizes_are_quoted_as_people_do(eps, text):
    assert radius(eps) == text


def test_attacks_and_times_in_words():
    assert attack_phrase({"kind": "pgd", "steps": 20, "eps": 8 / 255, "norm": "linf"}) == "PGD-20, ε = 8/255"
    assert attack_phrase({"kind": "autoattack", "eps": 0.1}) == "AutoAttack, ε = 0.1"
    assert attack_phrase({"kind": "pgd", "steps": 20, "loss": "ce"}) == "PGD-20"
    assert attack_phrase({"kind": "pgd", "steps": 20, "loss": "cw"}) == "PGD-20 (cw loss)"
    assert attack_phrase({}) == ""
    assert [duration(s) for s in (None, 5, 171.3, 7260)] == ["–", "5 s", "2 min 51 s", "2 h 01 min"]
    assert [points(d) for d in (0.293, -0.031, 0.0001, -0.0001)] == ["+29.3", "−3.1", "0.0", "0.0"]
