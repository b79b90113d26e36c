"""The images of a run: how the training part is divided."""

import numpy as np
import pytest
from PIL import Image

from cfol_fast.errors import InputError
from cfol_fast.training.images import RunImages, load_images
from tests.training.tiny import run, tiny_config


def loaded(tmp_path, **settings) -> RunImages:
    return load_images(tiny_config(tmp_path, **settings))


def test_the_hold_out_is_no_part_of_the_training_images(few_images, tmp_path):
    images = loaded(tmp_path)
    assert (len(images.labels), len(images.validation), len(images.test)) == (160, 40, 50)
    train = {image.numpy().tobytes() for image in images.train.images}
    assert not any(image.numpy().tobytes() in train for image in images.validation.images)


@pytest.mark.parametrize(
    ("holdout", "split", "count"), [("test", "test", 50), ("none", None, 0), ("0.5", "holdout", 100)]
)
def test_the_hold_out_can_be_the_test_set_or_nothing(few_images, tmp_path, holdout, split, count):
    images = loaded(tmp_path, data__holdout=holdout)
    assert (0 if images.validation is None else len(images.validation)) == count
    assert images.validation is None or images.validation_split == split
    assert len(images.labels) == len(images.train) == (100 if holdout == "0.5" else 200)


def test_a_part_of_the_training_images_has_its_share_of_every_class_and_is_the_same_for_every_seed(
    few_images, tmp_path
):
    images, other = (loaded(tmp_path, data__images=100, data__holdout="none", seed=seed) for seed in (0, 1))
    assert images.labels.bincount().tolist() == [10] * 10
    assert images.train.images.equal(other.train.images)
    assert len(images.test) == 50


def test_a_part_cannot_have_more_images_than_there_are(few_images, tmp_path):
    with pytest.raises(InputError, match="1 to 200 of them, got 201"):
        loaded(tmp_path, data__images=201)


def test_a_batch_larger_than_the_data_set_says_what_it_does(few_images, tmp_path):
    said = "batch_size=400 is more than the 160 training images: a batch draws each of them 2.5 times"
    assert said in loaded(tmp_path, batch_size=400).notes
    assert not any("batch_size" in note for note in loaded(tmp_path, batch_size=160).notes)


def test_a_quiet_run_reads_a_folder_of_images_without_a_word(tmp_path, capsys):
    for place in ("train/ant", "train/bee", "test/ant", "test/bee"):
        (tmp_path / place).mkdir(parents=True)
        for number in range(4):
            Image.fromarray(np.full((8, 8, 3), 9 * number, np.uint8)).save(tmp_path / place / f"{number}.png")
    run(tmp_path / "run", data__name="folder", data__root=str(tmp_path), epochs=1)
    assert capsys.readouterr() == ("", "")
