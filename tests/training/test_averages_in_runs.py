"""The weights' moving average in whole runs: beside training, which it does not change, with rows and
checkpoints of its own.
"""

import json

import pytest
import torch

from cfol_fast import evaluation
from cfol_fast.commands import main as cli
from cfol_fast.errors import InputError
from cfol_fast.methods import METHODS
from cfol_fast.runs.loading import load, read_checkpoint
from cfol_fast.runs.metrics import SELECTION
from cfol_fast.runs.metrics_log import read_rows
from cfol_fast.training import train
from cfol_fast.training.callbacks import scalars
from tests.training import tiny

SHORT = {"epochs": 2, "steps_per_epoch": 2}
EMA = {"ema__decay": 0.9}
FAWA = {"ema__decay": 0.88, "ema__per": "epoch"}


@pytest.fixture
def run(few_images, tmp_path):
    return tiny.run(tmp_path / "run", **EMA, epochs=3).folder


def validations(folder) -> list[dict]:
    return [row for row in read_rows(folder) if row["kind"] == "validation"]


def without_average(tree: dict) -> dict:
    """A checkpoint, a row or a result without what the average adds."""
    return {key: value for key, value in tree.items() if not key.startswith("ema")}


@pytest.mark.parametrize("method", ["cfol", "dafa-trades"])
@pytest.mark.slow
def test_training_is_bit_for_bit_the_same_with_and_without(few_images, tmp_path, method):
    tiny.run(tmp_path / "without", method, **SHORT)
    tiny.run(tmp_path / "with", method, **SHORT, **EMA)
    (weights, rows, result), (more, more_rows, more_result) = (
        tiny.outcome(tmp_path / name) for name in ("without", "with")
    )
    for name, tensors in weights.items():
        assert all(torch.equal(tensor, more[name][key]) for key, tensor in tensors.items()), name
    assert [without_average(row) for row in more_rows] == rows
    assert without_average(more_result["checkpoints"]) == result["checkpoints"]
    assert more_result["test"] == result["test"]


def test_it_is_validated_and_tested_beside_the_weights(run):
    rows = validations(run)
    assert [row["ema"]["updates"] for row in rows] == [3, 6, 9]
    # The hold-out has four images of a class, the test set five.
    assert {count for row in (*rows, rows[0]["ema"]) for count in row["robust"]["count"].values()} == {4}
    result = json.loads((run / "result.json").read_text())
    assert {"ema-last", "ema-best-average", "ema-best-worst"} < result["checkpoints"].keys()
    for rule, keys in (("ema-best-average", ["class_average"]), ("ema-best-worst", SELECTION)):
        values = [[row["ema"]["robust"][key] for key in keys] for row in rows]
        assert result["checkpoints"][rule]["epoch"] == 1 + values.index(max(values))
        kept = read_checkpoint(run / f"checkpoints/{rule}.pt").validation["robust"]
        assert [kept[key] for key in keys] == max(values)


@pytest.mark.slow
def test_its_last_checkpoint_is_the_average_that_was_tested(run):
    state = read_checkpoint(run / "checkpoints/last.pt")
    average = read_checkpoint(run / "checkpoints/ema-last.pt")
    assert all(torch.equal(value, average.model[key]) for key, value in state.run.ema["model"].items())
    assert any(not torch.equal(value, state.model[key]) for key, value in average.model.items())
    images = tiny.few_images()("fashion-mini").test
    attack = {"kind": "pgd", "eps": 0.1, "steps": 2}
    found = evaluation.evaluate(load(run / "checkpoints/ema-last.pt"), images, attack=attack)
    kept = json.loads((run / "result.json").read_text())["checkpoints"]["ema-last"]
    assert found.robust.to_json()["per_class"] == kept["robust"]["per_class"]


