"""Class offsets fitted on a hold-out: part of the model, and figures by one rule for all tables."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import cfol_fast as cf
from cfol_fast.commands import main as cli
from cfol_fast.errors import InputError
from cfol_fast.runs import offset_file, predictions
from cfol_fast.runs.loading import read_checkpoint
from cfol_fast.runs.records import load_run, read_finished
from cfol_fast.training.offsets import fit_offsets, last_bias
from tests.training import tiny


@pytest.fixture
def run(few_images, tmp_path):
    return tiny.run(tmp_path / "run", "erm", epochs=2, optimizer__lr=0.02).folder


def test_the_offsets_are_added_to_the_logits(run):
    fit = fit_offsets(run, rounds=3, rate=2.0, device="cpu")
    x = torch.rand(4, 1, 28, 28)
    plain, shifted = cf.load(run), cf.load(fit.checkpoint)
    assert torch.allclose(shifted(x), plain(x) + fit.offsets.float(), atol=1e-5)
    assert torch.equal(read_checkpoint(fit.checkpoint).offsets, fit.offsets)
    assert fit.test.keys() == {"before", "adjusted", "after"}
    # The run's own test is not taken again.
    assert fit.test["before"] == read_finished(run)["checkpoints"]["best-average"]


@pytest.mark.slow
def test_any_of_a_runs_checkpoints_takes_offsets(run):
    """Of the second epoch the best on average, of the first the best in its worst class."""
    fit = fit_offsets(run, rounds=1, device="cpu", checkpoint="best-worst")
    plain = cf.load(run / "checkpoints/best-worst.pt")
    x = torch.rand(4, 1, 28, 28)
    assert torch.allclose(cf.load(fit.checkpoint)(x), plain(x) + fit.offsets.float(), atol=1e-5)
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
    measuring(monkeypatch, [(0.1, 1.0), (0.5, 1.0)], [(0.5, 1.0)])
    fit = fit_offsets(run, rounds=1, rate=2.0, device="cpu")
    assert fit.offsets[2] == pytest.approx(2.0 * (0.9 - 0.09))
    assert fit.offsets[0] == pytest.approx(2.0 * -0.09)
    assert fit.holdout == pytest.approx((0.1, 0.5))


def measuring(monkeypatch, path, others):
    """The hold-out has these (one class, each of the others) round by round, then the test set these."""
    from cfol_fast.training import offsets

    rounds = iter([*path, *others])

    def measured(model, source, classes, *rest):
        worst, rest_of_them = next(rounds)
        shares = [rest_of_them] * len(classes)
        shares[2] = worst
        average = sum(shares) / len(classes)
        found = {
            "worst": min(shares),
            "tail": 0.0,
            "average": average,
            "per_class": dict(zip(classes, shares, strict=True)),
        }
        figures = SimpleNamespace(to_json=lambda: found)
        return SimpleNamespace(clean=figures, robust=figures, to_json=dict, warnings=[])

    monkeypatch.setattr(offsets, "measure", measured)


# By hand: 5 images in the smallest class of the hold-out of these runs, so se is 0.2 or more.
STEEP = [(0.0, 0.9), (0.5, 0.7), (0.6, 0.5)]


def test_the_checkpoint_may_keep_the_average_and_the_adjusted_figures_never_do(run, monkeypatch):
    """Round 1 is taken by the rule, and loses 13 points of the average."""
    measuring(monkeypatch, STEEP, [(0.4, 0.6), (0.1, 0.9)])
    fit = fit_offsets(run, rounds=2, device="cpu", keep_average=0.02)
    assert (fit.chosen, fit.kept) == (1, 0)
    assert fit.test["adjusted"]["robust"]["worst"] == 0.4
    assert fit.test["after"]["robust"]["worst"] == 0.1
    assert not fit.offsets.any()
    kept = json.loads((run / "offsets.json").read_text())
    assert kept["round"] == 1
    assert kept["kept"] == {"round": 0, "keep_average": 0.02, "offsets": fit.offsets.tolist()}
    measuring(monkeypatch, STEEP, [(0.4, 0.6)])
    wide = fit_offsets(run, rounds=2, device="cpu", keep_average=0.2)
    assert (wide.chosen, wide.kept) == (1, 1)


def test_only_a_fit_by_the_rule_has_figures_in_the_result(run, monkeypatch):
    """Other rounds, another rate or another checkpoint are somebody's own."""
    before = read_finished(run)
    for asked in ({"rounds": 2}, {"rate": 2.0}, {"checkpoint": "last"}):
        rounds = asked.get("rounds", 20)
        measuring(monkeypatch, [(0.2, 0.8)] * (rounds + 1), [(0.3, 0.7)])
        fit_offsets(run, device="cpu", **asked)
        assert read_finished(run) == before
        assert not offset_file.has_rules(run)
    measuring(monkeypatch, [(0.2, 0.8)] * 21, [(0.3, 0.7)])
    fit_offsets(run, device="cpu", keep_average=0.02)
    adjusted = read_finished(run)["adjusted"]
    assert (adjusted["checkpoint"], adjusted["round"]) == ("best-average", 0)
    assert adjusted["robust"]["worst"] == 0.3
    assert offset_file.has_rules(run)


def test_the_command_prints_the_whole_path_and_says_when_it_keeps_none(run, monkeypatch, capsys):
    measuring(monkeypatch, STEEP, [(0.4, 0.6), (0.1, 0.9)])
    assert cli.main(["offsets", str(run), "--rounds", "2", "--device", "cpu", "--quiet"]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if line.split()[:1] and line.split()[0].isdigit()]
    assert [row[:3] for row in rows] == [
        ["0", "0.0%", "81.0%"],
        ["1", "50.0%", "68.0%"],
        ["2", "50.0%", "51.0%"],
    ]
    assert [row[3:4] for row in rows] == [["taken"], ["by"], []]
    assert "no offsets are kept: round 1 would lose 13.0 points" in out
    assert (run / "checkpoints/offsets.pt").exists()


@pytest.mark.slow
def test_a_run_with_offsets_has_both_figures(few_images, tmp_path, capsys):
    run = tmp_path / "both"
    options = ["--epochs", "1", "--quiet", "--offsets"]
    options += ["--set", "batch_size=20", "--set", "steps_per_epoch=2"]
    command = ["train", "erm", "--dataset", "fashion-mini", "--out", str(run), "--device", "cpu", *options]
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    assert "test, plain: robust" in out
    assert "test, with class offsets: robust" in out
    result = read_finished(run)
    assert result["adjusted"]["robust"]["per_class"].keys() == result["test"]["robust"]["per_class"].keys()
    assert cli.main([*command, "--overwrite", "--holdout", "none"]) == 2
    assert "has no hold-out" in capsys.readouterr().err


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
