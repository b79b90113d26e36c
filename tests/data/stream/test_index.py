"""The kept list of files: used again where nothing changed, made anew where anything did."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cfol_fast.data import decoding, folders
from cfol_fast.data.folders import list_classes
from cfol_fast.data.stream import index as index_module
from cfol_fast.data.stream.index import Index, index_of, kept_index
from tests.data.stream.image_folders import write


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(index_module, "KEPT_FROM", 1)
    return write(tmp_path / "photos", test=False)


@pytest.fixture
def listed(root: Path) -> Callable[[], Index]:
    """The index by way of the cache."""
    cache = root / "cache"
    cache.mkdir()
    return lambda: kept_index(root, "train", cache, list_classes)


def settle() -> None:
    """Longer than the tick within which two changes may have the same time."""
    time.sleep(2 * index_module.TICK / 1e9)


def walked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    walk, seen = os.walk, []
    monkeypatch.setattr(os, "walk", lambda top, *a, **o: seen.append(str(top)) or walk(top, *a, **o))
    return seen


def equal(index: Index, other: Index) -> bool:
    return index.digest == other.digest and index.listing.ignored == other.listing.ignored


def test_the_list_is_kept_and_is_the_one_that_looking_gives(root, listed, monkeypatch):
    settle()
    first = listed()
    seen = walked(monkeypatch)
    again = listed()
    assert seen == []
    assert equal(first, again)
    assert again.listing.paths == list_classes(root, "train").paths
    assert again.listing.sizes.tolist() == [(root / path).stat().st_size for path in again.listing.paths]


def add(root: Path) -> None:
    shutil.copy(root / "train/ant/0.jpg", root / "train/ant/new.jpg")


def rename(root: Path) -> None:
    (root / "train/bee/0.jpg").rename(root / "train/bee/z.jpg")


def remove(root: Path) -> None:
    (root / "train/bee/0.jpg").unlink()


def move_to_another_class(root: Path) -> None:
    (root / "train/bee/0.jpg").rename(root / "train/ant/z.jpg")


def add_a_class(root: Path) -> None:
    shutil.copytree(root / "train/ant", root / "train/cow")


def put_below(root: Path) -> None:
    (root / "train/ant/more").mkdir()
    shutil.copy(root / "train/ant/0.jpg", root / "train/ant/more/0.jpg")


@pytest.mark.parametrize("change", [add, rename, remove, move_to_another_class, add_a_class, put_below])
def test_a_changed_folder_is_listed_anew(root, listed, change):
    settle()
    before = listed()
    change(root)
    now = listed()
    assert now.digest != before.digest
    assert now.listing.paths == list_classes(root, "train").paths


def test_a_change_right_after_the_list_was_made_is_noticed(root, listed):
    """Within the clock's tick a second change may leave a folder with the same time."""
    listed()
    assert not (root / "cache/train-files.npz").exists()


def test_a_damaged_list_is_made_anew(root, listed):
    settle()
    first = listed()
    kept = root / "cache/train-files.npz"
    whole = kept.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], whole[:-5000] + bytes(5000), b"PK" + bytes(1000)):
        kept.write_bytes(damaged)
        assert equal(listed(), first)


def test_the_list_of_another_folder_is_not_used(root, listed, tmp_path):
    settle()
    listed()
    write(tmp_path / "others", per_class=3, test=False)
    (tmp_path / "others/cache").mkdir()
    shutil.copy(root / "cache/train-files.npz", tmp_path / "others/cache")
    other = kept_index(tmp_path / "others", "train", tmp_path / "others/cache", list_classes)
    assert len(other) == 6


def test_small_folders_are_listed_each_time(root, listed, monkeypatch):
    monkeypatch.setattr(index_module, "KEPT_FROM", 1000)
    settle()
    listed()
    assert not (root / "cache/train-files.npz").exists()


def rewritten(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"0")


def replaced(path: Path) -> None:
    """With the same size and time, as `cp -p` and `mv` do it."""
    status = path.stat()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [rewritten, longer, replaced, Path.unlink])
def test_a_file_that_is_not_the_listed_one_is_noticed_when_it_is_read(root, listed, change):
    settle()
    listed()
    index = listed()
    row = index.listing.paths.index("train/bee/0.jpg")
    assert bytes(index.read(row)) == (root / "train/bee/0.jpg").read_bytes()
    change(root / "train/bee/0.jpg")
    with pytest.raises(OSError, match=r"changed since the files were listed|No such file"):
        index.read(row)
    assert change is Path.unlink or index.digest != listed().digest


def test_pipes_and_empty_files_are_no_images(root):
    os.mkfifo(root / "train/ant/pipe.jpg")
    (root / "train/ant/empty.jpg").touch()
    index = index_of(list_classes(root, "train"))
    with pytest.raises(OSError, match="it is not a file"):
        index.read(index.listing.paths.index("train/ant/pipe.jpg"))
    with pytest.raises(OSError, match="empty"):
        index.read(index.listing.paths.index("train/ant/empty.jpg"))


def test_what_was_computed_is_remembered_for_the_same_files_and_arguments(root, listed):
    calls = []

    def compute() -> np.ndarray:
        calls.append(1)
        return np.array([len(calls)])

    index = listed()
    assert [int(index.remembered("x", compute, key)[0]) for key in (1, 1, 2, 2)] == [1, 1, 2, 2]
    add(root)
    assert int(listed().remembered("x", compute, 2)[0]) == 3


def test_a_listing_by_way_of_the_list_gives_the_same_data_set(root, monkeypatch):
    assert decoding.cache_folder(root, "off") is None
    kept = kept_index(root, "train", None, list_classes)
    assert kept.listing.paths == folders.list_classes(root, "train").paths
