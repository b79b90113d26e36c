"""Folders and files that would hang, fill the memory or count images twice: refused, skipped or counted once."""

import hashlib
import io
import os
import zipfile
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from cfol_fast import data
from cfol_fast.data import beton, decoding, folders
from cfol_fast.data.reading import ReadOptions
from cfol_fast.errors import InputError
from tests.data import published_files as files

NOT_UTF8 = os.fsdecode(b"caf\xe9")


def load(root, **options):
    return data.load("folder", root, progress=False, **options)


@pytest.fixture
def root(tmp_path):
    files.folder(tmp_path, ("train",), count=5)
    return tmp_path


@pytest.mark.parametrize("target", [".", "..", "../..", "../bee", "../../train"])
def test_a_link_that_leads_back_or_into_another_class_adds_no_image(root, target):
    (root / "train" / "ant" / "loop").symlink_to(target)
    assert folders.list_classes(root, "train").labels == [0] * 5 + [1] * 5 + [2] * 5


def test_of_two_links_to_one_folder_one_is_followed(root, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    Image.new("RGB", (8, 8)).save(outside / "x.png")
    for name in ("one", "two"):
        (root / "train" / "ant" / name).symlink_to(outside)
    found = folders.list_classes(root, "train")
    assert found.labels.count(0) == 6
    assert "train/ant/one/x.png" in found.paths


def test_a_class_may_be_a_link_but_not_to_another_class(root, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    Image.new("RGB", (8, 8)).save(outside / "x.png")
    (root / "train" / "dog").symlink_to(outside)
    assert folders.list_classes(root, "train").classes == ["ant", "bee", "cat", "dog"]
    (root / "train" / "eel").symlink_to("ant")
    with pytest.raises(InputError, match=r"eel is the same folder as .*ant"):
        folders.list_classes(root, "train")


def test_a_linked_image_counts_where_it_is_linked(root):
    # Links to files are how subsets and repetitions of a data set are made: they are meant.
    (root / "train" / "ant" / "again.png").symlink_to("0.png")
    os.link(root / "train" / "ant" / "1.png", root / "train" / "ant" / "hard.png")
    assert folders.list_classes(root, "train").labels.count(0) == 7


@pytest.mark.parametrize("kind", ["pipe", "device link", "link to nothing", "link to itself"])
def test_what_is_not_a_file_is_not_read(root, kind):
    path = root / "train" / "ant" / "9.png"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        targets = {"device link": "/dev/null", "link to nothing": "nowhere.png", "link to itself": "9.png"}
        path.symlink_to(targets[kind])
    with pytest.raises(InputError, match=r"9\.png"):
        load(root)
    assert "1 of 16 images cannot be decoded" in load(root, skip_corrupt=True).notes[0]


@pytest.mark.parametrize("shape", [(1, 60000), (60000, 1), (9000, 9000)])
def test_an_image_that_would_fill_the_memory_is_named(root, shape):
    Image.new("1", shape).save(root / "train" / "ant" / "wide.png")
    with pytest.raises(InputError, match=r"wide\.png cannot be decoded .* at most 67,108,864"):
        load(root, size=160)


def test_a_header_that_claims_a_billion_pixels_is_refused_before_anything_is_decoded(tmp_path):
    stream = io.BytesIO()
    Image.new("1", (8, 8)).save(stream, "PNG")
    header = bytearray(stream.getvalue())
    header[16:24] = (60000).to_bytes(4, "big") * 2
    header[29:33] = zlib.crc32(header[12:29]).to_bytes(4, "big")
    path = tmp_path / "bomb.png"
    path.write_bytes(header)
    with pytest.raises(decoding.UNREADABLE):
        decoding.read_image(path, None, lambda: 65535)


def test_images_with_names_that_are_not_utf_8_are_read(root):
    Image.new("RGB", (8, 8)).save(root / "train" / "ant" / f"{NOT_UTF8}.png")
    assert load(root).train.class_counts().tolist() == [5, 4, 4]


def test_a_class_with_a_name_that_is_not_utf_8_is_refused(root):
    (root / "train" / NOT_UTF8).mkdir()
    with pytest.raises(InputError, match=r"b'caf\\xe9' is not UTF-8: rename it"):
        load(root)


@pytest.mark.parametrize("change", [b"[" * 5000, b"null", b'{"format": 1, "count": 1e400}'])
def test_a_cache_that_somebody_edited_is_made_again(root, change):
    wanted = load(root).train.images.clone()
    for file in (root / decoding.CACHE_FOLDER).glob("*.json"):
        file.write_bytes(change)
    assert torch.equal(load(root).train.images, wanted)


def test_tiny_imagenet_comes_over_https_and_is_unpacked_only_with_its_digest(tmp_path, monkeypatch):
    assert folders.TINY_URL.startswith("https://")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("tiny-imagenet-200/wnids.txt", "n01\n")

    def fetch(url, folder, name):
        assert url == folders.TINY_URL
        with open(os.path.join(folder, name), "wb") as out:
            out.write(archive.getvalue())

    monkeypatch.setattr("torchvision.datasets.utils.download_url", fetch)
    with pytest.raises(InputError, match="has the SHA-256"):
        folders.tiny_imagenet(tmp_path, ReadOptions(download=True))
    assert not (tmp_path / "tiny-imagenet-200").exists()
    monkeypatch.setattr(folders, "TINY_SHA256", hashlib.sha256(archive.getvalue()).hexdigest())
    with pytest.raises(InputError, match=r"words\.txt is not there"):
        folders.tiny_imagenet(tmp_path, ReadOptions(download=True))
    assert (tmp_path / "tiny-imagenet-200" / "wnids.txt").exists()


@pytest.mark.ffcv
class TestBeton:
    """A changed entry in the list of samples of an FFCV file."""

    @pytest.fixture
    def file(self, tmp_path):
        images = data.ImageSet(
            torch.from_numpy(files.pixels(3, 12, 8, 8, 3)), torch.arange(12) % 3, ["ant", "bee", "cat"]
        )
        beton.write(tmp_path / "a.beton", images, mode="jpg")
        return tmp_path / "a.beton"

    def change(self, file, named: bool = True, **values):
        """Sets label, height or width of the first sample; named=False also takes the class names away."""
        from ffcv.fields import IntField, RGBImageField
        from ffcv.types import FieldDescType, HeaderType, get_metadata_type

        content = np.fromfile(file, np.uint8)
        start = HeaderType.itemsize + 2 * FieldDescType.itemsize
        kind = get_metadata_type([RGBImageField(), IntField()])
        samples = content[start : start + 12 * kind.itemsize].view(kind)
        for name, value in values.items():
            if name == "label":
                samples["f1"][0] = value
            else:
                samples["f0"][name][0] = value
        if not named:
            described = content[HeaderType.itemsize : start].view(FieldDescType)
            described["arguments"][1] = 0
        content.tofile(file)

    @pytest.mark.parametrize("named", [True, False])
    @pytest.mark.parametrize("label", [2**40, 2**62, -1, 12])
    def test_a_label_that_no_image_can_have_is_refused(self, file, label, named):
        self.change(file, named, label=label)
        with pytest.raises(InputError, match="labels"):
            beton.open_beton(file)

    @pytest.mark.parametrize("size", [{"height": 65535, "width": 65535}, {"height": 8000, "width": 8000}])
    def test_a_size_that_its_bytes_cannot_hold_is_refused(self, file, size):
        self.change(file, **size)
        with pytest.raises(InputError, match="the pixels of image 0"):
            beton.open_beton(file)
