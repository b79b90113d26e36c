"""Data sets of Hugging Face's `datasets`: drawn by `cf.loader`, and evaluated as they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Image
from PIL import Image as Pillow
from torch import nn
from torchvision.transforms.functional import to_tensor

import cfol_fast as cf


@pytest.fixture
def pictures() -> Dataset:
    """Twelve pictures of 8 x 8 pixels in three classes, stored as files are."""
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    columns = {"image": [Pillow.fromarray(one) for one in pixels], "label": [i % 3 for i in range(12)]}
    features = Features({"image": Image(), "label": ClassLabel(names=["cat", "dog", "sign"])})
    data = Dataset.from_dict(columns, features=features)
    return data.with_transform(
        lambda rows: {"image": [to_tensor(one) for one in rows["image"]], "label": rows["label"]}
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_draws_from_it_and_the_sampler_learns(pictures: Dataset, workers: int) -> None:
    sampler = cf.ClassSampler(pictures["label"], eta=0.1)
    drawn = []
    for batch, ticket in cf.loader(pictures, sampler, batch_size=4, workers=workers):
        assert batch["image"].shape == (4, 3, 8, 8)
        assert batch["label"].tolist() == [pictures[int(i)]["label"] for i in ticket.idx]
        sampler.update(batch["label"], batch["label"] == 1, p=ticket)
        drawn += ticket.idx.tolist()
    assert len(drawn) == 12
    assert sampler.p.argmax() == 1


def test_it_is_evaluated_as_it_is(pictures: Dataset) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    result = cf.evaluate(model, pictures, attack={"eps": 0.1, "steps": 3})
    rows = [pictures[i] for i in range(12)]
    guesses = model(torch.stack([row["image"] for row in rows])).argmax(1)
    assert result.clean.average == (guesses == torch.tensor([row["label"] for row in rows])).float().mean()
    assert result.robust.average <= result.clean.average
    assert result.clean.classes == ["cat", "dog", "sign"]
