"""Sets of images, the stratified hold-out and the imbalance."""

import pytest
import torch

from cfol_fast import data
from cfol_fast.data.images import check_every_class
from cfol_fast.data.registry import channel_statistics, paper_augment
from cfol_fast.errors import InputError


def small(labels, classes=("a", "b", "c")) -> data.ImageSet:
    count = len(labels)
    images = torch.arange(count * 12, dtype=torch.int64).remainder(256).to(torch.uint8).view(count, 2, 2, 3)
    return data.ImageSet(images, torch.tensor(labels), list(classes))


def uneven() -> data.ImageSet:
    """Three images of 1x2, 2x2 and 2x1 pixels, one byte a pixel."""
    table = torch.tensor([[0, 1, 2], [2, 2, 2], [6, 2, 1]])
    return data.ImageSet(torch.arange(8, dtype=torch.uint8), torch.tensor([0, 1, 1]), ["a", "b"], table, 1)


def test_a_subset_keeps_images_labels_and_names_together():
    part = small([0, 1, 2, 1]).subset([3, 0])
    assert part.labels.tolist() == [1, 0]
    assert part.classes == ["a", "b", "c"]
    assert part.images[0, 0, 0].tolist() == [36, 37, 38]


def test_images_of_different_sizes_are_found_by_the_table():
    images = uneven()
    assert images.size is None
    assert images.image(1).tolist() == [[[2], [3]], [[4], [5]]]
    assert images.subset([2]).image(0).tolist() == [[[6]], [[7]]]
    assert images.subset([2]).size == (2, 1)


def test_a_subset_shares_the_pixels_until_it_is_made_compact():
    part = uneven().subset([2, 0])
    assert part.images.numel() == 8
    assert part.nbytes == 4 + 2 * 8 + 6 * 8
    small = part.compact()
    assert small.images.tolist() == [6, 7, 0, 1]
    assert small.table.tolist() == [[0, 2, 1], [2, 1, 2]]
    assert small.compact() is small
    assert all(torch.equal(small.image(i), part.image(i)) for i in range(2))


def test_an_item_is_a_picture_in_0_to_1_with_its_label():
    x, y = small([2, 0, 1])[0]
    assert x.shape == (3, 2, 2)
    assert x[:, 0, 1].tolist() == pytest.approx([3 / 255, 4 / 255, 5 / 255])
    assert y == 2


@pytest.mark.parametrize(
    ("labels", "said"),
    [([0, 3], "labels must be 0..2 for 3 classes, got 0..3"), ([-1, 0], "got -1..0")],
)
def test_labels_that_are_not_0_to_k_minus_1_are_refused(labels, said):
    with pytest.raises(InputError, match=said):
        small(labels)


def test_labels_of_another_type_or_number_are_refused():
    images = torch.zeros(2, 1, 1, 1, dtype=torch.uint8)
    with pytest.raises(InputError, match=r"labels.*int64"):
        data.ImageSet(images, torch.tensor([0.0, 1.0]), ["a", "b"])
    with pytest.raises(InputError, match=r"2 images.*3 labels"):
        data.ImageSet(images, torch.tensor([0, 1, 1]), ["a", "b"])
    with pytest.raises(InputError, match=r"images.*uint8"):
        data.ImageSet(images.float(), torch.tensor([0, 1]), ["a", "b"])
    with pytest.raises(InputError, match=r"images.*\(N, H, W, C\)"):
        data.ImageSet(images[0], torch.tensor([0, 1]), ["a", "b"])


def test_a_table_that_leaves_the_bytes_is_refused():
    with pytest.raises(InputError, match="image 1"):
        data.ImageSet(
            torch.zeros(4, dtype=torch.uint8),
            torch.tensor([0, 0]),
            ["a"],
            torch.tensor([[0, 1, 1], [2, 1, 3]]),
            1,
        )


def test_a_subset_outside_the_set_is_refused():
    with pytest.raises(InputError, match=r"0\.\.1.*0\.\.2"):
        small([0, 1]).subset([0, 2])


def test_an_empty_class_is_named():
    with pytest.raises(InputError, match=r"here.*'b'"):
        check_every_class(small([0, 2, 2]), "here")


def test_the_hold_out_takes_the_same_share_of_every_class_once():
    labels = torch.tensor([0] * 50 + [1] * 10 + [2] * 5)
    kept, held = data.holdout(labels, 0.2, seed=1)
    assert torch.bincount(labels[held]).tolist() == [10, 2, 1]
    assert sorted(kept.tolist() + held.tolist()) == list(range(65))


def test_the_hold_out_depends_on_the_seed_alone():
    labels = torch.arange(1000) % 10
    again = [data.holdout(labels, 0.2, seed=s)[1].tolist() for s in (0, 0, 1)]
    assert again[0] == again[1] != again[2]


