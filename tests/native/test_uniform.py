"""Uniform numbers of a stream: known values, any piece of the stream alone, the same on every side."""

import numpy as np
import pytest
import torch

from cfol_fast import ops
from tests.reference import philox
from tests.reference import uniform as reference


def test_the_numbers_are_the_words_of_the_stream_in_their_order(backend):
    words = philox.random4(9, 3, "augment", np.arange(2)).reshape(-1)
    found = backend.op("uniform")(torch.tensor([9, 3]), philox.STREAMS["augment"], 0, 8)
    assert found.dtype == torch.float32
    assert (found.double() * 2**24).tolist() == [float(word >> 8) for word in words]


@pytest.mark.parametrize("first", [0, 1, 2, 3, 4, 4095, 2**40 + 3, 2**62 - 2100])
@pytest.mark.parametrize("n", [0, 1, 4, 5, 2100])
def test_any_piece_is_as_in_the_reference(backend, first, n):
    rng = torch.tensor([2**62 + 5, 2**30])
    found = backend.op("uniform")(rng, 7, first, n)
    assert np.array_equal(found.numpy(), reference.uniform(2**62 + 5, 2**30, 7, first, n))
    assert rng.tolist() == [2**62 + 5, 2**30]


def test_cpu_and_emulated_cuda_agree(cpu, schedule):
    # More slots than the stand-in's grid has threads; two pieces for the threads of a CPU.
    n = 80_000
    assert torch.equal(*(side.op("uniform")(ops.new_rng(4), 5, 3, n) for side in (cpu, schedule)))


def test_seeds_steps_and_streams_give_different_numbers():
    drawn = {
        tuple(ops.uniform(torch.tensor([seed, step]), stream, 0, 3).tolist())
        for seed in range(4)
        for step in range(4)
        for stream in range(1, 5)
    }
    assert len(drawn) == 64


def test_they_are_uniform():
    counts = torch.histc(ops.uniform(ops.new_rng(1), 1, 0, 100_000), bins=20, min=0, max=1).double()
    assert ((counts - 5000) ** 2 / 5000).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001


def test_large_pieces_use_several_blocks(emulated):
    emulated.launches()
    emulated.op("uniform")(ops.new_rng(0), 5, 2, 4096)
    assert emulated.launches() == [(5, 256)]


@pytest.mark.parametrize(
    ("stream", "first", "n", "message"),
    [
        (0, 0, 1, "stream must be from 1 to 255, got 0"),
        (256, 0, 1, "stream must be from 1 to 255, got 256"),
        (1, -1, 1, r"first must be from 0 to 2\^62, got -1"),
        (1, 2**62 + 1, 0, r"first must be from 0 to 2\^62"),
        (1, 0, -1, "n must be at least 0"),
        (1, 2**62, 1, r"first \+ n at most 2\^62, got 1"),
    ],
)
def test_bad_input_is_refused(stream, first, n, message):
    with pytest.raises(ValueError, match=message):
        ops.uniform(ops.new_rng(0), stream, first, n)


def test_a_wrong_random_state_is_refused():
    with pytest.raises(TypeError, match=r"rng .*int64"):
        ops.uniform(torch.zeros(2), 5, 0, 5)
