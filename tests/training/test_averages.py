"""The moving average of the weights: the sum it stands for, its gate, and what it leaves alone."""

import numpy as np
import pytest
import torch
from torch import nn

from cfol_fast.runs.setting_groups import EmaConfig
from cfol_fast.training.averages import WeightAverage


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 2))


def weights(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.double().numpy().copy() for name, value in model.state_dict().items()}


def trained_for(model: nn.Module, number: int) -> None:
    """Something like a training step: every weight moves, and a pass moves BatchNorm's statistics."""
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
        model.train()(torch.rand(4, 1, 3, 3, generator=generator))


def expected(seen: list[dict[str, np.ndarray]], decay: float) -> dict[str, np.ndarray]:
    """sum (1-d) d^(t-s) theta_s, divided by the sum of its factors."""
    factors = [(1 - decay) * decay ** (len(seen) - 1 - s) for s in range(len(seen))]
    return {
        name: sum(f * one[name] for f, one in zip(factors, seen, strict=True)) / sum(factors)
        for name in seen[0]
    }


@pytest.mark.parametrize("decay", [0.5, 0.88, 0.999])
@pytest.mark.parametrize("per", ["step", "epoch"])
def test_the_average_is_the_weighted_sum_of_the_weights(per, decay):
    model = network()
    average, seen = WeightAverage(model, EmaConfig(decay=decay, per=per)), []
    for number in range(5):
        trained_for(model, number)
        average.after_step() if per == "step" else average.after_epoch(number + 1, None)
        seen.append(weights(model))
        found = weights(average.model)
        for name, value in expected(seen, decay).items():
            if "num_batches" not in name:
                assert np.allclose(found[name], value, rtol=1e-5, atol=1e-6), name
    assert average.updates == 5


def test_batchnorms_statistics_are_averaged_and_its_counter_is_the_networks():
    model = network()
    average = WeightAverage(model, EmaConfig(decay=0.5))
    for number in range(3):
        trained_for(model, number)
        average.after_step()
    found = average.model[1]
    assert not torch.equal(found.running_mean, model[1].running_mean)
    assert int(found.num_batches_tracked) == int(model[1].num_batches_tracked) == 3


def test_the_trained_network_is_not_touched():
    model, twin = network(), network()
    average = WeightAverage(model, EmaConfig(decay=0.9))
    for number in range(3):
        trained_for(model, number)
        trained_for(twin, number)
        average.after_step()
    assert all(map(torch.equal, model.state_dict().values(), twin.state_dict().values()))
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_weights_that_two_layers_share_are_averaged_once():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    average = WeightAverage(model, EmaConfig(decay=0.5))
    for value in (1.0, 4.0):
        nn.init.constant_(model[0].weight, value)
        average.after_step()
    assert average.model[1].weight is average.model[0].weight
    assert torch.allclose(average.model[0].weight, torch.full((2, 2), 3.0))


def test_only_weights_of_epochs_that_reach_the_gate_are_taken():
    model = network()
    average, seen = WeightAverage(model, EmaConfig(decay=0.88, per="epoch", gate=0.2)), []
    for number, worst in enumerate([0.1, 0.2, 0.19, 0.5, None], 1):
        trained_for(model, number)
        average.after_epoch(number, worst)
        if worst is not None and worst >= 0.2:
            seen.append(weights(model))
    assert average.updates == len(seen) == 2
    assert np.allclose(weights(average.model)["0.weight"], expected(seen, 0.88)["0.weight"], atol=1e-6)


def test_steps_are_taken_while_the_last_validation_reached_the_gate():
    model = network()
    average = WeightAverage(model, EmaConfig(decay=0.9, per="step", gate=0.2))
    taken = []
    for epoch, worst in enumerate((0.3, None, 0.1, 0.3), 1):
        average.after_step()
        taken.append(average.updates)
        average.after_epoch(epoch, worst)
    assert taken == [0, 1, 2, 2]


def test_an_epoch_that_ends_twice_is_taken_once():
    """A run that is stopped while it is validated, and resumed, ends the epoch again."""
    model = network()
    average = WeightAverage(model, EmaConfig(decay=0.9, per="epoch"))
    average.after_epoch(1, 0.3)
    stopped = average.state_dict()
    average = WeightAverage(model, EmaConfig(decay=0.9, per="epoch"))
    average.load_state_dict(stopped)
    average.after_epoch(1, 0.3)
    assert average.updates == 1
    average.after_epoch(2, 0.3)
    assert average.updates == 2


def test_an_average_that_was_never_taken_says_so():
    average = WeightAverage(network(), EmaConfig(decay=0.9, per="epoch", gate=0.2))
    average.after_epoch(1, 0.1)
    assert average.review() == [
        "no average of the weights was kept: the hold-out's worst class never reached ema.gate=0.2"
    ]
    average.after_epoch(2, 0.3)
    assert average.review() == []


def test_a_restored_average_goes_on_as_the_other():
    models = [network(), network()]
    averages = [WeightAverage(model, EmaConfig(decay=0.9, per="step", gate=0.1)) for model in models]
    averages[0].after_epoch(1, 0.5)
    trained_for(models[0], 0)
    averages[0].after_step()
    models[1].load_state_dict(models[0].state_dict())
    averages[1].load_state_dict(averages[0].state_dict())
    for model, average in zip(models, averages, strict=True):
        trained_for(model, 1)
        average.after_step()
    first, second = (average.model.state_dict() for average in averages)
    assert averages[1].updates == 2
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_update_reads_nothing_back():
    model = network().to("meta")
    average = WeightAverage(model, EmaConfig(decay=0.9))
    average.after_step()
    average.after_step()
    assert next(average.model.parameters()).is_meta
