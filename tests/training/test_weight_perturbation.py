"""AWP: every layer moves by its share, the weights come back to the bit, and a run with it resumes."""

import pytest
import torch
from torch import nn

from cfol_fast.errors import InputError
from cfol_fast.training.weight_perturbation import WeightPerturbation
from tests.training import tiny

SETTINGS = {"epochs": 2, "steps_per_epoch": 2, "awp": 0.005}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).train()


def test_each_layer_moves_by_gamma_times_its_norm_and_the_loss_grows(model):
    x, y = torch.rand(16, 6), torch.arange(16) % 3

    def loss():
        return nn.functional.cross_entropy(model(x), y)

    before, first = {name: v.clone() for name, v in model.state_dict().items()}, float(loss().detach())
    model.load_state_dict(before)
    perturbation = WeightPerturbation(model, 0.01)
    perturbation.perturb(loss)
    assert float(loss().detach()) > first
    model[1].load_state_dict({name.removeprefix("1."): v for name, v in before.items() if name[0] == "1"})
    moved = {name: v - before[name] for name, v in model.state_dict().items()}
    for name in ("0.weight", "3.weight"):
        assert float(moved[name].norm()) == pytest.approx(0.01 * float(before[name].norm()), rel=1e-4)
    assert all(not moved[name].any() for name in moved if name not in ("0.weight", "3.weight"))


def test_the_passes_that_follow_see_the_moved_weights_in_bfloat16(model):
    x, y = torch.rand(16, 6), torch.arange(16) % 3

    def loss():
        return nn.functional.cross_entropy(model(x).float(), y)

    with torch.autocast("cpu", torch.bfloat16):
        first = float(loss().detach())
        WeightPerturbation(model, 0.5).perturb(loss)
        assert float(loss().detach()) > first + 0.1


def test_weights_and_statistics_come_back_to_the_bit(model):
    x = torch.rand(16, 6)
    before = {name: v.clone() for name, v in model.state_dict().items()}
    perturbation = WeightPerturbation(model, 0.01)
    perturbation.perturb(lambda: model(x).square().mean())
    perturbation.restore()
    assert all(torch.equal(v, before[name]) for name, v in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("method", ["cfol", "dafa-trades"])
@pytest.mark.slow
def test_a_run_with_it_that_was_stopped_continues_bit_for_bit(few_images, tmp_path, monkeypatch, method):
    tiny.run(tmp_path / "whole", method, **SETTINGS)
    tiny.run_until(monkeypatch, 3, tmp_path / "stopped", method, **SETTINGS)
    tiny.run(tmp_path / "stopped", method, resume=True, **SETTINGS)
    tiny.assert_same_outcome(tmp_path / "stopped", tmp_path / "whole")


def test_it_changes_the_step_and_reads_nothing_back(few_images, tmp_path):
    plain, moved = (tiny.take_steps(tiny.new_trainer(tmp_path, awp=gamma), 1) for gamma in (0, 0.005))
    assert float(moved.step.counts.loss_sum) > float(plain.step.counts.loss_sum)
    tiny.take_steps(tiny.new_trainer(tmp_path, device="meta", awp=0.005), 2)


def test_a_bad_share_is_refused(tmp_path):
    with pytest.raises(InputError, match="awp must be at most 1, got 5"):
        tiny.tiny_config(tmp_path, awp=5)
