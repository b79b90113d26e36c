"""The cache of decoded images: never the pixels of other files, another decoder or another run; elsewhere or
off where that is asked for.
"""

import os
import shutil
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from cfol_fast import data
from cfol_fast.data import decoding, file_states
from cfol_fast.data.listing import Listing
from cfol_fast.errors import InputError
from tests.data import published_files as files
from tests.data.conftest import without_privileges


def load(root, **options):
    return data.load("folder", root, progress=False, **options)


@pytest.fixture
def root(tmp_path):
    """BMP files: all of one size in bytes, and of one time."""
    for split in ("train", "test"):
        for c, name in enumerate(("ant", "bee")):
            for i in range(3):
                path = tmp_path / "data" / split / name / f"{i}.bmp"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(files.pixels(10 * c + i, 8, 8, 3)).save(path)
                os.utime(path, (10**9, 10**9))
    return tmp_path / "data"


def fresh(root):
    """What somebody without a cache reads."""
    found = load(root, cache="off")
    return [torch.stack([part.image(i) for i in range(len(part))]) for part in (found.train, found.test)]


def exchange(root):
    one, two = root / "train/ant/0.bmp", root / "train/bee/0.bmp"
    for old, new in ((one, "x"), (two, one), (root / "x", two)):
        os.rename(old, root / new)


def rewrite_in_place(root):
    path = root / "train/ant/0.bmp"
    content = (root / "train/bee/1.bmp").read_bytes()
    with open(path, "r+b") as file:
        file.write(content)
    os.utime(path, (10**9, 10**9))


def copy_with_times(root):
    shutil.copy2(root / "train/bee/1.bmp", root / "new")
    os.replace(root / "new", root / "train/ant/0.bmp")


def unpack_again(root):
    content = (root / "train/bee/1.bmp").read_bytes()
    (root / "train/ant/0.bmp").unlink()
    (root / "train/ant/0.bmp").write_bytes(content)
    os.utime(root / "train/ant/0.bmp", (10**9, 10**9))


def link_elsewhere(root):
    (root / "train/ant/0.bmp").unlink()
    (root / "train/ant/0.bmp").symlink_to("../bee/2.bmp")


def hard_link(root):
    (root / "train/ant/0.bmp").unlink()
    os.link(root / "train/bee/2.bmp", root / "train/ant/0.bmp")


def exchange_folders(root):
    for old, new in (("ant", "x"), ("bee", "ant"), ("x", "bee")):
        os.rename(root / "train" / old, root / "train" / new)


