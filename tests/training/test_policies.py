"""Class policies in whole runs: neutral ones are the base method, they survive a kill, they never see the
test set.
"""

import pytest
import torch

from cfol_fast.errors import InputError
from cfol_fast.methods import METHODS
from cfol_fast.runs.loading import read_checkpoint
from cfol_fast.runs.metrics_log import read_rows
from cfol_fast.training import holdout, train
from cfol_fast.training.evaluations import Evaluations
from tests.training import tiny

WITH_POLICY = [name for name, method in METHODS.items() if method.policy.factors]
SHORT = {"epochs": 2, "steps_per_epoch": 2}


def weights(run) -> dict[str, torch.Tensor]:
    return read_checkpoint(run / "checkpoints/last.pt").model


def same_weights(run, other) -> bool:
    return all(torch.equal(value, weights(other)[name]) for name, value in weights(run).items())


@pytest.mark.parametrize("method", tiny.each(METHODS, []))
def test_a_stopped_run_of_every_method_continues_bit_for_bit(few_images, tmp_path, monkeypatch, method):
    """Stopped in the first epoch, while the policy gathers, and in the second, after it acted."""
    tiny.run(tmp_path / "whole", method, **SHORT)
    tiny.run_until(monkeypatch, 1, tmp_path / "stopped", method, **SHORT)
    tiny.run_until(monkeypatch, 2, tmp_path / "stopped", method, resume=True, **SHORT)
    tiny.run(tmp_path / "stopped", method, resume=True, **SHORT)
    tiny.assert_same_outcome(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.slow
def test_a_signal_while_the_hold_outs_losses_are_computed_loses_nothing(few_images, tmp_path, monkeypatch):
    tiny.run(tmp_path / "whole", "wat", **SHORT)
    with monkeypatch.context() as patch:
        tiny.signal_in_call(patch, 1, holdout, "training_attack")
        assert "stopped at step 2" in str(tiny.stopped_run(tmp_path / "stopped", "wat", **SHORT))
    tiny.run(tmp_path / "stopped", "wat", resume=True, **SHORT)
    tiny.assert_same_outcome(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.parametrize(
    ("method", "neutral", "base"),
    [
        ("dafa", {"strength": 0}, "erm"),
        ("dafa-trades", {"strength": 0}, "trades"),
        ("wat", {"hedge_rate": 0}, "trades"),
        ("cfa", {"begin": 0.9}, "erm"),
        ("faal", {"radius": 0}, "erm"),
    ],
)
@pytest.mark.slow
def test_with_neutral_factors_a_run_is_its_base_bit_for_bit(few_images, tmp_path, method, neutral, base):
    tiny.run(tmp_path / "base", base, **SHORT)
    tiny.run(tmp_path / "neutral", method, **SHORT, **neutral)
    assert same_weights(tmp_path / "neutral", tmp_path / "base")


@pytest.mark.slow
def test_with_neutral_factors_frl_is_trades_up_to_rounding(few_images, tmp_path):
    tiny.run(tmp_path / "base", "trades", beta=1.5, epochs=1, steps_per_epoch=2)
    tiny.run(tmp_path / "neutral", "frl", epochs=1, steps_per_epoch=2)
    for name, value in weights(tmp_path / "neutral").items():
        assert torch.allclose(value.float(), weights(tmp_path / "base")[name].float(), atol=1e-6), name


@pytest.mark.parametrize("method", tiny.each(WITH_POLICY, ["cfa", "wat"]))
def test_a_policy_acts_in_two_epochs_and_its_factors_are_logged(few_images, tmp_path, method):
    run = tiny.run(tmp_path / "run", method, **SHORT)
    first, second = (row for row in read_rows(run.folder) if row["kind"] == "train")
    for factor in METHODS[method].policy.factors:
        assert first[f"class_{factor}"] == [1.0] * 10
        assert len(second[f"class_{factor}"]) == 10
    assert any(second[f"class_{factor}"] != [1.0] * 10 for factor in METHODS[method].policy.factors)


@pytest.mark.parametrize("method", tiny.each(WITH_POLICY, ["cfa", "wat"]))
def test_a_policy_that_never_acted_says_so(few_images, tmp_path, capsys, method):
    config = tiny.tiny_config(tmp_path / "run", method, epochs=1, steps_per_epoch=1)
    train(config)
    assert "the class factors never changed" in capsys.readouterr().out


@pytest.mark.parametrize("holdout", ["none", "test"])
@pytest.mark.parametrize("method", ["frl", "wat"])
def test_a_policy_that_needs_the_hold_out_refuses_to_train_without_or_on_the_test_set(
    tmp_path, method, holdout
):
    with pytest.raises(InputError, match=rf"{method} trains with the hold-out's .*--holdout {holdout}"):
        tiny.tiny_config(tmp_path, method, data__holdout=holdout)


def test_a_policy_of_radii_needs_an_attack(tmp_path):
    with pytest.raises(InputError, match=r"dafa scales the attack's radius, got attack\.kind=none"):
        tiny.tiny_config(tmp_path, "dafa", attack__kind="none")


@pytest.mark.parametrize("method", ["cfa", "dafa", "frl"])
def test_every_image_is_attacked_within_its_classes_radius_and_up_to_it(few_images, tmp_path, method):
    trainer = tiny.new_trainer(tmp_path, method, attack__steps=10)
    trainer.step.policy.view.radius.copy_(torch.linspace(0.2, 2.0, 10))
    x, y = torch.full((20, 1, 28, 28), 0.5), torch.arange(20) % 10
    moved = (trainer.step.attacked(x, y) - x).abs().amax((1, 2, 3))
    assert torch.allclose(moved, 0.1 * trainer.step.policy.view.radius[y], rtol=1e-4)


def test_the_test_radius_is_never_scaled(few_images, tmp_path, monkeypatch):
    radii = []
    new_attack = Evaluations._pgd

    def watched(*args):
        attack = new_attack(*args)
        radii.append(attack.eps)
        return attack

    monkeypatch.setattr(Evaluations, "_pgd", watched)
    run = tiny.run(tmp_path / "run", "dafa", **SHORT)
    assert set(radii) == {0.1}
    assert run.result["attack"]["eps"] == 0.1


def test_the_hold_outs_losses_are_those_of_trades_without_factors(few_images, tmp_path):
    trainer = tiny.new_trainer(tmp_path, "wat")
    losses, mean = trainer.validation.holdout.losses(trainer.step.model, trainer.step.objective)
    trainer.step.policy.view.weight.fill_(3.0)
    again, _ = trainer.validation.holdout.losses(trainer.step.model, trainer.step.objective)
    assert torch.equal(losses, again)
    # Four images of each class.
    assert mean == pytest.approx(float(losses.mean()))
    assert trainer.step.model.training


def test_the_last_epochs_end_changes_no_factor(few_images, tmp_path):
    trainer = tiny.new_trainer(tmp_path, "cfa", **SHORT)
    trainer.state.folder.mkdir(exist_ok=True)
    trainer.fit()
    assert trainer.step.policy.acted == 1
