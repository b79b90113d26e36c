"""A hold-out that divides no group."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cfol_fast import data
from cfol_fast.data.content import differences
from cfol_fast.data.groups import groups_of
from cfol_fast.data.listing import Listing
from cfol_fast.errors import InputError
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.identity import differences as other_settings
from cfol_fast.training.images import load_images
from tests.data import published_files

RULE = r"^(.*)_\d+\.png$"


def classes_of_groups(groups: int, frames: int, k: int) -> tuple[torch.Tensor, np.ndarray]:
    """Each class has so many groups of so many images, shuffled."""
    labels = np.repeat(np.arange(k), groups * frames)
    numbers = np.repeat(np.arange(k * groups), frames)
    order = np.random.default_rng(0).permutation(len(labels))
    return torch.from_numpy(labels[order]), numbers[order]


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_group_is_divided_and_shares_are_exact_where_groups_allow(fraction, seed):
    labels, groups = classes_of_groups(groups=10, frames=7, k=4)
    kept, held = data.holdout(labels, fraction, seed, groups=groups)
    assert not set(groups[kept]) & set(groups[held])
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(len(labels)))
    assert torch.bincount(labels[held]).tolist() == [round(10 * fraction) * 7] * 4


def test_shares_of_uneven_groups_are_within_half_of_the_largest_group():
    numbers = np.random.default_rng(3)
    sizes = numbers.integers(1, 30, (5, 40))
    labels = torch.from_numpy(np.repeat(np.arange(5), sizes.sum(1)))
    groups = np.repeat(np.arange(200), sizes.ravel())
    _, held = data.holdout(labels, 0.2, 0, groups=groups)
    short = np.abs(np.bincount(labels[held]) - 0.2 * sizes.sum(1))
    assert (short <= sizes.max(1) / 2).all()


def test_groups_of_several_classes_stay_whole_and_every_class_is_on_both_sides():
    numbers = np.random.default_rng(5)
    groups, labels = numbers.integers(0, 60, 3000), torch.from_numpy(numbers.integers(0, 6, 3000))
    kept, held = data.holdout(labels, 0.2, 0, groups=[f"patient {number}" for number in groups])
    assert not set(groups[kept]) & set(groups[held])
    assert torch.bincount(labels[kept], minlength=6).min() > 0
    assert abs(len(held) / 3000 - 0.2) < 0.03


def test_the_seed_chooses_the_groups_and_a_name_is_as_good_as_a_number():
    labels, groups = classes_of_groups(10, 7, 4)
    first, again, other = (data.holdout(labels, 0.2, seed, groups=groups)[1] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first, data.holdout(labels, 0.2, 0, groups=[f"g{number}" for number in groups])[1])


def test_a_class_with_one_group_and_a_wrong_number_of_groups_are_refused():
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    with pytest.raises(InputError, match="class 'bee' has one group of 3 images"):
        data.holdout(labels, 0.3, 0, ["ant", "bee"], groups=[0, 1, 2, 3, 3, 3])
    with pytest.raises(InputError, match="6 images, but 2 groups"):
        data.holdout(labels, 0.3, 0, groups=[0, 1])
    # Each group has two of the three classes: one held out leaves a class out, two take a whole class.
    with pytest.raises(InputError, match="shares its groups"):
        data.holdout(torch.tensor([0, 1, 0, 2, 1, 2]), 0.3, 0, ["a", "b", "c"], groups=[0, 0, 1, 1, 2, 2])


def listing(*paths: str) -> Listing:
    return Listing(Path("/data"), "train", [f"train/{path}" for path in paths], [0] * len(paths), ["ant"])


def test_an_expression_finds_the_group_in_its_parentheses_or_as_a_whole(tmp_path):
    files = listing("ant/1_00.png", "ant/1_01.png", "bee/1_00.png")
    assert len(set(groups_of(files, RULE))) == 2
    assert groups_of(files, r"\d+_") == ["1_", "1_", "1_"]
    # Two parentheses are not run together.
    assert len(set(groups_of(listing("ab/c.png", "a/bc.png"), r"^(\w+)/(\w+)"))) == 2
    with pytest.raises(InputError, match="is not found in ant"):
        groups_of(listing("ant/x.png"), RULE)
    with pytest.raises(InputError, match="neither a regular expression"):
        groups_of(files, "(")


def test_a_table_names_the_groups(tmp_path):
    table = tmp_path / "groups.CSV"
    table.write_text("group,path,note\nA,ant/1.png,\nB,train/ant/2.png,x\n")
    assert groups_of(listing("ant/2.png", "ant/1.png"), str(table)) == ["B", "A"]
    wrong = {
        "path,sign\nant/1.png,3\n": "must name",
        "path,group\nant/1.png,\n": "has no group",
        "path,group\nant/1.png,3\nant/1.png,4\n": "two groups",
        "path,group\nant/9.png,3\n": "no line for ant/1.png",
    }
    for text, problem in wrong.items():
        table.write_text(text)
        with pytest.raises(InputError, match=problem):
            groups_of(listing("ant/1.png"), str(table))
    with pytest.raises(InputError, match="cannot be read"):
        groups_of(listing("ant/1.png"), str(tmp_path / "nowhere.csv"))


def frames(root: Path, splits: tuple[str, ...]) -> None:
    """Six signs of three frames in each class."""
    for split in splits:
        for c, name in enumerate(("ant", "bee")):
            for i in range(18):
                published_files.save(root / split / name / f"{i // 3}_{i % 3}.png", 100 * c + i, 8, 8)


def config(root: Path, **given) -> TrainConfig:
    given = {f"data.{key}": value for key, value in given.items()}
    return TrainConfig({"data.root": str(root), "model.name": "demo-cnn@0.25", "device": "cpu", **given})


@pytest.mark.parametrize("splits", [("train", "test"), ("train",)])
def test_neither_the_holdout_nor_a_test_part_of_our_making_divides_a_group(tmp_path, splits):
    frames(tmp_path, splits)
    found = data.load("folder", tmp_path, holdout_groups=RULE)
    kept, held = data.holdout(found.train.labels, 0.2, 0, groups=found.groups)
    assert not set(found.groups[kept].tolist()) & set(found.groups[held].tolist())
    assert set(torch.bincount(found.groups).tolist()) <= {0, 3}
    images = load_images(config(tmp_path, holdout_groups=RULE))
    assert len(images.labels) == len(kept)
    assert torch.equal(images.labels, found.train.labels[kept])
    assert len(images.validation) % 3 == 0


def test_thinned_and_chosen_parts_keep_their_groups(tmp_path):
    frames(tmp_path, ("train", "test"))
    whole = data.load("folder", tmp_path, holdout_groups=RULE)
    thin = data.load("folder", tmp_path, imbalance=3.0, holdout_groups=RULE)
    of_image = {
        image.numpy().tobytes(): int(g) for image, g in zip(whole.train.images, whole.groups, strict=True)
    }
    assert [of_image[image.numpy().tobytes()] for image in thin.train.images] == thin.groups.tolist()
    assert len(thin.train) < len(whole.train)


def test_the_rule_and_what_it_says_belong_to_the_run(tmp_path):
    frames(tmp_path, ("train", "test"))
    assert other_settings(config(tmp_path), config(tmp_path, holdout_groups=RULE))
    table = tmp_path / "groups.csv"
    paths = [f"{name}/{i // 3}_{i % 3}.png" for name in ("ant", "bee") for i in range(18)]
    contents = []
    for width in (3, 2):
        lines = [f"{path},{path[:3]}{i % 18 // width}" for i, path in enumerate(paths)]
        table.write_text("\n".join(["path,group", *lines]))
        contents.append(load_images(config(tmp_path, holdout_groups=str(table))).content)
    assert differences(*contents) == {"train": ["groups"]}


def test_groups_of_data_without_file_names_and_of_broken_images_are_refused(tmp_path):
    with pytest.raises(InputError, match="got fashion-mini"):
        TrainConfig({"data.name": "fashion-mini", "data.holdout_groups": RULE})
    frames(tmp_path, ("train", "test"))
    (tmp_path / "train/ant/0_0.png").write_bytes(b"no image")
    with pytest.raises(InputError, match="1 of 36 cannot be decoded"):
        data.load("folder", tmp_path, skip_corrupt=True, holdout_groups=RULE)
