"""People with a data set class of their own: a plain torch DataLoader with any of the samplers."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from cfol_fast import sampling


class Letters(Dataset):
    """A user's own data set: nothing of this project in it."""

    def __init__(self) -> None:
        self.targets = [i % 3 for i in range(30)]

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        return torch.full((1, 2, 2), float(index)), self.targets[index], index


def samplers() -> dict[str, sampling.IndexSampler]:
    labels = torch.tensor(Letters().targets)
    return {
        "class": sampling.ClassSampler(labels, eta=0.5, seed=1),
        "class of a data set": sampling.ClassSampler(Letters(), eta=0.5, seed=1),
        "example": sampling.ExampleSampler(30, seed=1),
        "uniform": sampling.UniformSampler(30, seed=1),
        "fixed": sampling.FixedClassSampler(labels, torch.tensor([0.5, 0.3, 0.2]), seed=1),
    }


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", list(samplers()))
def test_a_plain_dataloader_works_with_every_sampler(name, workers):
    sampler = samplers()[name]
    loader = DataLoader(Letters(), batch_size=6, sampler=sampler, num_workers=workers)
    seen = 0
    for x, y, index in loader:
        assert torch.equal(x[:, 0, 0, 0].long(), index)
        assert torch.equal(y, index % 3)
        loss = (y == 2).float()
        if isinstance(sampler, sampling.ClassSampler):
            sampler.update(y, loss)
        elif isinstance(sampler, sampling.ExampleSampler):
            sampler.update(index, loss)
        seen += len(index)
    assert seen == len(sampler) == 30


@pytest.mark.parametrize("workers", [0, 2])
def test_what_the_sampler_learns_in_one_epoch_shows_in_the_next(workers):
    sampler = sampling.ClassSampler(torch.tensor(Letters().targets), eta=5.0, gamma=0.1, seed=0)
    loader = DataLoader(Letters(), batch_size=10, sampler=sampler, num_workers=workers)
    for _ in range(3):
        for _, y, _ in loader:
            sampler.update(y, (y == 2).float())
    counts = torch.bincount(torch.cat([y for _, y, _ in loader]), minlength=3)
    assert counts[2] > 20


@pytest.mark.parametrize("workers", [0, 2])
def test_the_embedded_images_are_a_plain_data_set_too(mini, workers):
    sampler = sampling.ClassSampler(mini.train, seed=0)
    x, y = next(iter(DataLoader(mini.train, batch_size=16, sampler=sampler, num_workers=workers)))
    assert x.shape == (16, 1, 28, 28)
    assert 0 <= x.min() <= x.max() <= 1
    assert y.dtype == torch.int64