CHANGES = [
    exchange,
    rewrite_in_place,
    copy_with_times,
    unpack_again,
    link_elsewhere,
    hard_link,
    exchange_folders,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_keeps_names_sizes_and_times_is_seen(root, change, monkeypatch):
    # Of more than 64 files most are not looked into.
    monkeypatch.setattr(file_states, "BYTES_LOOKED_AT", 0)
    before = load(root).train.images.clone()
    change(root)
    found = load(root)
    train, test = fresh(root)
    assert torch.equal(found.train.images, train)
    assert torch.equal(found.test.images, test)
    assert not torch.equal(train, before)


def test_a_link_whose_target_changed_is_seen(root, monkeypatch):
    monkeypatch.setattr(file_states, "BYTES_LOOKED_AT", 0)
    (root / "aside").mkdir()
    for i in (0, 1):
        shutil.move(root / f"train/ant/{i}.bmp", root / f"aside/{i}.bmp")
        (root / f"train/ant/{i}.bmp").symlink_to(root / f"aside/{i}.bmp")
    load(root)
    os.replace(root / "aside/0.bmp", root / "aside/x")
    os.replace(root / "aside/1.bmp", root / "aside/0.bmp")
    os.replace(root / "aside/x", root / "aside/1.bmp")
    assert torch.equal(load(root).train.images, fresh(root)[0])


def test_a_file_that_changes_twice_within_a_tick_of_the_clock_is_seen(root, monkeypatch):
    # A file system whose clock stands still.
    real = os.stat
    now = file_states.time.time_ns()

    def frozen(path, **options):
        status = real(path, **options)
        return os.stat_result(status, {"st_mtime_ns": now, "st_ctime_ns": now, "st_atime_ns": now})

    slept = []
    monkeypatch.setattr(file_states.time, "time_ns", lambda: now + 1)
    monkeypatch.setattr(file_states.time, "sleep", slept.append)
    monkeypatch.setattr(file_states.os, "stat", frozen)
    listed = Listing(root, "train", ["train/ant/0.bmp"], [0], ["ant"])
    file_states.fingerprint_of(listed, None, False)
    assert slept == [file_states.TICK / 1e9]


def test_an_image_of_a_disk_with_the_times_of_another_is_seen(root, monkeypatch):
    # A mounted image has the inodes and times of its making: only the bytes differ.
    real = os.stat

    def mounted(path, **options):
        status = real(path, **options)
        return os.stat_result(
            [status.st_mode, 1, 1, *status[3:7], 0, 0, 0], {"st_mtime_ns": 0, "st_ctime_ns": 0}
        )

    monkeypatch.setattr(file_states.os, "stat", mounted)
    listed = Listing(root, "train", ["train/ant/0.bmp"], [0], ["ant"])
    before = file_states.fingerprint_of(listed, None, False)
    assert file_states.fingerprint_of(listed, None, False) == before
    rewrite_in_place(root)
    assert file_states.fingerprint_of(listed, None, False) != before


def test_another_decoder_decodes_again(root, monkeypatch):
    load(root)
    monkeypatch.setattr(file_states, "decoders", lambda: ["another Pillow"])
    seen = []
    pixels = decoding.pixels_of
    monkeypatch.setattr(decoding, "pixels_of", lambda *rest: seen.append(0) or pixels(*rest))
    load(root)
    assert len(seen) == 12


@pytest.mark.parametrize("place", [0, -1])
def test_a_cache_with_other_bytes_of_the_same_number_is_made_again(root, place):
    wanted = load(root).train.images.clone()
    path = root / decoding.CACHE_FOLDER / "train-ownpx.bytes"
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.unlink()
    path.write_bytes(content)
    assert torch.equal(load(root).train.images, wanted)


def test_off_leaves_nothing_and_a_folder_takes_it(root, tmp_path):
    found = load(root, cache="off")
    assert not (root / decoding.CACHE_FOLDER).exists()
    assert not any("decoded images are kept" in note for note in found.notes)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    again = load(root, cache=str(elsewhere))
    assert torch.equal(found.train.images, again.train.images)
    assert not (root / decoding.CACHE_FOLDER).exists()
    assert len(list(elsewhere.iterdir())) == 1
    # Two data sets may share it.
    shutil.copytree(root, tmp_path / "other")
    exchange(tmp_path / "other")
    assert torch.equal(
        load(tmp_path / "other", cache=str(elsewhere)).train.images, fresh(tmp_path / "other")[0]
    )
    assert torch.equal(load(root, cache=str(elsewhere)).train.images, found.train.images)


def test_the_cache_is_announced_with_its_place_and_size(root):
    for _ in range(2):
        (note,) = load(root).notes
        assert str(root / decoding.CACHE_FOLDER) in note
        assert "0.0 MiB" in note
        assert "data.cache=off" in note


@pytest.mark.parametrize("where", ["none", "Off", "/nowhere/at/all", ""])
def test_a_cache_that_is_no_folder_is_refused(root, where):
    with pytest.raises(InputError, match=r"data\.cache=.*no such folder"):
        load(root, cache=where)


def test_a_cache_folder_that_cannot_be_written_is_refused(root, open_folder):
    with without_privileges(), pytest.raises(InputError, match=r"cannot be written"):
        decoding.cache_folder(root, str(open_folder))


def test_two_runs_that_decode_at_once_with_other_options_have_their_own_pixels(root, monkeypatch):
    # Both write the same two files; each keeps what it decoded, whoever comes last.
    barrier = threading.Barrier(2, timeout=20)
    real = decoding._write_pixels

    def together(*arguments):
        contents = real(*arguments)
        barrier.wait()
        return contents

    monkeypatch.setattr(decoding, "_write_pixels", together)
    wide = np.full((8, 8), 4000, np.uint16)
    for split in ("train", "test"):
        Image.fromarray(wide).save(root / split / "ant" / "deep.png")
    found = {}
    runs = [
        threading.Thread(target=lambda white=white: found.update({white: load(root, white=white)}))
        for white in (4095, 65535)
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert int(found[4095].train.images[3].max()) == 4000 >> 4
    assert int(found[65535].train.images[3].max()) == 4000 >> 8
    monkeypatch.undo()
    for white, shift in ((4095, 4), (65535, 8)):
        assert int(load(root, white=white).train.images[3].max()) == 4000 >> shift
