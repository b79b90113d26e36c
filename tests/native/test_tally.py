"""Counts and error sums by class."""

import numpy as np
import pytest
import torch

from cfol_fast import ops
from tests.reference import exp3 as reference


def test_the_literal_tally(backend):
    tally = torch.tensor([[1, 2**30], [0, 0], [7, 5]])
    backend.op("class_tally")(tally, torch.tensor([1, 0, 1]), torch.tensor([1.0, 0.0, 0.25]), None)
    assert tally.tolist() == [[2, 2**30], [2, 5 * 2**28], [7, 5]]
    counts, sums = ops.read_tally(tally)
    assert counts.tolist() == [2, 2, 7]
    assert sums.tolist() == [1.0, 1.25, 5 * 2.0**-30]


@pytest.mark.parametrize(("k", "n"), [(1, 0), (1, 5), (10, 128), (10, 1500), (700, 300)])
def test_the_tally_agrees_with_the_reference_whatever_the_order(backend, k, n):
    generator = np.random.default_rng(n)
    y, loss = torch.from_numpy(generator.integers(0, k, n)), torch.from_numpy(generator.random(n, np.float32))
    start = torch.from_numpy(generator.integers(0, 2**40, (k, 2)))
    expected = torch.from_numpy(reference.class_tally(start, y, loss))
    for order in (torch.arange(n), torch.arange(n).flip(0)):
        tally = start.clone()
        backend.op("class_tally")(tally, y[order], loss[order], None)
        assert torch.equal(tally, expected)


def test_large_batches_use_several_blocks(emulated):
    emulated.launches()
    emulated.op("class_tally")(
        ops.new_tally(10), torch.zeros(1024, dtype=torch.int64), torch.ones(1024), None
    )
    assert emulated.launches() == [(4, 256)]


def test_zero_one_losses_may_be_bool():
    tally = ops.new_tally(2)
    ops.class_tally_(tally, torch.tensor([0, 1, 1]), torch.tensor([True, False, True]))
    counts, errors = ops.read_tally(tally)
    assert counts.tolist() == [1, 2]
    assert errors.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("y", "loss", "message"),
    [
        ([0, 2], [1.0, 1.0], r"y must be in \[0, 2\), got 2 for example 1"),
        ([0, -1], [1.0, 1.0], r"y must be in \[0, 2\), got -1"),
        ([-(2**63), 1], [1.0, 1.0], r"y must be in \[0, 2\), got -9223372036854775808"),
        ([0, 2**63 - 1], [1.0, 1.0], r"y must be in \[0, 2\), got 9223372036854775807"),
        ([0, 1], [-1e-30, 1.0], r"loss must be in \[0, 1\], got -1e-30 for example 0"),
        ([0, 1], [1.0, float("nan")], r"loss must be in \[0, 1\], got nan"),
        ([0, 1], [1.5, 1.0], r"loss must be in \[0, 1\], got 1.5 for example 0"),
        ([0, 1], [1.0], r"loss must have shape \(2,\), got \(1,\)"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(y, loss, message):
    tally = ops.new_tally(2)
    with pytest.raises(ValueError, match=message):
        ops.class_tally_(tally, torch.tensor(y), torch.tensor(loss))
    assert not tally.any()


def test_a_tally_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"tally .*got \(3,\)"):
        ops.class_tally_(torch.zeros(3, dtype=torch.int64), torch.tensor([0]), torch.ones(1))
    with pytest.raises(TypeError, match=r"tally .*got float32"):
        ops.class_tally_(torch.zeros(3, 2), torch.tensor([0]), torch.ones(1))


def test_both_faults_of_one_example_are_flagged(schedule):
    fault = ops.new_fault()
    schedule.op("class_tally")(ops.new_tally(2), torch.tensor([2]), torch.tensor([float("nan")]), fault)
    assert int(fault) == 1 | 2


def test_the_device_raises_flags_and_passes_over_what_is_wrong(schedule):
    tally, fault = ops.new_tally(2), ops.new_fault()
    y, loss = torch.tensor([0, 2, -1, 1, 1, 1]), torch.tensor([0.5, 1.0, 1.0, float("nan"), 3.0, -1.0])
    schedule.op("class_tally")(tally, y, loss, fault)
    assert tally.tolist() == [[1, 2**29], [3, 2**30]]
    assert int(fault) == 1 | 2
