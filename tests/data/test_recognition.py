"""A data set that is known by its folder alone: own images and FFCV files are; of a published one the name is
asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cfol_fast import data
from cfol_fast.errors import InputError
from tests.data import published_files as files


def own(root: Path) -> None:
    files.folder(root)


def beton(root: Path) -> None:
    root.mkdir(exist_ok=True)
    (root / "train.beton").touch()


PUBLISHED: dict[str, Callable[[Path, pytest.MonkeyPatch], object]] = {
    "cifar10": files.cifar10,
    "cifar100": files.cifar100,
    "stl10": files.stl10,
    "fashion-mnist": lambda root, _: files.fashion_mnist(root, True),
    "tiny-imagenet": lambda root, _: files.tiny_imagenet(root),
    "imagenette": lambda root, _: files.imagenette(root),
}


def test_own_data_are_known_by_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own(tmp_path / "photos")
    beton(tmp_path / "written")
    assert data.recognised(tmp_path / "photos") == "folder"
    assert data.recognised(f"{tmp_path}/photos/") == "folder"
    assert data.recognised(tmp_path / "written") == "beton"
    monkeypatch.chdir(tmp_path / "photos")
    assert data.recognised(".") == "folder"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data.recognised("~/photos") == "folder"


@pytest.mark.parametrize("name", PUBLISHED)
def test_of_a_published_one_the_name_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    PUBLISHED[name](tmp_path, monkeypatch)
    with pytest.raises(InputError, match=f"--dataset {name}$"):
        data.recognised(tmp_path)
    # Users also give the folder itself.
    for inner in tmp_path.iterdir():
        if inner.is_dir():
            with pytest.raises(InputError, match=f"--dataset {name}$"):
                data.recognised(inner)


@pytest.mark.parametrize(
    "archive",
    ["cifar-10-python.tar.gz", "cifar-100-python.tar.gz", "tiny-imagenet-200.zip", "imagenette2-160.tgz"],
)
def test_an_archive_is_a_published_one_too(tmp_path: Path, archive: str) -> None:
    (tmp_path / archive).touch()
    with pytest.raises(InputError, match=r"--dataset [a-z0-9-]+$"):
        data.recognised(tmp_path)


def test_several_in_one_folder_are_all_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.cifar10(tmp_path, monkeypatch)
    beton(tmp_path)
    with pytest.raises(InputError, match="--dataset cifar10 or --dataset beton"):
        data.recognised(tmp_path)


def test_images_and_the_files_that_were_written_from_them_are_told_apart_by_name(tmp_path: Path) -> None:
    own(tmp_path)
    beton(tmp_path)
    with pytest.raises(InputError, match=r"holds beton and folder: .*--dataset beton or --dataset folder"):
        data.recognised(tmp_path)
    assert [data.recognised(tmp_path, usual=name) for name in ("folder", "beton")] == ["folder", "beton"]
    with pytest.raises(InputError, match="holds beton and folder"):
        data.recognised(tmp_path, usual="cifar10")


def test_what_is_no_data_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "flat" / "cats").mkdir(parents=True)
    files.save(tmp_path / "flat" / "cats" / "one.png", 0, 8, 8)
    for place, said in (("nowhere", "is not there"), ("file", "is a file"), ("flat", "train/<class>/")):
        with pytest.raises(InputError, match=said):
            data.recognised(tmp_path / place)
