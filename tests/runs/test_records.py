"""What is read from run folders, and what is said about files that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cfol_fast.errors import InputError
from cfol_fast.runs.records import find_runs, join_versions, load_run, read_finished
from tests.reporting.synthetic_runs import FASHION, change, make_run


def test_a_finished_run_is_read_as_it_was_written(tmp_path):
    run = load_run(make_run(tmp_path / "run", "cfol", seed=3))
    assert (run.method, run.title, run.dataset, run.model, run.seed) == (
        "cfol",
        "CFOL-AT",
        "fashion-mini",
        "demo-cnn",
        3,
    )
    assert run.finished
    assert run.classes == FASHION
    assert run.robust is not None
    assert list(run.robust.per_class) == FASHION
    assert len(run.train) == len(run.validation) == 12
    assert run.epochs == (12, 12)
    assert set(run.checkpoints) == {"best-average", "best-worst", "last"}


def test_an_unfinished_run_is_read_from_its_configuration_and_metrics(tmp_path):
    run = load_run(make_run(tmp_path / "run", "cfol", seed=4, stopped=5))
    assert not run.finished
    assert run.robust is None
    assert (run.method, run.dataset, run.model, run.seed) == ("cfol", "fashion-mini", "demo-cnn", 4)
    assert run.classes == FASHION
    assert run.epochs == (5, 12)


def test_a_last_line_that_is_being_written_is_left_out(tmp_path):
    folder = make_run(tmp_path / "run", stopped=5)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "epo')
    assert load_run(folder).epochs[0] == 5


@pytest.mark.parametrize("name", ["result.json", "config.json", "gallery.json", "autoattack.json"])
def test_broken_json_is_named_with_its_place(tmp_path, name):
    folder = make_run(tmp_path / "run")
    (folder / name).write_text('{"a": 1,\n "b": }')
    with pytest.raises(InputError, match=rf"{name}: broken JSON at line 2, column 7"):
        load_run(folder)


def test_a_broken_line_of_the_metrics_is_named_by_its_number_in_the_file(tmp_path):
    folder = make_run(tmp_path / "run")
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[4] = '{"kind": "train", "epoch": }\n'
    path.write_text("".join(lines))
    with pytest.raises(InputError, match=r"metrics.jsonl: broken JSON at line 5, column 28"):
        load_run(folder)


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (
            ("test", "robust", "average"),
            67.0,
            r"result.json: test.robust.average must be a number from 0 to 1, got 67.0",
        ),
        (("test", "robust", "average"), "x", r"test.robust.average must be a number"),
        (("test", "robust", "per_class", "Shirt"), -1, r"test.robust.per_class\['Shirt'\]"),
        (("test", "clean"), [], r"test.clean must be an object"),
        (("test", "clean"), {"average": 0.5}, r"test.clean has no 'per_class'"),
        (("test", "robust", "confusion"), [[1]], r"test.robust.confusion must be 10 rows"),
        (("test", "robust", "per_class"), {"Shoe": 0.5}, r"per_class has \['Shoe'\]"),
        (("checkpoints", "last", "robust", "worst"), 2, r"checkpoints\['last'\].robust.worst"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_file_and_key(tmp_path, keys, value, message):
    folder = make_run(tmp_path / "run")
    change(folder / "result.json", *keys, to=value)
    with pytest.raises(InputError, match=message):
        load_run(folder)


def test_files_that_are_not_text_or_not_objects_are_refused(tmp_path):
    folder = make_run(tmp_path / "run")
    (folder / "result.json").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"result.json: not a text file"):
        load_run(folder)
    (folder / "result.json").write_text("[1]")
    with pytest.raises(InputError, match=r"result.json: expected a JSON object, found list"):
        load_run(folder)


def test_missing_values_of_an_accuracy_are_worked_out_from_the_classes(tmp_path):
    folder = make_run(tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    full = result["test"]["robust"]
    for key in ("tail", "worst", "worst_class", "interval"):
        del full[key]
    (folder / "result.json").write_text(json.dumps(result))
    short, whole = load_run(folder).robust, load_run(make_run(tmp_path / "other")).robust
    assert short is not None
    assert whole is not None
    assert short.tail == pytest.approx(whole.tail)
    assert (short.worst, short.worst_class) == (whole.worst, whole.worst_class)
    assert short.interval["Bag"] == pytest.approx(whole.interval["Bag"])


def test_a_folder_of_runs_stands_for_its_runs_but_not_for_their_stages(tmp_path):
    first, second = make_run(tmp_path / "all" / "a"), make_run(tmp_path / "all" / "b" / "c")
    make_run(first / "stage-1")
    assert find_runs([tmp_path / "all"]) == [first, second]
    assert find_runs([first, tmp_path / "all", first]) == [first, second]


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such run folder"):
        find_runs([tmp_path / "nothing"])
    with pytest.raises(InputError, match="not a run folder"):
        find_runs([tmp_path])
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InputError, match="neither a run's result nor an evaluation"):
        load_run(tmp_path / "other.json")


def test_an_evaluation_file_is_read_as_a_run_and_beside_a_run(tmp_path):
    folder = make_run(tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    evaluation = {
        "robust": result["test"]["robust"],
        "clean": result["test"]["clean"],
        "attack": {"kind": "autoattack", "eps": 0.1},
    }
    (folder / "autoattack.json").write_text(json.dumps(evaluation))
    alone = load_run(folder / "autoattack.json")
    assert alone.title == "autoattack"
    assert alone.robust == load_run(folder).robust
    assert [e.attack["kind"] for e in load_run(folder).evaluations] == ["autoattack"]


def test_an_evaluation_with_several_attacks_gives_each_and_the_worst_case(tmp_path):
    folder = make_run(tmp_path / "run")
    test = json.loads((folder / "result.json").read_text())["test"]
    attacks = [
        {"attack": {"kind": "pgd", "steps": 50, "eps": 0.1}, "robust": test["clean"]},
        {"attack": {"kind": "autoattack", "eps": 0.1}, "robust": test["robust"]},
    ]
    evaluation = {"kind": "evaluation", **test, "attacks": attacks, "settings": {"dataset": "fashion-mini"}}
    (folder / "strong.json").write_text(json.dumps(evaluation))
    pgd, autoattack = (entry["attack"] for entry in attacks)
    worst_case = {"kind": "worst case", "of": [pgd, autoattack]}
    assert [(e.attack, e.robust.average) for e in load_run(folder).evaluations] == [
        (pgd, test["clean"]["average"]),
        (autoattack, test["robust"]["average"]),
        (worst_case, test["robust"]["average"]),
    ]
    alone = load_run(folder / "strong.json")
    assert alone.dataset == "fashion-mini"
    assert alone.attack == worst_case


def test_what_evaluate_returns_can_be_read(tmp_path):
    import torch

    from cfol_fast.evaluation import evaluate

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
    x, y = torch.rand(30, 3, 2, 2), torch.arange(30) % 3
    made = evaluate(
        model,
        x,
        y,
        attack={"kind": "pgd", "eps": 0.1, "steps": 2},
        num_classes=3,
        class_names=["a", "b", "c"],
    )
    (tmp_path / "eval.json").write_text(json.dumps(made.to_json()))
    run = load_run(tmp_path / "eval.json")
    assert run.robust is not None
    assert run.robust.average == made.robust.average
    assert run.robust.count == {"a": 10, "b": 10, "c": 10}
    assert run.attack["kind"] == "pgd"


def test_a_result_without_a_confusion_matrix_is_read(tmp_path):
    folder = make_run(tmp_path / "run")
    change(folder / "result.json", "test", "robust", "confusion", to=[])
    assert load_run(folder).robust.confusion is None


def test_a_run_folder_is_not_changed_by_reading_it(tmp_path):
    folder = make_run(tmp_path / "run")
    before = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    load_run(folder)
    assert {path.name: path.read_bytes() for path in Path(folder).iterdir()} == before


def test_every_version_of_several_runs_is_listed_once():
    runs = [{"torch": "2.13", "python": "3.11"}, {"torch": "2.14"}, {"torch": "2.13"}]
    assert join_versions(runs) == {"python": "3.11", "torch": "2.13, 2.14"}


@pytest.mark.parametrize("seconds", ["inf", 1e300, -1, [1]])
def test_a_time_that_no_run_takes_is_refused_by_the_file_s_name(tmp_path, seconds):
    (tmp_path / "result.json").write_text(json.dumps({"method": "cfol", "seconds": seconds}))
    with pytest.raises(InputError, match=r"result\.json"):
        read_finished(tmp_path)
