"""A rank's share of a source: every n-th batch of the division that one process makes, with its number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from cfol_fast import data
from cfol_fast.data.source import PartOfSource, TensorSource, every_nth_batch
from cfol_fast.evaluation.readers import LoaderSource

X, Y = torch.rand(23, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(23) % 3
BATCH = 4


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Remembers which images were read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.read.append(index)
        return X[index], int(Y[index])


class Plain:
    """A user's own source, which knows nothing of shares."""

    labels, classes = Y, ["a", "b", "c"]

    def __len__(self) -> int:
        return len(Y)

    def batches(self, batch_size: int) -> Any:
        return TensorSource(X, Y).batches(batch_size)


def resident() -> data.ResidentSource:
    pixels = (X * 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
    return data.ResidentSource(data.ImageSet(pixels, Y, ["a", "b", "c"]))


SOURCES: dict[str, Any] = {
    "tensor": lambda: TensorSource(X, Y),
    "resident": resident,
    "part": lambda: PartOfSource(resident(), torch.tensor([0, 1, 5, 13, 14, 22])),
    "loader": lambda: LoaderSource(DataLoader(Images(), batch_size=3), fixed=True),
    "data set": lambda: LoaderSource(DataLoader(Images()), fixed=False),
    "plain": Plain,
}


@pytest.mark.parametrize("size", [1, 2, 3, 40])
@pytest.mark.parametrize("name", SOURCES)
def test_the_shares_of_all_ranks_are_the_batches_of_one_process(name: str, size: int) -> None:
    source = SOURCES[name]()
    whole = list(source.batches(BATCH))
    shares = [batch for rank in range(size) for batch in every_nth_batch(source, BATCH, rank, size)]
    assert sorted(number for number, _ in shares) == list(range(len(whole)))
    for number, batch in shares:
        for mine, theirs in zip(batch, whole[number], strict=True):
            assert torch.equal(mine, theirs)


def test_a_rank_reads_the_images_of_its_share_alone() -> None:
    images = Images()
    list(every_nth_batch(LoaderSource(DataLoader(images), fixed=False), BATCH, 1, 3))
    assert images.read == [*range(4, 8), *range(16, 20)]
