"""Folders of images: one's own, Imagenette and Tiny ImageNet; decoded once, cached beside the data."""

import os
import resource

import numpy as np
import pytest
import torch
from PIL import Image

from cfol_fast import data
from cfol_fast.data import content, decoding, image_file
from cfol_fast.errors import InputError
from tests.data import published_files as files
from tests.data.conftest import without_privileges


def load(root, **options):
    return data.load("folder", root, progress=False, **options)


@pytest.fixture
def decoded(monkeypatch):
    """The paths that are decoded, in any order."""
    paths = []
    pixels = decoding.pixels_of
    monkeypatch.setattr(
        decoding, "pixels_of", lambda file, *rest: paths.append(file.filename) or pixels(file, *rest)
    )
    return paths


def test_a_folder_has_its_folders_names_as_classes(tmp_path):
    made = files.folder(tmp_path)
    found = load(tmp_path)
    assert found.classes == ["ant", "bee", "cat"]
    assert found.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert np.array_equal(found.train.image(5), made["train/bee/1.png"])
    assert np.array_equal(found.test.image(11), made["test/cat/3.png"])
    assert (found.size, found.channels, len(found.mean)) == ((8, 8), 3, 3)


def test_the_folder_may_be_the_one_at_hand(tmp_path, monkeypatch):
    files.folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert len(load(".").train) == 12


def test_val_is_the_test_part_where_there_is_no_test(tmp_path):
    made = files.folder(tmp_path, ("train", "val"))
    assert np.array_equal(load(tmp_path).test.image(0), made["val/ant/0.png"])


def test_test_goes_before_val_and_that_is_said(tmp_path):
    made = files.folder(tmp_path, ("train", "val", "test"))
    found = load(tmp_path)
    assert np.array_equal(found.test.image(0), made["test/ant/0.png"])
    assert "val/ is not used" in found.notes[0]


def test_validation_is_another_name_of_val(tmp_path):
    made = files.folder(tmp_path, ("train", "validation"))
    assert np.array_equal(load(tmp_path).test.image(0), made["validation/ant/0.png"])


def test_without_either_a_fifth_of_every_class_is_held_out_and_that_is_said(tmp_path):
    files.folder(tmp_path, ("train",), count=5)
    found = load(tmp_path)
    assert found.train.class_counts().tolist() == [4, 4, 4]
    assert found.test.class_counts().tolist() == [1, 1, 1]
    assert any("20% of train/ is held out" in note for note in found.notes)


def test_images_in_deeper_folders_belong_to_the_class_and_other_files_do_not(tmp_path):
    files.folder(tmp_path)
    files.save(tmp_path / "train/ant/more/x.PNG", 1, 8, 8)
    (tmp_path / "train/ant/readme.txt").write_text("not an image")
    (tmp_path / "train/.hidden").mkdir()
    assert load(tmp_path).train.class_counts().tolist() == [5, 4, 4]


def test_grey_palette_and_16_bit_images_become_rgb(tmp_path):
    files.folder(tmp_path, count=1)
    Image.fromarray(files.pixels(1, 8, 8)).convert("P").save(tmp_path / "train/ant/p.png")
    Image.fromarray(np.full((8, 8), 0x8012, np.uint16)).save(tmp_path / "train/ant/deep.png")
    found = load(tmp_path)
    assert found.train.images.shape == (5, 8, 8, 3)
    assert found.train.image(1).unique().tolist() == [0x80]


def test_images_of_different_sizes_are_stored_with_the_short_side_asked_for(tmp_path):
    files.folder(tmp_path, count=1)
    files.save(tmp_path / "train/ant/tall.png", 1, 40, 20)
    files.save(tmp_path / "train/ant/wide.png", 2, 10, 25)
    found = load(tmp_path, size=10)
    assert [tuple(found.train.image(i).shape) for i in range(3)] == [(10, 10, 3), (20, 10, 3), (10, 25, 3)]
    assert np.array_equal(found.train.image(2), files.pixels(2, 10, 25, 3))  # fits already: untouched
    assert found.size == (10, 10)
    x = next(data.ResidentSource(found.train, size=found.size).batches(8))[1]
    assert x.shape == (5, 3, 10, 10)


