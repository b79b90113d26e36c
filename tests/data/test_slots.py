"""A rank's part of a global batch: it reads its own slots alone, and they are those of the whole batch, bit
for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from cfol_fast import data, ops

AUGMENT = ops.Augment(pad=4, flip=True, brightness=0.25, contrast=0.25, degrees=2)


@pytest.fixture(params=["resident", pytest.param("ffcv", marks=pytest.mark.ffcv)])
def make(request: pytest.FixtureRequest, mini: data.ImageData) -> Callable[[], Any]:
    def make() -> Any:
        if request.param == "resident":
            assert isinstance(mini.train, data.ImageSet)
            return data.ResidentSource(mini.train, augment=AUGMENT, seed=7)
        path = request.getfixturevalue("mini_beton")
        return data.FFCVSource(path, lag=1, augment=AUGMENT, seed=7, workers=1)

    return make


def global_draws() -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(3)
    while True:
        yield torch.randint(0, 5000, (24,), generator=generator)


def test_the_slots_of_four_ranks_are_the_global_batch(make: Callable[[], Any]) -> None:
    def batches(first: int, count: int) -> list[tuple[Tensor, ...]]:
        draws = global_draws()
        return list(make().feed(lambda: next(draws)[first : first + count], 3, first=first))

    whole = batches(0, 24)
    parts = [batches(first, 6) for first in (0, 6, 12, 18)]
    for step, wanted in enumerate(whole):
        for part, tensor in enumerate(wanted):
            assert torch.equal(torch.cat([rank[step][part] for rank in parts]), tensor)


def test_every_second_batch_of_an_evaluation_is_read_without_the_others(make: Callable[[], Any]) -> None:
    every = list(make().batches(900))
    chosen = list(make().batches(900, first=1, every=2))
    assert len(chosen) == 3
    for mine, wanted in zip(chosen, every[1::2], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, wanted, strict=True))
