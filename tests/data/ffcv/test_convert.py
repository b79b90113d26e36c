"""Folders of image files become FFCV files one image at a time."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cfol_fast import data
from cfol_fast.commands import main as cli
from cfol_fast.data import image_file, image_sizes, registry
from cfol_fast.data.ffcv.convert import Converter, FromFiles
from cfol_fast.data.ffcv.format import JPG, RAW
from cfol_fast.data.ffcv.reader import open_beton
from cfol_fast.data.folders import list_classes
from cfol_fast.data.reading import ReadOptions
from cfol_fast.errors import InputError

pytestmark = pytest.mark.ffcv


def ramp(height: int, width: int, shade: int = 0) -> np.ndarray:
    """A picture that survives JPEG nearly unchanged, and looks different from each side."""
    rows, columns = np.mgrid[0:height, 0:width]
    return np.stack([rows * 120 // height + shade, columns * 120 // width + 60, rows * 0 + 90], 2).astype(
        np.uint8
    )


def save(path: Path, pixels: np.ndarray, kind: str = "JPEG", **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, kind, **options)


def lying_on_its_side() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of JPEG files of one size: 6 for training, 2 for the test."""
    root = tmp_path / "photos"
    for c, name in enumerate(("ant", "bee")):
        for i in range(3):
            save(root / "train" / name / f"{i}.jpg", ramp(40, 40, 30 * c + 10 * i), quality=95)
        save(root / "test" / name / "0.jpg", ramp(40, 40, 50 * c), quality=95)
    return root


def convert(root: Path, out: Path, *options: str) -> int:
    arguments = ["data", "to-ffcv", "--dataset", "folder", "--data", str(root), "--split", "all"]
    return cli.main([*arguments, "--out", str(out), *options])


def stored(path: Path, row: int) -> bytes:
    file = open_beton(path)
    return path.read_bytes()[int(file.pointers[row]) :][: int(file.lengths[row])]


