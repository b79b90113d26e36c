"""Folders and files that would hang, fill the memory or count images twice: refused, skipped or
counted once.
"""

import hashlib
import io
import os
import re
import shutil
import unicodedata
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cfol_fast import data
from cfol_fast.data import decoding, folders, image_file
from cfol_fast.data.content import content_of
from cfol_fast.data.ffcv import reader, writer
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


@pytest.mark.parametrize("target", [".", "..", "../..", "../../..", "../bee", "../../train"])
def test_a_link_that_leads_back_or_into_another_class_adds_no_image(root, target):
    files.folder(root, ("test", "spare"), count=3)
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
    with pytest.raises(ValueError, match="too many pixels, at most 67,108,864 are decoded"):
        image_file.read_image(path, None, lambda: 65535)


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
        writer.write(tmp_path / "a.beton", images, mode="jpg")
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
            reader.open_beton(file)

    @pytest.mark.parametrize("size", [{"height": 65535, "width": 65535}, {"height": 8000, "width": 8000}])
    def test_a_size_that_its_bytes_cannot_hold_is_refused(self, file, size):
        self.change(file, **size)
        with pytest.raises(InputError, match="the pixels of image 0"):
            reader.open_beton(file)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
# What Pillow opens by the content, whatever the name says: with a program, a parser of its own, or a library
# that nobody asked for.
FOREIGN = {
    "EPS": EPS,
    "EPS with a preview": (
        b"\xc5\xd0\xd3\xc6" + (32).to_bytes(4, "little") + len(EPS).to_bytes(4, "little") + bytes(20) + EPS
    ),
    "WMF": bytes.fromhex("d7cdc69a000000000000080008006000000000000000") + bytes(60),
    "EMF": b"\x01\0\0\0" + bytes(36) + b" EMF" + bytes(80),
    "PDF": b"%PDF-1.4\n%%EOF\n",
    "SVG": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "HTML": b"<html>Not found</html>",
}


