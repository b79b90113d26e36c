"""`--dataset beton`: two FFCV files are a data set, and nothing else is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cfol_fast import data
from cfol_fast.data.ffcv import writer
from cfol_fast.errors import InputError

pytestmark = pytest.mark.ffcv

DESCRIPTION = {"mean": [0.25], "std": [0.5], "augment": {"flip": True, "crop": False}}


@pytest.fixture(scope="module")
def whole() -> data.ImageData:
    return data.load("fashion-mini")


@pytest.fixture
def write(whole: data.ImageData, tmp_path: Path) -> Any:
    def write(name: str, part: str = "test", count: int = 60, **description: Any) -> None:
        images = getattr(whole, part)
        rows = data.stratified(images.labels, count)
        writer.write(tmp_path / name, images.subset(rows), description={**DESCRIPTION, **description})

    return write


def test_the_files_are_the_images_they_were_written_from(
    write: Any, whole: data.ImageData, tmp_path: Path
) -> None:
    write("train.beton", "train")
    write("val.beton", "test", 40)
    found = data.load("beton", tmp_path)
    rows = data.stratified(whole.train.labels, 60)
    assert torch.equal(found.train.labels, whole.train.labels[rows])
    assert torch.equal(found.train.image(7), whole.train.image(int(rows[7])))
    assert (len(found.test), found.classes, found.size) == (40, whole.classes, (28, 28))
    assert (found.mean, found.std) == ((0.25,), (0.5,))
    assert (found.augment.flip, found.augment.crop) == (True, False)


def test_a_part_of_a_part_keeps_its_images_and_streams_them(
    write: Any, whole: data.ImageData, tmp_path: Path
) -> None:
    write("train.beton", "train")
    write("test.beton")
    part = data.load("beton", tmp_path).train.subset([50, 9, 30, 4]).subset([2, 0])
    rows = data.stratified(whole.train.labels, 60)
    assert torch.equal(part.image(1), whole.train.image(int(rows[50])))
    source = data.source_of(part)
    assert isinstance(source, data.FFCVSource)
    ((_, x, y),) = source.batches(8)
    wanted = torch.stack([whole.train.image(int(rows[row])) for row in (30, 50)])
    assert torch.equal(x, wanted.permute(0, 3, 1, 2) / 255)
    assert torch.equal(y, whole.train.labels[rows[[30, 50]]])


def test_the_imbalance_thins_the_files_rows(write: Any, tmp_path: Path) -> None:
    write("train.beton", "train", 200)
    write("test.beton")
    found = data.load("beton", tmp_path, imbalance=10)
    assert found.train.class_counts().tolist() == [20, 15, 11, 9, 7, 5, 4, 3, 2, 2]


def test_a_jpg_is_decoded_for_the_statistics(tmp_path: Path) -> None:
    images = torch.full((4, 16, 16, 3), 128, dtype=torch.uint8)
    for name in ("train.beton", "test.beton"):
        writer.write(
            tmp_path / name, data.ImageSet(images, torch.tensor([0, 1, 0, 1]), ["a", "b"]), mode="jpg"
        )
    assert data.load("beton", tmp_path).mean == pytest.approx([128 / 255] * 3, abs=0.01)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "train.beton is not there; it should hold train.beton and test.beton or val.beton"),
        ({"train.beton": {}}, "test.beton or val.beton is not there"),
        ({"train.beton": {"split": "test"}, "test.beton": {}}, "train.beton holds the test part"),
        ({"train.beton": {}, "test.beton": {"classes": list("abcdefghij")}}, "their classes differ"),
        ({"train.beton": {"mean": [2]}, "test.beton": {}}, r"its mean must be 1 numbers in \[0, 1\]"),
        ({"train.beton": {"std": [0]}, "test.beton": {}}, r"its std must be 1 numbers in \[0, 1\]"),
        ({"train.beton": {"augment": {"pad": "x"}}, "test.beton": {}}, "its augmentation cannot be used"),
        ({"train.beton": {"augment": {"blur": 1}}, "test.beton": {}}, "its augmentation cannot be used"),
        ({"train.beton": {"augment": [1]}, "test.beton": {}}, "its augmentation cannot be used"),
    ],
)
def test_files_that_are_no_data_set_are_refused(
    write: Any, tmp_path: Path, files: dict[str, Any], said: str
) -> None:
    for name, description in files.items():
        write(name, **description)
    with pytest.raises(InputError, match=said):
        data.load("beton", tmp_path)


def test_a_size_belongs_to_the_writing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="size is chosen when FFCV files are written"):
        data.load("beton", tmp_path, size=32)