def test_jpeg_files_are_copied_byte_by_byte_and_nothing_is_written_beside_them(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(photos.rglob("*"))
    assert convert(photos, tmp_path / "out") == 0
    printed = capsys.readouterr()
    assert "train: 6 stored as they are" in printed.out
    assert "test: 2 stored as they are" in printed.out
    assert "writing train: 6 of 6" in printed.err
    paths = sorted((photos / "train").rglob("*.jpg"))
    for row, path in enumerate(paths):
        assert stored(tmp_path / "out/train.beton", row) == path.read_bytes()
    assert sorted(photos.rglob("*")) == before


def test_the_files_are_the_data_set_that_the_folder_is(photos: Path, tmp_path: Path) -> None:
    assert convert(photos, tmp_path / "out", "--mode", "raw") == 0
    found, whole = data.load("beton", tmp_path / "out"), data.load("folder", photos, progress=False)
    assert (found.mean, found.std, found.augment) == (whole.mean, whole.std, whole.augment)
    assert (found.size, found.classes) == (whole.size, whole.classes)
    for mine, theirs in ((found.train, whole.train), (found.test, whole.test)):
        assert torch.equal(mine.labels, theirs.labels)
        for i in range(len(theirs)):
            assert torch.equal(mine.image(i), theirs.image(i))


def test_a_folder_without_a_test_part_is_divided_as_in_memory(photos: Path, tmp_path: Path) -> None:
    shutil.rmtree(photos / "test")
    assert convert(photos, tmp_path / "out", "--mode", "raw", "--imbalance", "2") == 0
    found = data.load("beton", tmp_path / "out")
    whole = data.load("folder", photos, imbalance=2, progress=False)
    assert len(found.test) == 2
    for mine, theirs in ((found.train, whole.train), (found.test, whole.test)):
        assert torch.equal(mine.labels, theirs.labels)
        assert all(torch.equal(mine.image(i), theirs.image(i)) for i in range(len(theirs)))


def test_images_of_different_sizes_get_a_short_side_of_160_px(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(photos / "train/ant/large.jpg", ramp(200, 320))
    save(photos / "train/bee/fits.jpg", ramp(160, 200))
    assert convert(photos, tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert "images of different sizes: stored with a short side of 160 px" in printed
    assert "train: 7 resized or from another format; 1 stored as they are" in printed
    file = open_beton(tmp_path / "out/train.beton")
    assert sorted(zip(file.heights.tolist(), file.widths.tolist(), strict=True))[-2:] == [
        (160, 200),
        (160, 256),
    ]
    assert file.description["size"] == [160, 160]


def test_a_smaller_quality_makes_smaller_files(photos: Path, tmp_path: Path) -> None:
    sizes = []
    for quality in ("20", "95"):
        assert convert(photos, tmp_path / quality, "--size", "32", "--quality", quality) == 0
        sizes.append(open_beton(tmp_path / quality / "train.beton").lengths.sum())
    assert sizes[0] < sizes[1]


def test_cmyk_turned_and_misnamed_files_are_encoded_anew_and_counted(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.fromarray(ramp(40, 40)).convert("CMYK").save(photos / "train/ant/cmyk.jpg")
    save(photos / "train/ant/turned.jpg", ramp(40, 40), exif=lying_on_its_side(), quality=95)
    save(photos / "train/bee/png.jpeg", ramp(40, 40), "PNG")
    save(photos / "train/bee/real.png", ramp(40, 40), "PNG")
    assert convert(photos, tmp_path / "out") == 0
    printed = capsys.readouterr().out
    for said in (
        "6 stored as they are",
        "1 re-encoded from CMYK",
        "1 re-encoded upright",
        "1 re-encoded, as they are no JPEG files",
        "1 resized or from another format",
    ):
        assert said in printed
    images = data.load("beton", tmp_path / "out").train
    upright = torch.from_numpy(np.rot90(ramp(40, 40), -1).copy())
    # In the order of their names: 0, 1, 2, cmyk, turned.
    assert (images.image(4).int() - upright.int()).abs().max() <= 12
    # And by FFCV's decoder.
    for _, x, _ in data.FFCVSource(tmp_path / "out/train.beton", workers=1).batches(10):
        assert (x[4] * 255 - upright.permute(2, 0, 1)).abs().max() <= 12


def test_a_turned_image_is_upright_in_memory_too(photos: Path) -> None:
    save(photos / "train/ant/turned.png", ramp(30, 50), "PNG", exif=lying_on_its_side())
    pixels = image_file.read_image(photos / "train/ant/turned.png", None, lambda: 65535)
    assert np.array_equal(pixels, np.rot90(ramp(30, 50), -1))


def test_images_that_are_turned_have_the_size_that_is_seen(photos: Path) -> None:
    shutil.rmtree(photos / "train")
    save(photos / "train/ant/turned.jpg", ramp(30, 50), exif=lying_on_its_side())
    save(photos / "train/bee/upright.jpg", ramp(50, 30))
    assert image_sizes.size_in_headers(list_classes(photos, "train")) == (50, 30)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_data_says_nothing(photos: Path) -> None:
    save(photos / "train/ant/odd.jpg", ramp(30, 50), exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert image_file.read_image(photos / "train/ant/odd.jpg", None, lambda: 65535).shape == (30, 50, 3)


def test_what_only_ffcvs_decoder_refuses_is_encoded_anew(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = photos / "train/ant/0.jpg"
    whole = path.read_bytes()
    # Bytes before a marker that do not belong there: Pillow passes over them.
    tables = whole.index(b"\xff\xdb")
    path.write_bytes(whole[:tables] + b"\x11\x22" + whole[tables:])
    assert convert(photos, tmp_path / "out") == 0
    assert "1 re-encoded, as FFCV's decoder refuses them" in capsys.readouterr().out
    ((_, x, _),) = data.FFCVSource(tmp_path / "out/train.beton", workers=1).batches(10)
    assert len(x) == 6


def test_a_truncated_file_is_named_or_left_out(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = photos / "train/bee/1.jpg"
    path.write_bytes(path.read_bytes()[:300])
    assert convert(photos, tmp_path / "out") == 2
    assert "train/bee/1.jpg cannot be decoded" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert convert(photos, tmp_path / "out", "--skip-corrupt") == 0
    assert "1 of 6 images cannot be decoded and were left out: train/bee/1.jpg" in capsys.readouterr().out
    assert open_beton(tmp_path / "out/train.beton").labels.tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("with_test_part", [True, False])
def test_what_is_left_out_does_not_change_who_is_drawn(
    with_test_part: bool, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in range(3, 9):
        save(photos / f"train/ant/{i}.jpg", ramp(40, 40, 10 * i), quality=95)
        save(photos / f"train/bee/{i}.jpg", ramp(40, 40, 12 * i), quality=95)
    (photos / "train/bee/1.jpg").write_bytes(b"no image")
    if not with_test_part:
        shutil.rmtree(photos / "test")
    assert convert(photos, tmp_path / "out", "--mode=raw", "--imbalance=2", "--skip-corrupt") == 0
    assert (
        capsys.readouterr().out.count("1 of 18 images cannot be decoded and were left out: train/bee/1.jpg")
        == 1
    )
    found = data.load("beton", tmp_path / "out")
    whole = data.load("folder", photos, imbalance=2, skip_corrupt=True, progress=False)
    for part in ("train", "test"):
        ours, theirs = getattr(found, part), getattr(whole, part)
        assert torch.equal(ours.labels, theirs.labels)
        assert all(torch.equal(ours.image(i), theirs.image(i)) for i in range(len(ours)))


def test_grey_files_and_raw_pixels_have_three_channels(photos: Path, tmp_path: Path) -> None:
    save(photos / "train/ant/grey.jpg", ramp(40, 40)[..., 0])
    for mode, number in (("jpg", JPG), ("raw", RAW)):
        assert convert(photos, tmp_path / mode, "--mode", mode) == 0
        file = open_beton(tmp_path / mode / "train.beton")
        assert (file.modes == number).all()
        ((_, x, _),) = data.FFCVSource(file, workers=1).batches(10)
        grey = x[3]
        assert torch.equal(grey[0], grey[2])


def test_each_folder_is_listed_once(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walk, walked = os.walk, []
    monkeypatch.setattr(os, "walk", lambda top, *a, **o: walked.append(str(top)) or walk(top, *a, **o))
    assert convert(photos, tmp_path / "out") == 0
    assert sorted(walked) == sorted(
        str(photos / part / c) for part in ("train", "test") for c in ("ant", "bee")
    )


def test_the_sizes_are_compared_up_to_the_first_that_differs(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    save(photos / "train/ant/00.jpg", ramp(50, 60))
    for i in range(40):
        shutil.copy(photos / "train/bee/0.jpg", photos / f"train/bee/more{i}.jpg")
    opened: list[Path] = []
    open_image = image_sizes.open_image
    monkeypatch.setattr(image_sizes, "open_image", lambda path: opened.append(path) or open_image(path))
    spec = registry.spec("folder")
    assert FromFiles(spec, photos, ReadOptions(), "jpg", 90).size == image_sizes.MIXED_SIZE
    # One that differs, and what was waiting already; the test part has two.
    assert len(opened) <= 12


def test_too_small_a_disk_is_refused_before_anything_is_written(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    assert convert(photos, tmp_path / "out", "--mode", "raw") == 2
    said = capsys.readouterr().err
    assert "8 images need about 0.0 MiB in" in said
    assert "choose another --out, a smaller --size, or --mode jpg" in said
    assert not (tmp_path / "out").exists()


def test_an_image_with_a_side_that_ffcv_cannot_store_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "a.png", np.zeros((1, 70_000, 3), np.uint8), "PNG")
    with pytest.raises(ValueError, match="FFCV stores at most 65,535"):
        Converter(tmp_path, None, "raw", 90, lambda: 65535)("a.png")


def test_a_size_belongs_to_a_folder_of_ones_own() -> None:
    with pytest.raises(InputError, match="only `folder` can be resized"):
        registry.check_size(registry.spec("imagenette"), 64)


@pytest.mark.slow
def test_a_killed_conversion_leaves_nothing_behind(photos: Path, tmp_path: Path) -> None:
    code = f"""
import os, signal
from cfol_fast.commands import main
from cfol_fast.data.ffcv import writer
writer.check_written = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
main.main(["data", "to-ffcv", "--dataset", "folder", "--data", {str(photos)!r}, "--split", "all",
           "--out", {str(tmp_path / "out")!r}])
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=600, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    # A file system without unnamed files keeps it until the next conversion comes.
    assert convert(photos, tmp_path / "out") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "photos"]


def test_the_pixels_of_a_copied_file_are_those_that_ffcv_decodes(photos: Path) -> None:
    image = Converter(photos, None, "jpg", 90, lambda: 65535)("train/ant/0.jpg", measured=True)
    assert image.sums is not None
    assert image.sums.count == 1600
    with Image.open(io.BytesIO(image.stored.data)) as picture:
        assert abs(image.sums.sums / 1600 - np.array(picture).reshape(-1, 3).mean(0)).max() < 2
