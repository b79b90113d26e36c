"""Every op on the device against the CPU; and the same draws over 1,000 steps."""

import pytest
import torch

from cfol_fast import ops
from tests.native.examples import example_calls

# These use transcendental functions or sums of floats, which differ in the last bits; all others must be
# equal to the bit.
CLOSE = {"pgd_start", "pgd_step", "gather_augment", "augment_parameters"}


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in tensors(v)] if isinstance(value, (tuple, list)) else []


@pytest.mark.parametrize("name", sorted(example_calls()))
def test_an_op_gives_what_the_cpu_gives(name, device):
    op = getattr(torch.ops.cfol_fast, name).default
    here, there = example_calls()[name], example_calls(str(device))[name]
    results = tensors(op(*here)) + tensors(here), tensors(op(*there)) + tensors(there)
    for a, b in zip(*results, strict=True):
        assert b.device.type == device.type
        torch.testing.assert_close(b.cpu(), a, atol=2e-6 if name in CLOSE else 0, rtol=0)


def test_the_same_draws_over_a_thousand_steps(device):
    k, n = 10, 5000
    labels = torch.arange(n) % k
    loss_of = torch.linspace(0, 1, n)

    def run(where):
        offsets, members = (t.to(where) for t in ops.group_by_class(labels, k))
        w = torch.zeros(k, dtype=torch.float64, device=where)
        base = torch.full((k,), 1 / k, dtype=torch.float64, device=where)
        rng, losses, drawn = ops.new_rng(3, where), loss_of.to(where), []
        for _ in range(1000):
            idx, y, p = ops.exp3_draw(w, base, 0.5, offsets, members, rng, 128)
            ops.exp3_update_(w, p, y, losses[idx], 1e-3)
            drawn.append(idx)
        return torch.stack(drawn).cpu(), w.cpu()

    for a, b in zip(run("cpu"), run(device), strict=True):
        assert torch.equal(a, b)


def test_the_example_bandit_draws_the_same(device):
    def run(where):
        state, rng, drawn = ops.sum_tree_new(3000, where), ops.new_rng(5, where), []
        losses = torch.linspace(0, 1, 3000, device=where)
        for _ in range(300):
            idx, p = ops.sum_tree_draw(state, 0.5, rng, 64)
            ops.sum_tree_update_(state, idx, losses[idx], p, 1e-2)
            drawn.append(idx)
        return torch.stack(drawn).cpu(), state.w.cpu()

    for a, b in zip(run("cpu"), run(device), strict=True):
        assert torch.equal(a, b)