@pytest.mark.parametrize("settings", [EMA, FAWA], ids=["step", "epoch"])
@pytest.mark.slow
def test_a_run_that_was_stopped_continues_bit_for_bit(few_images, tmp_path, monkeypatch, settings):
    """Also where it is stopped while the average is validated: after the epoch's weights went into it."""
    tiny.run(tmp_path / "whole", **SHORT, **settings)
    tiny.run_until(monkeypatch, 1, tmp_path / "stopped", **SHORT, **settings)
    with monkeypatch.context() as patch:
        tiny.signal_in_call(patch, 2, evaluation, "evaluate")
        assert "at step 2" in str(tiny.stopped_run(tmp_path / "stopped", resume=True, **SHORT, **settings))
    tiny.run(tmp_path / "stopped", resume=True, **SHORT, **settings)
    tiny.assert_same_outcome(tmp_path / "stopped", tmp_path / "whole")
    assert validations(tmp_path / "stopped")[-1]["ema"]["updates"] == (4 if settings is EMA else 2)


def test_a_gate_that_no_epoch_reaches_keeps_no_average_and_says_so(few_images, tmp_path, capsys):
    train(tiny.tiny_config(tmp_path / "run", **SHORT, **FAWA, ema__gate=1))
    assert "no average of the weights was kept: the hold-out's worst class never" in capsys.readouterr().out
    assert not list((tmp_path / "run/checkpoints").glob("ema-*"))
    assert "ema" not in validations(tmp_path / "run")[-1]


def test_without_a_hold_out_there_is_the_last_average(few_images, tmp_path):
    run = tiny.run(tmp_path / "run", **SHORT, **FAWA, data__holdout="none")
    assert set(run.result["checkpoints"]) == {"last", "ema-last"}


def test_a_runs_log_names_its_accuracies(few_images, tmp_path, capsys):
    train(tiny.tiny_config(tmp_path / "run", **SHORT, **EMA))
    shown = capsys.readouterr().out
    assert shown.count("; ema: robust") == 2
    assert "test (ema-best-average): clean" in shown


@pytest.mark.slow
def test_a_log_of_numbers_has_its_accuracies_beside_the_others(run):
    row = validations(run)[-1]
    found = scalars(row, [])
    assert found["holdout robust/worst"] == row["robust"]["worst"]
    assert found["holdout ema robust/average"] == row["ema"]["robust"]["average"]
    assert found["class clean accuracy, holdout ema/Bag"] == row["ema"]["clean"]["per_class"]["Bag"]


@pytest.mark.slow
def test_eval_takes_its_checkpoints_by_name(run, tmp_path, capsys):
    options = ["--limit", "20", "--steps", "1", "--device", "cpu", "--json", str(tmp_path / "e.json")]
    assert cli.main(["eval", str(run), "--checkpoint", "ema-best-worst", *options]) == 0
    written = json.loads((tmp_path / "e.json").read_text())
    assert written["settings"]["checkpoint"] == str(run / "checkpoints/ema-best-worst.pt")


@pytest.mark.parametrize("method", tiny.each(METHODS))
def test_a_step_of_every_method_with_an_average_reads_nothing_back(few_images, tmp_path, method):
    trainer = tiny.new_trainer(tmp_path, method, device="meta", **EMA)
    tiny.take_steps(trainer, 2)
    assert trainer.state.average.updates == 2


def test_settings_that_make_no_average_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"ema\.decay must be at most 0\.99999, got 1\.0"):
        tiny.tiny_config(tmp_path, ema__decay=1)
    with pytest.raises(InputError, match=r"ema\.per must be one of step, epoch, got 'batch'"):
        tiny.tiny_config(tmp_path, ema__per="batch")
    with pytest.raises(InputError, match=r"ema\.gate=0\.2 is the gate of an average: give ema\.decay"):
        tiny.tiny_config(tmp_path, ema__gate=0.2)
    for holdout in ("none", "test"):
        with pytest.raises(InputError, match=rf"ema\.gate looks at the hold-out.*--holdout {holdout}"):
            tiny.tiny_config(tmp_path, **EMA, ema__gate=0.2, data__holdout=holdout)
