"""The 8,000 images inside the package, and the script that made them."""

from importlib import resources

import numpy as np

from cfol_fast.data.embedded import make
from tests.data import published_files

FOLDER = resources.files("cfol_fast.data.embedded")


def test_there_are_500_training_and_300_test_images_of_each_class(mini):
    assert mini.train.class_counts().tolist() == [500] * 10
    assert mini.test.class_counts().tolist() == [300] * 10
    assert mini.train.images.shape == (5000, 28, 28, 1)
    assert mini.classes[6] == "Shirt"


def test_it_comes_with_the_demos_settings(mini):
    assert (mini.eps, mini.model, mini.size, mini.channels) == (0.1, "demo-cnn", (28, 28), 1)
    assert mini.augment.flip
    assert not mini.augment.crop
    assert mini.augment.brightness == mini.augment.degrees == 0


def test_mean_and_deviation_are_those_of_the_images(mini):
    values = mini.train.images.numpy() / 255
    assert abs(values.mean() - mini.mean[0]) < 0.01
    assert abs(values.std() - mini.std[0]) < 0.01


def test_the_file_is_small_and_has_no_pickles_and_a_licence():
    file = FOLDER / "fashion_mini.npz"
    with file.open("rb") as stream:
        assert len(stream.read()) < 6e6
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        assert len(np.unique(arrays["train_indices"])) == 5000
        assert len(np.unique(arrays["test_indices"])) == 3000
    assert "Copyright (c) 2017 Zalando SE" in (FOLDER / "LICENSE").read_text()


def test_the_script_makes_the_same_file_from_the_same_source(tmp_path):
    images = published_files.fashion_mnist(tmp_path, zipped=True, train=6000, test=4000, side=3)
    make.make(tmp_path, tmp_path / "a.npz")
    make.make(tmp_path, tmp_path / "b.npz")
    with np.load(tmp_path / "a.npz") as a, np.load(tmp_path / "b.npz") as b:
        assert all(np.array_equal(a[name], b[name]) for name in a)
        assert np.array_equal(a["train_images"], images[a["train_indices"]])
        assert np.bincount(a["train_labels"]).tolist() == [500] * 10
        assert np.bincount(a["test_labels"]).tolist() == [300] * 10
