"""Options that belong to the trainer, for every method: optimiser, schedule, label smoothing."""

import pytest
import torch
from torch import nn

from cfol_fast import objectives
from cfol_fast.errors import InputError
from cfol_fast.runs.optimizers import DeviceRateAdamW
from cfol_fast.runs.setting_groups import OptimizerConfig
from cfol_fast.training import holdout, train
from tests.training import tiny

SETTINGS = {
    "epochs": 2,
    "steps_per_epoch": 2,
    "optimizer__name": "adamw",
    "optimizer__schedule": "cosine",
    "label_smoothing": 0.1,
}


def test_adamw_takes_torchs_steps_and_loads_its_own_state():
    torch.manual_seed(0)
    models = [nn.Linear(5, 3) for _ in range(3)]
    for model in models:
        model.load_state_dict(models[0].state_dict())
        for index, parameter in enumerate(model.parameters()):
            parameter.grad = torch.full_like(parameter, 0.1 + index)
    chosen, cpu = (
        OptimizerConfig(name="adamw", lr=1e-3, weight_decay=0.05, schedule="constant"),
        torch.device("cpu"),
    )
    mine, plain = (
        DeviceRateAdamW(models[0], chosen, cpu),
        torch.optim.AdamW(models[1].parameters(), lr=1e-3, weight_decay=0.05, fused=True),
    )
    resumed = DeviceRateAdamW(models[2], chosen, cpu)
    for number, rate in enumerate((1e-3, 3.3e-4, 1e-5)):
        if number == 2:
            models[2].load_state_dict(models[0].state_dict())
            resumed.load_state_dict(mine.state_dict())
            assert resumed.rate == 3.3e-4
            resumed.set_rate(rate)
            resumed.step()
        mine.set_rate(rate)
        plain.param_groups[0]["lr"] = rate
        mine.step()
        plain.step()
    for other in models[1:]:
        assert all(map(torch.equal, models[0].parameters(), other.parameters()))


@pytest.mark.parametrize("method", ["cfol", "dafa-trades"])
@pytest.mark.slow
def test_a_run_with_all_options_that_was_stopped_continues_bit_for_bit(
    few_images, tmp_path, monkeypatch, method
):
    tiny.run(tmp_path / "whole", method, **SETTINGS)
    tiny.run_until(monkeypatch, 3, tmp_path / "stopped", method, **SETTINGS)
    tiny.run(tmp_path / "stopped", method, resume=True, **SETTINGS)
    tiny.assert_same_outcome(tmp_path / "stopped", tmp_path / "whole")


def test_a_step_with_all_options_reads_nothing_back(few_images, tmp_path):
    tiny.take_steps(tiny.new_trainer(tmp_path, "cfol", device="meta", **SETTINGS), 2)


def test_adamw_has_a_rate_of_its_own(tmp_path):
    assert tiny.tiny_config(tmp_path, optimizer__name="adamw").optimizer.lr == 1e-3
    assert tiny.tiny_config(tmp_path).optimizer.lr == 0.05


def test_what_no_optimiser_has_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"optimizer\.name must be one of sgd, adamw, got 'lion'"):
        tiny.tiny_config(tmp_path, optimizer__name="lion")
    with pytest.raises(InputError, match=r"optimizer\.nesterov belongs to sgd"):
        tiny.tiny_config(tmp_path, optimizer__name="adamw", optimizer__nesterov=True)
    with pytest.raises(InputError, match=r"label_smoothing must be at most 0\.999, got 1\.0"):
        tiny.tiny_config(tmp_path, label_smoothing=1.0)


@pytest.mark.parametrize("method", ["erm", "trades", "lcvar", "faal"])
def test_label_smoothing_reaches_the_objective(few_images, tmp_path, method):
    smooth, plain = (
        tiny.take_steps(tiny.new_trainer(tmp_path, method, label_smoothing=share), 1) for share in (0.2, 0.0)
    )
    assert float(smooth.step.counts.loss_sum) != float(plain.step.counts.loss_sum)


@pytest.mark.parametrize(
    ("kind", "trained", "held", "warned"),
    [
        ("fgsm", 0.9, 0.05, True),
        ("n-fgsm", 0.9, 0.05, True),
        ("fgsm", 0.5, 0.4, False),
        ("pgd", 0.9, 0.05, False),
    ],
)
def test_a_collapse_of_single_step_training_is_told(tmp_path, kind, trained, held, warned):
    config = tiny.tiny_config(tmp_path, "erm", attack__kind=kind, attack__steps=None)
    training, validated = {"epoch": 3, "robust_error": 1 - trained}, {"robust": {"average": held}}
    warning = holdout.collapse_warning(config, training, validated)
    assert (warning is not None) == warned
    if warned:
        assert "epoch 3: 90% of the training images" in warning
        assert "single-step training has collapsed" in warning
    assert holdout.collapse_warning(config, training) is None


def test_a_run_tells_its_collapse(few_images, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(holdout, "COLLAPSE_GAP", -2.0)
    train(tiny.tiny_config(tmp_path / "run", "erm", epochs=1, attack__kind="fgsm", attack__steps=None))
    assert "single-step training has collapsed" in capsys.readouterr().out


def test_a_smoothed_label_is_spread_over_all_classes():
    logits, y = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])
    log_p = logits.log_softmax(1)[0]
    objective = objectives.Mean()
    objective.label_smoothing = 0.3
    batch = objectives.Batch(logits, logits, y)
    expected = -(0.7 * log_p[0] + 0.3 * log_p.mean())
    assert float(objective(lambda x: x, batch)[0]) == pytest.approx(float(expected))
