"""SIGUSR1 saves at any moment of a run, and the run ends as if nobody had asked."""

import shutil
import signal

import pytest

from cfol_fast import data
from cfol_fast.training import agreement, trainer
from cfol_fast.training.evaluations import Evaluations
from cfol_fast.training.holdout import HoldOut
from tests.training import tiny


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", tiny.few_images())
        return tiny.run(tmp_path_factory.mktemp("whole") / "run", data__holdout="0.2").folder


# The run has two epochs of three steps; the second validation and the final test come last.
MOMENTS = {
    "the second step": (trainer, "learning_rate", 2, 2),
    "the first validation": (agreement.Agreement, "heed_signals", 1, 3),
    "the second validation": (HoldOut, "row", 2, 6),
    "the final test": (Evaluations, "test_attack", 1, 6),
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_the_run_is_saved_where_it_stands_and_goes_on(
    few_images, whole, tmp_path, monkeypatch, capsys, moment
):
    owner, name, call, step = MOMENTS[moment]
    run, copy = tmp_path / "run", tmp_path / "copy"
    original = agreement.Agreement._save_as_asked

    def save_and_copy(self):
        original(self)
        assert self.position.step == step
        shutil.copytree(run, copy)

    monkeypatch.setattr(agreement.Agreement, "_save_as_asked", save_and_copy)
    with monkeypatch.context() as patch:
        tiny.signal_in_call(patch, call, owner, name, signal.SIGUSR1)
        tiny.train(tiny.tiny_config(run, data__holdout="0.2"))
    assert f"last.pt holds step {step}; the run goes on" in capsys.readouterr().out
    tiny.assert_same_outcome(run, whole)
    # What was saved then is a checkpoint that continues to the same end.
    tiny.run(copy, resume=True, data__holdout="0.2")
    tiny.assert_same_outcome(copy, whole)
