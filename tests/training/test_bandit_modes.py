"""The bandit with a baseline, with the margin as feedback and with the hold-out's errors, in whole runs."""

import json

import pytest
import torch

from cfol_fast import methods
from cfol_fast.errors import InputError
from cfol_fast.runs.config import TrainConfig, to_dict
from cfol_fast.runs.identity import differences, identity
from cfol_fast.runs.metrics_log import read_rows
from cfol_fast.sampling import feedback
from tests.training import tiny
from tests.training.test_replay import compare

# By name: settings of a run.
MODES = {
    "running": {"params__baseline": "running"},
    "mean": {"params__baseline": "mean", "params__feedback": "margin"},
    "holdout": {"params__signal": "holdout", "params__eta": "auto"},
}
SHORT = {"epochs": 3, "steps_per_epoch": 2}
every = pytest.mark.parametrize("mode", MODES)


@pytest.mark.slow
@every
def test_a_stopped_run_continues_bit_for_bit(few_images, tmp_path, monkeypatch, mode):
    settings = {**SHORT, **MODES[mode]}
    tiny.run(tmp_path / "whole", **settings)
    tiny.run_until(monkeypatch, 2, tmp_path / "stopped", **settings)
    tiny.run_until(monkeypatch, 2, tmp_path / "stopped", resume=True, **settings)
    tiny.run(tmp_path / "stopped", resume=True, **settings)
    tiny.assert_same_outcome(tmp_path / "stopped", tmp_path / "whole")


@every
def test_a_step_reads_nothing_back(few_images, tmp_path, mode):
    tiny.take_steps(tiny.new_trainer(tmp_path, device="meta", **MODES[mode]), 2)


@pytest.mark.slow
@every
def test_a_captured_step_equals_eager_steps(few_images, tmp_path, fake_graphs, graph_trainer, mode):
    compare(tmp_path, fake_graphs, graph_trainer, "cfol", **MODES[mode])


@pytest.mark.slow
def test_the_hold_out_moves_p_by_the_draws_of_its_epochs(few_images, tmp_path):
    run = tiny.run(tmp_path, epochs=4, steps_per_epoch=2, validation__every=2, **MODES["holdout"])
    rows = read_rows(run.folder)
    before, after = ([row["p"] for row in rows if row["kind"] == "train"][i] for i in (1, 2))
    first = next(row for row in rows if row["kind"] == "validation")
    error = 1 - torch.tensor(list(first["robust"]["per_class"].values()), dtype=torch.float64)
    eta = json.loads((run.folder / "config.json").read_text())["params"]["eta"]
    assert before == pytest.approx([0.1] * 10)
    expected = 0.05 + 0.5 * torch.softmax(eta * 2 * 2 * 16 * error, 0)
    assert after == pytest.approx(expected.tolist(), abs=1e-9)
    assert max(after) > min(after)


def test_the_margin_is_the_distance_between_the_softmax_s_two():
    logits = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.0, 0.0], [-30.0, 30.0, 0.0], [30.0, -30.0, 0.0]])
    q = logits.softmax(1)
    found = feedback("margin")(logits, torch.tensor([0, 1, 0, 0]))
    expected = [(1 - float(q[0, 0] - q[0, 2])) / 2, 0.5, 1.0, 0.0]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    assert feedback("margin")(logits.bfloat16(), torch.tensor([0, 1, 0, 0])).dtype == torch.float32


def test_the_margin_teaches_the_bandit_and_the_errors_are_still_counted(few_images, tmp_path):
    plain, margin = (
        tiny.take_steps(tiny.new_trainer(tmp_path / word, params__feedback=word), 1)
        for word in ("error", "margin")
    )
    assert torch.equal(plain.step.counts.tally, margin.step.counts.tally)
    assert not torch.equal(plain.step.sampler.w, margin.step.sampler.w)


@pytest.mark.parametrize("name", ["cfol", "cfol-reweighted", "cfol-trades"])
def test_the_paper_s_data_take_no_baseline_and_one_s_own_do(name):
    row = methods.get(name)
    for paper in (*methods.PAPER_DATA_SETS, "fashion-mini"):
        assert row.params(dataset=paper)["baseline"] == "none"
    assert row.params(dataset="folder")["baseline"] == "running"
    assert row.params({"baseline": "none"}, "folder")["baseline"] == "none"
    assert row.params({"eta": "theory"}, "folder")["baseline"] == "none"
    assert row.params({"signal": "holdout"}, "folder")["baseline"] == "none"


def configuration(**settings):
    return TrainConfig(tiny.by_path(settings), method="cfol", out="run", device="cpu")


def test_a_run_of_the_time_before_there_were_modes_is_the_same_run():
    now = configuration()
    kept = to_dict(now)
    for name in ("baseline", "feedback", "signal"):
        del kept["params"][name]
    before = TrainConfig.recorded(kept)
    assert identity(now) == identity(before)
    assert differences(before, now) == []
    assert not any(key.startswith("params.baseline") for key in identity(now))
    assert identity(configuration(params__baseline="mean")) != identity(now)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"params__signal": "holdout", "data__holdout": "test"}, "signal=holdout trains with the hold-out"),
        ({"params__signal": "holdout", "data__holdout": "none"}, "signal=holdout trains with the hold-out"),
        ({"params__signal": "holdout", "params__baseline": "mean"}, "params.baseline belongs to"),
        ({"params__signal": "holdout", "params__feedback": "margin"}, "params.feedback belongs to"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        configuration(**settings)


@pytest.mark.parametrize(
    "settings",
    [{"feedback": "logits"}, {"signal": "val"}, {"baseline": "yes"}, {"baseline": "mean", "eta": "theory"}],
)
def test_words_that_no_mode_has_are_refused_before_training(few_images, tmp_path, settings):
    with pytest.raises(InputError):
        tiny.new_trainer(tmp_path, **{f"params__{name}": value for name, value in settings.items()})


@pytest.mark.slow
def test_a_resumed_run_does_not_change_its_baseline(few_images, tmp_path):
    tiny.run(tmp_path, epochs=1)
    with pytest.raises(InputError, match=r"params\.baseline \(was 'none', now 'running'\)"):
        tiny.run(tmp_path, epochs=1, resume=True, params__baseline="running")
    state = torch.load(tmp_path / "checkpoints/last.pt", weights_only=True)["sampler"]
    assert "seen" not in state
