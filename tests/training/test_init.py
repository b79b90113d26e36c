"""Runs that start from weights: ours, or another project's."""

import pytest
import torch

from cfol_fast import evaluation, models
from cfol_fast.errors import InputError
from cfol_fast.methods import METHODS
from cfol_fast.runs.loading import read_checkpoint
from cfol_fast.runs.metrics_log import read_rows
from tests.training import tiny

SHORT = {"epochs": 1, "steps_per_epoch": 2}


@pytest.fixture
def base(few_images, tmp_path):
    return tiny.run(tmp_path / "base", "erm", **SHORT).folder


def weights(trainer):
    return {name: value.clone() for name, value in trainer.step.model.state_dict().items()}


def equal(found, expected) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def test_a_run_starts_from_the_weights_of_another(base, tmp_path):
    trainer = tiny.new_trainer(tmp_path, "faal", model__init=str(base))
    assert equal(weights(trainer), read_checkpoint(base).model)
    assert trainer.state.init["epochs"] == 1
    assert trainer.state.init["method"] == "erm"


def test_the_budget_of_the_base_stands_in_the_result(base, tmp_path):
    result = tiny.run(tmp_path / "run", "faal", model__init=str(base), **SHORT).result
    assert result["init"] == {
        "weights": str(base / "checkpoints/best-average.pt"),
        "method": "erm",
        "epochs": 1,
    }


@pytest.mark.slow
def test_the_epochs_of_every_base_before_count(base, tmp_path):
    first = tiny.run(tmp_path / "first", "faal", model__init=str(base), **SHORT)
    second = tiny.run(tmp_path / "second", "frl", model__init=str(first.folder), **SHORT).result
    assert first.result["init"]["epochs"] == 1
    assert second["init"]["epochs"] == 2
    assert second["init"]["method"] == "faal"
    assert second["init"]["init"] == first.result["init"]


@pytest.mark.slow
def test_a_fine_tuning_that_was_stopped_continues_bit_for_bit(base, tmp_path, monkeypatch):
    settings = {"model__init": str(base), **SHORT}
    tiny.run(tmp_path / "whole", "frl", **settings)
    tiny.run_until(monkeypatch, 1, tmp_path / "stopped", "frl", **settings)
    tiny.run(tmp_path / "stopped", "frl", resume=True, **settings)
    tiny.assert_same_outcome(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.slow
def test_frl_judges_the_weights_that_it_starts_from_before_its_first_epoch(base, tmp_path):
    """As its release does; from scratch there is nothing to judge, and WAT waits for its first epoch."""
    for method, init, acts in (("frl", str(base), True), ("frl", None, False), ("wat", str(base), False)):
        run = tiny.run(tmp_path / f"{method}-{acts}", method, model__init=init, **SHORT)
        (first,) = (row for row in read_rows(run.folder) if row["kind"] == "train")
        factors = METHODS[method].policy.factors
        assert any(first[f"class_{factor}"] != [1.0] * 10 for factor in factors) == acts


@pytest.mark.slow
def test_a_signal_before_the_first_step_leaves_a_run_that_starts_again(base, tmp_path, monkeypatch):
    settings = {"model__init": str(base), **SHORT}
    tiny.run(tmp_path / "whole", "frl", **settings)
    with monkeypatch.context() as patch:
        tiny.signal_in_call(patch, 1, evaluation, "evaluate")
        assert "at step 0" in str(tiny.stopped_run(tmp_path / "stopped", "frl", **settings))
    assert not (tmp_path / "stopped/checkpoints").exists()
    tiny.run(tmp_path / "stopped", "frl", resume=True, **settings)
    tiny.assert_same_outcome(tmp_path / "stopped", tmp_path / "whole")


def test_plain_weights_of_the_same_network_will_do(base, tmp_path):
    file = tmp_path / "weights.pt"
    torch.save(read_checkpoint(base).model, file)
    trainer = tiny.new_trainer(tmp_path, "faal", model__init=str(file))
    assert equal(weights(trainer), read_checkpoint(base).model)


def test_weights_without_a_normalisation_need_to_be_told_one(base, tmp_path):
    state = {name: v for name, v in read_checkpoint(base).model.items() if not name.startswith("normalize.")}
    file = tmp_path / "theirs.pt"
    torch.save(state, file)
    with pytest.raises(InputError, match=r"model\.init_normalize"):
        tiny.new_trainer(tmp_path, "faal", model__init=str(file))
    trainer = tiny.new_trainer(tmp_path, "faal", model__init=str(file), model__init_normalize="none")
    found = weights(trainer)
    assert float(found["normalize.std"]) == 1.0
    assert equal({name: found[name] for name in state}, state)


def test_weights_for_other_classes_leave_the_last_layer_new(tmp_path):
    torch.manual_seed(1)
    theirs = models.create("demo-cnn@0.25", 7, 28, 1).state_dict()
    torch.save(theirs, tmp_path / "theirs.pt")
    own = weights(tiny.new_trainer(tmp_path))
    with pytest.warns(
        UserWarning, match=r"another number of classes: linear\.weight, linear\.bias start anew"
    ):
        trainer = tiny.new_trainer(tmp_path, model__init=str(tmp_path / "theirs.pt"))
    found = weights(trainer)
    assert torch.equal(found["net.features.0.weight"], theirs["net.features.0.weight"])
    assert torch.equal(found["net.linear.weight"], own["net.linear.weight"])
    assert trainer.state.init["new"] == ["linear.weight", "linear.bias"]


def test_weights_that_do_not_fit_are_refused(base, tmp_path):
    with pytest.raises(InputError, match=r"has name demo-cnn@0\.25, this run has demo-cnn@0\.5"):
        tiny.new_trainer(tmp_path, "faal", model__init=str(base), model__name="demo-cnn@0.5")
    with pytest.raises(InputError, match="no run folder or checkpoint"):
        tiny.new_trainer(tmp_path, "faal", model__init=str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"leave out model\.init_normalize"):
        tiny.new_trainer(tmp_path, "faal", model__init=str(base), model__init_normalize="none")
    with pytest.raises(InputError, match=r"belongs to model\.init"):
        tiny.new_trainer(tmp_path, "faal", model__init_normalize="none")
