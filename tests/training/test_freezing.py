"""Frozen parameters, the head's own learning rate, and weights of ours for another number of classes."""

import dataclasses

import pytest
import torch
from torch import nn

from cfol_fast import models
from cfol_fast.errors import InputError
from cfol_fast.runs import checkpoints
from cfol_fast.runs.checkpoint_contents import Checkpoint
from cfol_fast.runs.loading import read_checkpoint
from cfol_fast.runs.optimizers import OPTIMIZERS
from cfol_fast.runs.setting_groups import OptimizerConfig
from cfol_fast.training.freezing import freeze
from tests.training import tiny

SHORT = {"epochs": 1, "steps_per_epoch": 2}
BODY = r"^features\."


def weights(trainer):
    return {name: value.clone() for name, value in trainer.step.model.state_dict().items()}


def moved(before, after) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.parametrize("more", [{}, {"awp": 0.01}, {"shards": 2}, {"shards": 2, "awp": 0.01}])
def test_frozen_parameters_and_statistics_stay_and_all_others_move(tmp_path, optimizer, more):
    trainer = tiny.new_trainer(
        tmp_path, "erm", model__freeze=BODY, optimizer__name=optimizer, optimizer__head_lr=0.01, **more
    )
    before = weights(trainer)
    after = weights(tiny.take_steps(trainer, 2))
    assert moved(before, after) == {"net.linear.weight", "net.linear.bias"}


def test_a_frozen_batchnorm_keeps_its_statistics_and_another_does_not(tmp_path):
    trainer = tiny.new_trainer(tmp_path, "trades", model__name="resnet18@0.125", model__freeze=r"^layer1\.")
    before = weights(trainer)
    after = weights(tiny.take_steps(trainer, 2))
    stayed = before.keys() - moved(before, after)
    of_layer = {name for name in before if name.startswith("net.layer1.")}
    assert stayed == of_layer | {name for name in before if name.startswith("normalize.")}
    assert any(name.endswith("running_var") for name in of_layer)


def test_a_batchnorm_without_parameters_is_frozen_by_the_names_of_its_statistics():
    model = nn.Sequential(
        nn.Linear(3, 3), nn.BatchNorm1d(3, affine=False), nn.BatchNorm1d(3), nn.Linear(3, 2)
    )
    freeze(model, r"^[01]\.")
    assert [layer.training for layer in model] == [True, False, True, True]
    freeze(model, r"^2\.weight")
    assert model[2].training
    freeze(model, r"^2\.")
    assert not model[2].training


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [("(", "regular expression"), ("^nothing", "no parameter"), (".", "nothing is left")],
)
def test_patterns_that_freeze_nothing_or_everything_are_refused(tmp_path, pattern, problem):
    with pytest.raises(InputError, match=problem):
        tiny.new_trainer(tmp_path, model__freeze=pattern)


@pytest.mark.slow
def test_a_frozen_run_that_was_stopped_continues_bit_for_bit(few_images, tmp_path, monkeypatch):
    settings = {"model__freeze": BODY, "optimizer__head_lr": 0.3, **SHORT}
    tiny.run(tmp_path / "whole", **settings)
    tiny.run_until(monkeypatch, 1, tmp_path / "stopped", **settings)
    with pytest.raises(InputError, match=r"model\.freeze"):
        tiny.run(tmp_path / "stopped", resume=True, **settings | {"model__freeze": "nothing"})
    tiny.run(tmp_path / "stopped", resume=True, **settings)
    tiny.assert_same_outcome(tmp_path / "stopped", tmp_path / "whole")


def network() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_the_head_has_its_rate_in_every_step_as_with_torchs_own_groups(name):
    mine, theirs = network(), network()
    chosen = OptimizerConfig(name=name, lr=0.1, head_lr=0.4, schedule="constant")
    optimizer = OPTIMIZERS[name](mine, chosen, torch.device("cpu"))
    groups = [{"params": theirs[0].parameters()}, {"params": theirs[2].parameters()}]
    decay = {"weight_decay": chosen.weight_decay}
    if name == "sgd":
        plain = torch.optim.SGD(groups, lr=0.1, momentum=0.9, fused=True, **decay)
    else:
        plain = torch.optim.AdamW(groups, lr=0.1, betas=(0.9, 0.999), fused=True, **decay)
    for rate in (0.1, 0.02, 0.02, 0.005):
        optimizer.set_rate(rate)
        plain.param_groups[0]["lr"], plain.param_groups[1]["lr"] = rate, 4 * rate
        optimizer.step()
        plain.step()
        optimizer.load_state_dict(optimizer.state_dict())
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_a_rate_for_a_head_that_is_not_there_is_refused():
    chosen = OptimizerConfig(lr=0.1, head_lr=0.4, schedule="constant")
    for name, build in OPTIMIZERS.items():
        with pytest.raises(InputError, match="no linear layer"):
            build(nn.Conv2d(1, 1, 1), dataclasses.replace(chosen, name=name), torch.device("cpu"))
    frozen = network()
    frozen[2].requires_grad_(False)
    with pytest.raises(InputError, match="frozen"):
        OPTIMIZERS["sgd"](frozen, chosen, torch.device("cpu"))


def test_weights_of_ours_for_other_classes_replace_the_last_layer_and_keep_the_rest(few_images, tmp_path):
    base = tiny.run(tmp_path / "base", "erm", **SHORT).folder
    file = tmp_path / "seven.pt"
    stored = _with_seven_classes(read_checkpoint(base))
    checkpoints.write(file, stored.to_state())
    own = weights(tiny.new_trainer(tmp_path))
    with pytest.warns(UserWarning, match="another number of classes"):
        trainer = tiny.new_trainer(tmp_path, model__init=str(file))
    found, kept = weights(trainer), stored.model
    assert all(torch.equal(found[name], kept[name]) for name in found if not name.startswith("net.linear"))
    assert torch.equal(found["net.linear.weight"], own["net.linear.weight"])
    assert trainer.state.init["new"] == ["linear.weight", "linear.bias"]
    assert trainer.state.init["epochs"] == 1


def _with_seven_classes(stored: Checkpoint) -> Checkpoint:
    model = dict(stored.model)
    model["normalize.mean"] = model["normalize.mean"] + 0.125
    model |= {name: model[name][:7].clone() for name in ("net.linear.weight", "net.linear.bias")}
    spec = dataclasses.replace(stored.spec, num_classes=7)
    return dataclasses.replace(stored, model=model, spec=spec, classes=stored.classes[:7], run=None)


def test_the_last_linear_layer_is_the_one_that_makes_the_logits():
    for name in ("demo-cnn", "resnet18@0.125", "vgg16", "wrn-10-1"):
        model = models.create(name, 6, 32, 3)
        layer = models.head.last_linear(model)
        assert layer is not None
        assert layer.out_features == 6
