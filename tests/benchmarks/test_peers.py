"""The peers that an expert would write compute what they should: a baseline that is wrong is no baseline."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import peers
from benchmarks.steps import ExpertStep, Problem
from cfol_fast import models

SMALL = Problem("resnet18@0.125", batch=6, images=60, side=16, eps=0.03, steps=2)


def trained(network: str = "resnet18@0.125") -> nn.Module:
    """A network whose BatchNorm statistics are not those of a new one."""
    torch.manual_seed(0)
    model = models.create(network, 10, image_size=16, in_channels=3, mean=(0.5,) * 3, std=(0.2,) * 3)
    model.train()
    for _ in range(3):
        model(torch.rand(8, 3, 16, 16))
    return model


@pytest.mark.parametrize("network", ["resnet18@0.125", "demo-cnn"])
def test_the_folded_network_is_the_model_in_eval_mode(network):
    model = trained(network)
    folded = peers.Folded(model)
    assert folded.pairs
    x = torch.rand(5, 3, 16, 16)
    for _ in range(2):
        torch.testing.assert_close(folded.network(x), model.eval()(x), rtol=1e-4, atol=1e-4)
        # Training goes on; the folded network follows when it is asked to.
        model.train()
        with torch.no_grad():
            for weights in model.parameters():
                weights.add_(0.05 * torch.randn_like(weights))
        model(torch.rand(8, 3, 16, 16))
        folded.refresh()
    torch.testing.assert_close(folded.network(x), model.eval()(x), rtol=1e-4, atol=1e-4)


def test_the_expert_attacks_the_network_of_this_step():
    step = ExpertStep(SMALL)
    before = [weights.clone() for weights in step.folded.network.parameters()]
    for _ in range(2):
        step()
    moved = [not torch.equal(a, b) for a, b in zip(before, step.folded.network.parameters(), strict=True)]
    assert all(moved)


@pytest.mark.slow
def test_the_compiled_step_is_the_plain_step():
    network = peers.Folded(trained("demo-cnn")).network.double()
    x, y = torch.rand(4, 3, 16, 16, dtype=torch.float64), torch.arange(4)
    # The graph is what inductor would compile; compiling it would take half a minute.
    compiled_step = peers.compiled_pgd(network, 0.03, 0.01, 3, backend="aot_eager")
    attacks = [peers.plain_pgd(network, 0.03, 0.01, 3), compiled_step]
    found = []
    for attack in attacks:
        torch.manual_seed(3)
        found.append(attack(x, y))
    plain, compiled = found
    assert F.cross_entropy(network(plain), y) > F.cross_entropy(network(x), y)
    # The sign of a gradient that rounding makes 0 may differ.
    assert (plain - compiled).abs().gt(1e-9).double().mean() < 0.01