def test_without_a_size_different_images_get_160_px_and_that_is_said(tmp_path):
    files.folder(tmp_path, count=1)
    files.save(tmp_path / "test/ant/tall.png", 1, 40, 20)
    found = load(tmp_path)
    assert found.size == (160, 160)
    assert "short side of 160 px" in found.notes[0]


def test_the_second_time_nothing_is_decoded(tmp_path, decoded, monkeypatch):
    files.folder(tmp_path)
    first = load(tmp_path)
    assert len(decoded) == 24
    monkeypatch.setattr(image_file.Image, "open", None)  # not even a header is read
    second = load(tmp_path)
    assert len(decoded) == 24
    assert torch.equal(first.train.images, second.train.images)
    assert torch.equal(first.train.labels, second.train.labels)


@pytest.mark.parametrize("change", ["content", "time", "added", "removed", "renamed class"])
def test_any_change_of_the_files_makes_the_cache_invalid(tmp_path, decoded, change):
    files.folder(tmp_path)
    load(tmp_path)
    decoded.clear()
    one = tmp_path / "train/bee/1.png"
    if change == "content":
        files.save(one, 999, 8, 8)
    elif change == "time":
        os.utime(one, (1, 1))
    elif change == "added":
        files.save(tmp_path / "train/bee/9.png", 5, 8, 8)
    elif change == "removed":
        one.unlink()
    else:
        for split in ("train", "test"):
            (tmp_path / split / "bee").rename(tmp_path / split / "bug")
    found = load(tmp_path)
    assert decoded
    if change == "content":
        assert np.array_equal(found.train.image(5), files.pixels(999, 8, 8, 3))