def test_every_class_keeps_and_gives_at_least_one_image():
    labels = torch.tensor([0, 0, 1, 1])
    for fraction in (0.01, 0.99):
        kept, held = data.holdout(labels, fraction)
        assert labels[kept].unique().tolist() == labels[held].unique().tolist() == [0, 1]


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0])
def test_a_hold_out_of_nothing_or_all_is_refused(fraction):
    with pytest.raises(InputError, match=r"\(0, 1\)"):
        data.holdout(torch.tensor([0, 0]), fraction)


def test_a_class_of_one_image_cannot_be_held_out():
    with pytest.raises(InputError, match="class 1"):
        data.holdout(torch.tensor([0, 0, 1]), 0.2)


def test_factor_10_thins_cifar_10_from_5000_to_500():
    labels = torch.arange(50_000) % 10
    images = data.ImageSet(
        torch.zeros(50_000, 1, 1, 1, dtype=torch.uint8), labels, [str(c) for c in range(10)]
    )
    thin = data.imbalance(images, 10, seed=0)
    assert thin.class_counts().tolist() == [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500]


def test_the_imbalance_is_seeded_and_factor_1_changes_nothing(mini):
    first, again, other = (data.imbalance(mini.train, 10, seed=s) for s in (0, 0, 1))
    assert torch.equal(first.images, again.images)
    assert not torch.equal(first.images, other.images)
    assert data.imbalance(mini.train, 1) is mini.train
    with pytest.raises(InputError, match="1"):
        data.imbalance(mini.train, 0.1)


def test_load_thins_the_training_part_alone_and_says_so():
    thin = data.load("fashion-mini", imbalance=10)
    assert thin.train.class_counts()[[0, 9]].tolist() == [500, 50]
    assert thin.test.class_counts().tolist() == [300] * 10
    assert "thinned exponentially by 10" in thin.notes[0]


def test_an_unknown_data_set_is_refused_with_the_nearest():
    with pytest.raises(InputError, match="did you mean 'cifar10'"):
        data.load("cifar-10")


def test_only_a_folder_can_be_resized():
    with pytest.raises(InputError, match="folder"):
        data.load("fashion-mini", size=32)


@pytest.mark.parametrize(("size", "pad"), [(28, 4), (32, 4), (64, 8), (96, 12)])
def test_the_padding_of_other_images_grows_with_their_size(size, pad):
    augment = paper_augment(size)
    assert augment.pad == pad
    assert (augment.brightness, augment.contrast, augment.saturation, augment.degrees) == (
        0.25,
        0.25,
        0.25,
        2,
    )


def test_stl10_and_tiny_imagenet_are_padded_as_in_the_authors_code():
    assert data.spec("stl10").augment(96).pad == 8
    assert data.spec("tiny-imagenet").augment(64).pad == 4


def test_imagenette_is_cropped_without_padding():
    assert data.spec("imagenette").augment(160).pad == 0
    assert data.spec("imagenette").augment(160).crop


def test_the_paper_s_data_sets_have_the_paper_s_radius():
    assert {name: data.spec(name).eps for name in data.names() if name != "fashion-mini"} == {
        name: 8 / 255 for name in data.names() if name != "fashion-mini"
    }


def test_channel_statistics_look_at_no_more_images_than_they_say():
    images = torch.zeros(9, 2, 2, 1, dtype=torch.uint8)
    images[::2] = 255  # of nine images at most five: every second one
    assert channel_statistics(data.ImageSet(images, torch.zeros(9, dtype=torch.int64), ["a"]), most=5)[0] == (
        1.0,
    )


def test_channel_statistics_are_those_of_all_pixels():
    images = small([0, 1, 2])
    mean, std = channel_statistics(images)
    values = images.images.double().reshape(-1, 3) / 255
    assert mean == pytest.approx(values.mean(0).tolist(), abs=1e-4)
    assert std == pytest.approx(values.std(0, correction=0).tolist(), abs=1e-4)


def test_a_part_has_of_every_class_its_share_and_is_the_same_each_time():
    labels = torch.tensor([0] * 60 + [1] * 30 + [2] * 9 + [3])
    chosen = data.stratified(labels, 20)
    assert torch.bincount(labels[chosen]).tolist() == [12, 6, 1, 1]
    assert torch.equal(chosen, data.stratified(labels, 20))
    assert not torch.equal(chosen, data.stratified(labels, 20, seed=1))
    assert torch.equal(chosen, chosen.unique())
    assert data.stratified(labels, 100).tolist() == list(range(100))
    # Not the first of each class.
    assert labels[chosen].tolist() == sorted(labels[chosen].tolist())
    assert chosen[:12].tolist() != list(range(12))


def test_a_part_smaller_than_the_number_of_classes_takes_some_of_them():
    labels = torch.arange(10).repeat(5)
    assert len(labels[data.stratified(labels, 4)].unique()) == 4
    with pytest.raises(InputError, match="1 to 50 of them, got 51"):
        data.stratified(labels, 51)