@pytest.mark.parametrize("ending", ["png", "jpg", "tiff", "gif", "bmp", "ppm", "webp"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_no_program_is_started_for_an_image(root, tmp_path_factory, monkeypatch, kind, ending):
    programs = tmp_path_factory.mktemp("programs")
    started = programs / "started"
    for name in ("gs", "gswin64c", "xv", "display", "djpeg"):
        (programs / name).write_text(f"#!/bin/sh\ntouch {started}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    from PIL import EpsImagePlugin

    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    (root / "train" / "ant" / f"9.{ending}").write_bytes(FOREIGN[kind])
    with pytest.raises(
        InputError, match=rf"9\.{ending} cannot be decoded \(its content is none of JPEG, PNG"
    ):
        load(root)
    assert "1 of 16 images cannot be decoded" in load(root, skip_corrupt=True).notes[0]
    assert not started.exists()


def test_other_names_are_no_images(root):
    for ending in ("eps", "ps", "wmf", "emf", "pdf", "ico", "svg", "avif"):
        (root / "train" / "ant" / f"9.{ending}").write_bytes(EPS)
    assert load(root).train.class_counts().tolist() == [4, 4, 4]


def test_pillow_opens_no_file_without_a_list_of_formats():
    package = Path(data.__file__).parents[1]
    opening = re.compile(
        r"\bImage\.open\(|\bpil_loader\b|\bdefault_loader\b|\bdecode_image\(|\bread_image\(\s*str"
    )
    found = [
        f"{path.name}: {line.strip()}"
        for path in package.rglob("*.py")
        for line in path.read_text().splitlines()
        if opening.search(line) and "formats=" not in line
    ]
    assert found == []


def animation(kind: str) -> bytes:
    stream = io.BytesIO()
    pictures = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    options = {"save_all": True, "append_images": pictures[1:]}
    pictures[0].save(stream, kind, **options, **({"lossless": True} if kind == "WEBP" else {}))
    return stream.getvalue()


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_of_several_pictures_the_first_is_taken_and_that_is_said(root, kind):
    (root / "train" / "ant" / f"9.{kind.lower()}").write_bytes(animation(kind))
    for _ in range(2):  # decoded, and from the cache
        found = load(root)
        said = [note for note in found.notes if "several pictures" in note]
        assert said == [
            "train: 1 of 16 files hold several pictures, of which the first was taken:"
            f" train/ant/9.{kind.lower()}"
        ]
    whole = image_file.read_image(root / "train" / "ant" / f"9.{kind.lower()}", None, lambda: 255)
    assert (whole == [255, 0, 0]).all()


@pytest.mark.parametrize(
    "content", [b"", b"\0", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF\0\0\0\0WEBP"]
)
def test_a_file_without_an_image_is_one_sentence(root, content):
    (root / "train" / "ant" / "9.png").write_bytes(content)
    with pytest.raises(InputError, match=r"9\.png cannot be decoded \(") as caught:
        load(root)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM"])
def test_a_truncated_file_is_named_whatever_its_format(root, kind):
    stream = io.BytesIO()
    Image.fromarray(files.pixels(1, 8, 8, 3)).save(stream, kind)
    content = stream.getvalue()
    path = root / "train" / "ant" / "9.png"
    for length in range(0, len(content) * 3 // 4, 7):
        path.write_bytes(content[:length])
        with pytest.raises(image_file.UNREADABLE):
            image_file.read_image(path, None, lambda: 255)


def test_names_with_newlines_and_escapes_stay_on_one_line(root):
    name = "a\nb\x1b[31m.png"
    (root / "train" / "ant" / name).write_bytes(b"no image")
    with pytest.raises(InputError) as caught:
        load(root)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    (note,) = [note for note in load(root, skip_corrupt=True).notes if "left out" in note]
    assert "\n" not in note
    assert "\x1b" not in note


def test_a_folder_named_like_an_image_is_no_image(root):
    (root / "train" / "ant" / "9.png").mkdir()
    assert load(root).train.class_counts().tolist() == [4, 4, 4]


def test_parts_of_different_sizes_are_refused_with_both(tmp_path):
    files.folder(tmp_path, ("train",), side=8)
    files.folder(tmp_path, ("test",), side=10)
    with pytest.raises(InputError, match=r"images of 8x8 in train/ and 10x10 in test/.*data\.size=8"):
        load(tmp_path)
    assert load(tmp_path, size=8).size == (8, 8)


@pytest.mark.parametrize("name", ["a\nb", "a\tb", "\x1b[31mred", "line\u2028break"])
def test_a_class_that_no_table_could_show_is_refused(root, name):
    (root / "train" / name).mkdir()
    with pytest.raises(InputError, match="control character: rename it") as caught:
        load(root)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["two words", "Ümläut", "犬", "a,b;c", "-x", "100%", "a\u3000b"])
def test_other_names_of_classes_are_taken_as_they_are(root, name):
    files.save(root / "train" / name / "0.png", 1, 8, 8)
    files.save(root / "train" / name / "1.png", 2, 8, 8)
    assert name in load(root).classes


ACCENTS = {form: unicodedata.normalize(form, "caf\u00e9") for form in ("NFC", "NFD")}


@pytest.mark.parametrize("names", [tuple(ACCENTS.values()), ("dog", "dog "), ("hot dog", "hot  dog")])
def test_two_classes_that_are_written_alike_are_refused(root, names):
    for name in names:
        shutil.copytree(root / "train" / "ant", root / "train" / name)
    with pytest.raises(InputError, match="are written alike"):
        folders.list_classes(root, "train")


def test_parts_that_write_an_accent_in_two_forms_are_told_so(root):
    shutil.copytree(root / "train", root / "test")
    for part, name in zip(("train", "test"), ACCENTS.values(), strict=True):
        os.rename(root / part / "ant", root / part / name)
    with pytest.raises(InputError, match="differ in the form of their accents alone"):
        load(root)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_the_digest_of_a_folder_waits_for_no_pipe(root, kind):
    path = root / "train" / "ant" / "9.png"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(InputError, match=r"9\.png cannot be read \(it is not a file\)"):
        content_of(root)


@pytest.mark.filterwarnings("error")
def test_a_palette_with_transparency_is_read_without_a_warning(tmp_path):
    image = Image.fromarray(files.pixels(1, 8, 8, 3)).convert("P")
    image.save(tmp_path / "x.png", transparency=bytes(range(256)))
    found = image_file.read_image(tmp_path / "x.png", None, lambda: 255)
    assert np.array_equal(found, np.array(image.convert("RGB")))