@pytest.mark.parametrize("name", ["train-ownpx.bytes", "train-ownpx.json"])
def test_a_damaged_cache_is_made_again(tmp_path, name):
    files.folder(tmp_path)
    first = load(tmp_path)
    kept = first.train.images.clone()
    path = tmp_path / decoding.CACHE_FOLDER / name
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[: len(content) // 2])
    assert torch.equal(load(tmp_path).train.images, kept)


def break_image(path):
    path.write_bytes(path.read_bytes()[:60])


def test_a_corrupt_image_is_named_and_no_cache_is_left(tmp_path):
    files.folder(tmp_path)
    break_image(tmp_path / "train/bee/2.png")
    with pytest.raises(InputError, match=r"train/bee/2\.png.*--skip-corrupt"):
        load(tmp_path)
    assert not [path.name for path in (tmp_path / decoding.CACHE_FOLDER).iterdir() if "size" not in path.name]


def test_corrupt_images_can_be_skipped_and_are_counted(tmp_path):
    made = files.folder(tmp_path)
    break_image(tmp_path / "train/bee/2.png")
    (tmp_path / "train/ant/0.png").write_bytes(b"not an image")
    for _ in range(2):  # decoded, and from the cache
        found = load(tmp_path, skip_corrupt=True)
        assert found.train.class_counts().tolist() == [3, 3, 4]
        assert np.array_equal(found.train.image(5), made["train/bee/3.png"])
        assert found.notes[:-1] == [
            "train: 2 of 12 images cannot be decoded and were left out: train/ant/0.png, train/bee/2.png"
        ]


def test_a_class_whose_images_are_all_corrupt_is_an_empty_class(tmp_path):
    files.folder(tmp_path, count=1)
    break_image(tmp_path / "train/bee/0.png")
    with pytest.raises(InputError, match="'bee'"):
        load(tmp_path, skip_corrupt=True)


def test_an_empty_class_folder_is_named(tmp_path):
    files.folder(tmp_path)
    (tmp_path / "train/dog").mkdir()
    with pytest.raises(InputError, match="train/dog"):
        load(tmp_path)


def test_class_folders_that_differ_are_named(tmp_path):
    files.folder(tmp_path)
    files.save(tmp_path / "train/dog/0.png", 1, 8, 8)
    (tmp_path / "test/cat").rename(tmp_path / "test/cow")
    with pytest.raises(InputError, match=r"train.*cat, dog.*test.*cow"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("made", "said"), [("", "train is not there: a folder of images has"), ("train", "has no folders in it")]
)
def test_another_layout_is_explained(tmp_path, made, said):
    (tmp_path / made).mkdir(exist_ok=True)
    with pytest.raises(InputError, match=said):
        load(tmp_path)


def test_a_folder_of_one_s_own_cannot_be_downloaded(tmp_path):
    with pytest.raises(InputError, match=r"data\.download is for published data sets, got folder"):
        load(tmp_path, download=True)


@pytest.mark.parametrize("locked", ["train/bee", "train"])
def test_a_folder_without_read_permission_is_named(open_folder, locked):
    files.folder(open_folder)
    (open_folder / locked).chmod(0)
    with without_privileges(), pytest.raises(PermissionError) as caught:
        load(open_folder)
    assert locked in str(caught.value)


def test_an_image_without_read_permission_is_named_and_never_skipped(open_folder):
    files.folder(open_folder)
    (open_folder / "train/bee/2.png").chmod(0)
    with without_privileges(), pytest.raises(InputError, match=r"bee/2\.png"):
        load(open_folder, skip_corrupt=True)


def test_data_that_cannot_be_written_beside_is_read_without_a_cache(open_folder):
    made = files.folder(open_folder)
    with without_privileges():
        found = load(open_folder)
    assert "decoded again each time" in found.notes[0]
    assert np.array_equal(found.train.image(5), made["train/bee/1.png"])
    assert not (open_folder / decoding.CACHE_FOLDER).exists()


def test_a_full_disk_leaves_no_half_written_cache(tmp_path):
    files.folder(tmp_path, side=64)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(InputError, match="disk"):
            load(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not [path.name for path in (tmp_path / decoding.CACHE_FOLDER).iterdir() if "size" not in path.name]
    assert len(load(tmp_path).train) == 12


def test_imagenette_keeps_its_sizes_and_gives_160_px_batches(tmp_path):
    files.imagenette(tmp_path)
    found = data.load("imagenette", tmp_path, progress=False)
    assert found.classes == ["tench", "English springer", "cassette player"]
    assert found.train.table[:3, 1:].tolist() == [[160, 160], [160, 167], [200, 160]]
    assert found.test.class_counts().tolist() == [2, 2, 2]
    with Image.open(tmp_path / "imagenette2-160/train/n01440764/n01440764_2.JPEG") as image:
        assert np.array_equal(found.train.image(2), np.array(image))
    source = data.ResidentSource(found.train, size=found.size, augment=found.augment)
    assert next(source.feed(lambda: torch.arange(9), 1))[1].shape == (9, 3, 160, 160)
    _, x, _ = next(source.batches(9))
    centre = found.train.image(2)[20:180].permute(2, 0, 1).float() / 255
    assert torch.equal(x[2], centre)


def test_imagenette_is_also_found_when_its_own_folder_is_given(tmp_path):
    files.imagenette(tmp_path)
    assert len(data.load("imagenette", tmp_path / "imagenette2-160", progress=False).train) == 9


def test_a_missing_imagenette_says_what_is_expected(tmp_path):
    with pytest.raises(InputError, match=r"imagenette2-160/train.*--download"):
        data.load("imagenette", tmp_path)


def test_foreign_folders_in_imagenette_are_refused(tmp_path):
    files.imagenette(tmp_path)
    files.save(tmp_path / "imagenette2-160/train/dogs/a.JPEG", 1, 160, 160)
    with pytest.raises(InputError, match="Imagenette"):
        data.load("imagenette", tmp_path)


def test_tiny_imagenet_is_read_as_published(tmp_path):
    files.tiny_imagenet(tmp_path)
    found = data.load("tiny-imagenet", tmp_path, progress=False)
    assert found.classes == ["tench", "spaniel (n02102040)", "spaniel (n02979186)"]
    assert found.train.images.shape == (9, 64, 64, 3)
    assert found.test.labels.tolist() == [0, 1, 2, 0, 1, 2]
    with Image.open(tmp_path / "tiny-imagenet-200/val/images/val_4.JPEG") as image:
        assert np.array_equal(found.test.image(4), np.array(image))
    assert found.augment.pad == 4


@pytest.mark.parametrize(
    "missing", ["wnids.txt", "words.txt", "val/val_annotations.txt", "train/n02102040/images"]
)
def test_a_missing_part_of_tiny_imagenet_is_named(tmp_path, missing):
    files.tiny_imagenet(tmp_path)
    path = tmp_path / "tiny-imagenet-200" / missing
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(
        InputError, match=f"{missing} is not there.*tiny-imagenet-200.zip|{missing} is not there, but"
    ):
        data.load("tiny-imagenet", tmp_path)


def test_a_tiny_imagenet_class_that_is_not_listed_is_refused(tmp_path):
    files.tiny_imagenet(tmp_path)
    with (tmp_path / "tiny-imagenet-200/val/val_annotations.txt").open("a") as file:
        file.write("val_9.JPEG\tn99999999\t0\t0\t62\t62\n")
    with pytest.raises(InputError, match=r"n99999999.*wnids\.txt"):
        data.load("tiny-imagenet", tmp_path)


def test_the_content_of_a_folder_is_the_same_wherever_it_lies(tmp_path):
    for top in ("here", "there/deeper"):
        files.folder(tmp_path / top)
    before = content.content_of(tmp_path / "here")
    os.utime(tmp_path / "there/deeper/train/ant/0.png", (1, 1))
    (tmp_path / "there/deeper/readme.txt").write_text("no image")
    assert content.content_of(tmp_path / "there/deeper") == before
    content.check_content(tmp_path / "there/deeper", before)


def rename(root):
    os.rename(root / "train/ant/0.png", root / "train/ant/00.png")


def move_to_another_class(root):
    os.rename(root / "test/ant/0.png", root / "test/bee/9.png")


def exchange(root):
    for old, new in (("ant/0", "x"), ("bee/0", "ant/0"), ("x", "bee/0")):
        os.rename(root / f"train/{old}.png", root / f"train/{new}.png")


def change_a_pixel(root):
    with Image.open(root / "test/cat/3.png") as image:
        pixels = np.array(image)
    pixels[0, 0, 0] ^= 1
    Image.fromarray(pixels).save(root / "test/cat/3.png")


@pytest.mark.parametrize("change", [rename, move_to_another_class, exchange, change_a_pixel])
def test_a_folder_with_other_images_is_refused(tmp_path, change):
    files.folder(tmp_path)
    before = content.content_of(tmp_path)
    change(tmp_path)
    with pytest.raises(InputError, match="holds other images than the run is of"):
        content.check_content(tmp_path, before)


@pytest.mark.parametrize(
    "path",
    [
        ".ipynb_checkpoints/0-checkpoint.png",
        "@eaDir/0.png/SYNOPHOTO_THUMB_M.jpg",
        "__MACOSX/._0.png",
        "._0.png",
        "Thumbs.db",
    ],
)
def test_what_systems_keep_beside_images_is_no_image(tmp_path, path):
    files.folder(tmp_path)
    for folder in ("train/ant", "train", "."):
        (tmp_path / folder / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / path).write_bytes((tmp_path / "train/ant/0.png").read_bytes())
    found = load(tmp_path)
    assert found.train.class_counts().tolist() == [4, 4, 4]
    assert len(found.notes) == 1


def test_files_that_are_not_used_are_counted(tmp_path):
    files.folder(tmp_path)
    for path in ("train/ant/x.heic", "train/ant/more/y.npy", "train/loose.png"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(b"")
    found = load(tmp_path)
    assert found.train.class_counts().tolist() == [4, 4, 4]
    assert found.notes[0].startswith("train: 3 files are not used")
    assert found.notes[0].endswith(": train/loose.png, train/ant/more/y.npy, train/ant/x.heic")


def test_a_part_with_another_name_is_said(tmp_path):
    files.folder(tmp_path, ("train", "valid", "Test"))
    assert load(tmp_path).notes[0].startswith("Test, valid: not used")


def test_a_class_with_one_image_has_none_for_the_test(tmp_path):
    files.folder(tmp_path, ("train",))
    for i in (1, 2, 3):
        (tmp_path / f"train/bee/{i}.png").unlink()
    with pytest.raises(InputError, match=r"class 'bee' has 1 image.*test"):
        load(tmp_path)
