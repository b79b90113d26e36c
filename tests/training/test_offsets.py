"""Class offsets fitted on a hold-out: part of the model, never worse there, and a checkpoint like any
other.
"""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import cfol_fast as cf
from cfol_fast.commands import main as cli
from cfol_fast.errors import InputError
from cfol_fast.runs import predictions
from cfol_fast.runs.loading import read_checkpoint
from cfol_fast.runs.records import load_run, read_finished
from cfol_fast.training.offsets import fit_offsets, last_bias
from tests.training import tiny


@pytest.fixture
def run(few_images, tmp_path):
    return tiny.run(tmp_path / "run", "erm", epochs=2, optimizer__lr=0.02).folder


def test_the_offsets_are_added_to_the_logits_and_are_never_worse_on_the_hold_out(run):
    fit = fit_offsets(run, rounds=3, rate=2.0, device="cpu")
    assert fit.holdout[1] >= fit.holdout[0]
    x = torch.rand(4, 1, 28, 28)
    plain, shifted = cf.load(run), cf.load(fit.checkpoint)
    assert torch.allclose(shifted(x), plain(x) + fit.offsets, atol=1e-5)
    assert torch.equal(read_checkpoint(fit.checkpoint).offsets, fit.offsets)
    assert fit.test.keys() == {"before", "after"}
    # The run's own test is not taken again.
    assert fit.test["before"] == read_finished(run)["checkpoints"]["best-average"]


@pytest.mark.slow
def test_any_of_a_runs_checkpoints_takes_offsets(run):
    """Of the second epoch the best on average, of the first the best in its worst class."""
    fit = fit_offsets(run, rounds=1, device="cpu", checkpoint="best-worst")
    plain = cf.load(run / "checkpoints/best-worst.pt")
    x = torch.rand(4, 1, 28, 28)
    assert torch.allclose(cf.load(fit.checkpoint)(x), plain(x) + fit.offsets, atol=1e-5)
    with pytest.raises(InputError, match="has no checkpoint 'ema-last': it has best-average"):
        fit_offsets(run, checkpoint="ema-last")
    # The run has not tested this one.
    fit = fit_offsets(run, rounds=0, device="cpu", checkpoint="previous")
    assert fit.test["before"] == fit.test["after"]


@pytest.mark.slow
def test_the_offsets_file_has_the_test_with_them_image_by_image(run):
    fit = fit_offsets(run, rounds=1, device="cpu")
    kept = json.loads((run / "offsets.json").read_text())
    assert kept["offsets"] == fit.offsets.tolist()
    labels, predicted = (
        predictions.unpack(kept["test"][key] if key == "labels" else kept["test"]["predicted"][key], 50, key)
        for key in ("labels", "robust")
    )
    found = predictions.accuracy(labels, predicted, kept["test"]["classes"])
    assert found.to_json() == fit.test["after"]["robust"]
    assert load_run(run).evaluations == []


def test_a_class_that_errs_more_gets_a_larger_offset(run, monkeypatch):
    """Every class right but the third: after one round its offset is the largest by the rate."""
    from cfol_fast.training import offsets

    rounds = iter([0.1, 0.5, 0.5, 0.5])

    def measured(model, source, classes, *rest):
        worst = next(rounds)
        per_class = dict.fromkeys(classes, 1.0) | {classes[2]: worst}
        robust = {"worst": worst, "average": 0.9, "per_class": per_class}
        figures = SimpleNamespace(to_json=lambda: robust)
        return SimpleNamespace(clean=figures, robust=figures, to_json=dict, warnings=[])

    monkeypatch.setattr(offsets, "measure", measured)
    fit = fit_offsets(run, rounds=1, rate=2.0, device="cpu")
    assert fit.offsets[2] == pytest.approx(2.0 * (0.9 - 0.09))
    assert fit.offsets[0] == pytest.approx(2.0 * -0.09)
    assert fit.holdout == (0.1, 0.5)


@pytest.mark.slow
def test_the_command_prints_before_and_after(run, capsys):
    assert cli.main(["offsets", str(run), "--rounds", "1", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "round 1: hold-out worst class" in out
    assert "test, robust worst class:" in out
    assert (run / "checkpoints/offsets.pt").exists()


@pytest.mark.slow
def test_a_run_without_a_hold_out_or_an_end_is_refused(few_images, tmp_path, monkeypatch):
    tiny.run(tmp_path / "none", "erm", epochs=1, data__holdout="none")
    with pytest.raises(InputError, match="not fitted on the test set"):
        fit_offsets(tmp_path / "none")
    tiny.run_until(monkeypatch, 2, tmp_path / "stopped", "erm")
    with pytest.raises(InputError, match="is not finished"):
        fit_offsets(tmp_path / "stopped")


def test_a_model_without_a_last_linear_layer_is_refused():
    with pytest.raises(InputError, match="does not end in a linear layer"):
        last_bias(nn.Sequential(nn.Linear(3, 2, bias=False)), 2)
