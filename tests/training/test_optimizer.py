"""SGD with its rate in device memory: torch's own steps, and checkpoints as they always were."""

import pytest
import torch
from torch import nn

from cfol_fast.runs.optimizers import DeviceRateSGD
from cfol_fast.runs.setting_groups import OptimizerConfig

CHOSEN = OptimizerConfig(lr=0.1, nesterov=True, schedule="constant")


def model_and_gradients():
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model


def test_steps_are_those_of_torch_with_a_number_as_the_rate():
    mine, theirs = model_and_gradients(), model_and_gradients()
    optimizer = DeviceRateSGD(mine, CHOSEN, torch.device("cpu"))
    plain = torch.optim.SGD(
        theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True, fused=True
    )
    for rate in (0.1, 0.0123456789, 0.002):
        optimizer.set_rate(rate)
        plain.param_groups[0]["lr"] = rate
        optimizer.step()
        plain.step()
    assert all(map(torch.equal, mine.parameters(), theirs.parameters()))


def test_a_weight_whose_gradients_begin_later_is_moved_as_torchs_plain_loop_moves_it():
    """As that of a layer which the first step left out; torch's fused step does not take one without momentum
    beside others that have it.
    """
    mine, theirs = model_and_gradients(), model_and_gradients()
    optimizer = DeviceRateSGD(mine, CHOSEN, torch.device("cpu"))
    plain = torch.optim.SGD(
        theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True, foreach=False
    )
    late = mine.bias.grad
    for model in (mine, theirs):
        model.bias.grad = None
    for step in range(3):
        if step == 1:
            mine.bias.grad, theirs.bias.grad = late.clone(), late.clone()
        optimizer.step()
        plain.step()
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_the_rate_stays_at_one_place_in_memory():
    optimizer = DeviceRateSGD(model_and_gradients(), CHOSEN, torch.device("cpu"))
    place = optimizer.param_groups[0]["lr"].data_ptr()
    optimizer.set_rate(0.3)
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["lr"].data_ptr() == place
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.3)


@pytest.mark.parametrize("older", [{"fused": False, "foreach": True}, {"fused": True, "foreach": False}])
def test_checkpoints_of_before_load_and_new_ones_look_like_them(older):
    """Version 0.1 wrote the rate as a number, and on a GPU it used foreach."""
    model = model_and_gradients()
    optimizer, plain = (
        make(model)
        for make in (
            lambda model: DeviceRateSGD(model, CHOSEN, torch.device("cpu")),
            lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, **older),
        )
    )
    plain.step()
    optimizer.load_state_dict(plain.state_dict())
    assert optimizer.rate == 0.05
    assert optimizer.param_groups[0]["fused"]
    assert not optimizer.param_groups[0]["foreach"]
    optimizer.step()
    saved, before = optimizer.state_dict(), plain.state_dict()
    assert saved["param_groups"][0].keys() == before["param_groups"][0].keys()
    assert saved["param_groups"][0]["lr"] == 0.05
    assert saved["state"].keys() == before["state"].keys()
