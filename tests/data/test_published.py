"""CIFAR-10, CIFAR-100, STL10 and Fashion-MNIST from small files in their official formats."""

import gzip
import os
import pickle

import numpy as np
import pytest
import torch

from cfol_fast import data
from cfol_fast.data import published
from cfol_fast.errors import InputError
from tests.data import published_files as files


@pytest.mark.parametrize("inside", [False, True])
def test_cifar_10_is_read_as_published(tmp_path, monkeypatch, inside):
    made = files.cifar10(tmp_path, monkeypatch)
    found = data.load("cifar10", tmp_path / "cifar-10-batches-py" if inside else tmp_path)
    assert np.array_equal(found.train.images, made["train"])
    assert np.array_equal(found.test.images, made["test"])
    assert found.train.labels[:12].tolist() == [*range(10), 0, 1]
    assert found.classes[3] == "cat"
    assert (found.size, found.channels, found.eps, found.model) == ((32, 32), 3, 8 / 255, "resnet18")


def test_cifar_100_has_its_fine_labels_and_their_names(tmp_path, monkeypatch):
    files.cifar100(tmp_path, monkeypatch)
    found = data.load("cifar100", tmp_path)
    assert len(found.classes) == 100
    assert found.classes[42] == "fine 42"
    assert found.test.class_counts().tolist() == [2] * 100


def test_stl_10_is_read_upright_with_labels_from_0_and_without_the_unlabelled_part(tmp_path, monkeypatch):
    images = files.stl10(tmp_path, monkeypatch)
    found = data.load("stl10", tmp_path)
    assert np.array_equal(found.train.images, images)
    assert found.train.labels[:11].tolist() == [*range(10), 0]
    assert found.classes[9] == "thing 9"
    assert found.size == (96, 96)


@pytest.mark.parametrize(("place", "zipped"), [("", True), ("FashionMNIST/raw", False), ("raw", False)])
def test_fashion_mnist_is_read_zipped_as_published_or_as_torchvision_unpacks_it(tmp_path, place, zipped):
    images = files.fashion_mnist(tmp_path / place, zipped)
    found = data.load("fashion-mnist", tmp_path)
    assert np.array_equal(found.train.images[..., 0], images)
    assert found.classes[9] == "Ankle boot"


def test_debian_s_package_needs_no_folder(tmp_path, monkeypatch):
    files.fashion_mnist(tmp_path, zipped=True)
    monkeypatch.setattr(published, "DEBIAN_FOLDER", tmp_path)
    assert len(data.load("fashion-mnist").train) == 30


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "cifar10",
            r"cifar-10-batches-py is not there: expected is .*https://www.cs.toronto.edu.*--download",
        ),
        ("cifar100", r"cifar-100-python is not there: expected is .*https://www.cs.toronto.edu.*--download"),
        (
            "stl10",
            r"stl10_binary is not there: expected is .*train_X.bin.*http://ai.stanford.edu.*--download",
        ),
        ("fashion-mnist", r"has no train-images-idx3-ubyte.gz: expected are .*zalandoresearch.*--download"),
    ],
)
def test_what_is_missing_is_said_with_where_to_get_it(tmp_path, name, said):
    with pytest.raises(InputError, match=said):
        data.load(name, tmp_path)


@pytest.mark.parametrize("name", ["cifar10", "folder", "imagenette", "tiny-imagenet"])
def test_a_data_set_without_a_folder_asks_for_one(name):
    with pytest.raises(InputError, match="--data"):
        data.load(name)


def test_a_file_given_for_a_folder_is_refused(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(InputError, match="is not a folder"):
        data.load("cifar10", tmp_path / "x")


class Trap:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_a_pickle_that_is_not_the_official_one_is_never_opened(tmp_path, monkeypatch):
    files.cifar10(tmp_path, monkeypatch)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(InputError, match="official"):
        data.load("cifar10", tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_a_damaged_fashion_mnist_file_is_named(tmp_path):
    files.fashion_mnist(tmp_path, zipped=True)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    for content in (file.read_bytes()[:-100], gzip.compress(b"\0\0\x08\x03 too short"), b"no idx at all"):
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"train-images-idx3-ubyte\.gz"):
            data.load("fashion-mnist", tmp_path)


def test_images_and_labels_of_different_number_are_refused(tmp_path):
    files.fashion_mnist(tmp_path, zipped=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(files.idx(np.zeros(29)))
    with pytest.raises(InputError, match=r"30 images.*29 labels"):
        data.load("fashion-mnist", tmp_path)


def test_labels_beyond_the_classes_are_refused(tmp_path):
    files.fashion_mnist(tmp_path, zipped=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(files.idx(np.full(30, 10)))
    with pytest.raises(InputError, match=r"0\.\.9"):
        data.load("fashion-mnist", tmp_path)


def test_a_data_set_with_an_empty_class_is_refused(tmp_path):
    files.fashion_mnist(tmp_path, zipped=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(files.idx(np.zeros(30)))
    with pytest.raises(InputError, match=r"training.*'Trouser'"):
        data.load("fashion-mnist", tmp_path)


def test_download_asks_torchvision_and_reports_its_failure_in_a_line(tmp_path, monkeypatch):
    def no_network(*args, **kwargs):
        raise RuntimeError("Error downloading\nthe file")

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", no_network)
    with pytest.raises(InputError, match="Error downloading the file"):
        data.load("cifar10", tmp_path, download=True)


def test_download_is_passed_on_to_torchvision(tmp_path, monkeypatch):
    def fetched(url, root, **kwargs):
        files.cifar10(tmp_path, monkeypatch)

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", fetched)
    assert torch.equal(
        data.load("cifar10", tmp_path, download=True).test.class_counts(), torch.full((10,), 2)
    )
