"""What does not fit is refused before it is read, in numbers, with the way out that is open."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from cfol_fast import data
from cfol_fast.data import room
from cfol_fast.errors import InputError
from cfol_fast.runs.config import TrainConfig
from cfol_fast.training import images
from tests.data import published_files as files


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "available_memory", lambda: 2**20)


def config(**options: Any) -> TrainConfig:
    return TrainConfig(options, device="cpu", data={"name": "fashion-mini"}, model={"name": "demo-cnn"})


def test_images_that_do_not_fit_on_the_device_name_the_command_that_streams_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "free_memory", lambda device: 2**20)
    with pytest.raises(InputError, match=r"8,000 images need 6\.0 MiB on cpu, 1\.0 MiB are free") as error:
        images.load_images(config())
    assert "to-ffcv --dataset fashion-mini --split all --out FILES" in str(error.value)
    assert "--dataset beton --data FILES" in str(error.value)


def test_images_that_do_not_fit_into_memory_are_refused_before_they_are_copied(
    little_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data.ImageSet, "subset", None)
    with pytest.raises(InputError, match=r"need 3\.8 MiB of memory, 1\.0 MiB are free: write FFCV files"):
        images.load_images(config())


def test_without_a_hold_out_nothing_is_copied(little_memory: None) -> None:
    notes = images.load_images(config(holdout="test")).notes
    assert notes[0] == "8,000 images: 6.0 MiB on cpu, 0.0 MiB of memory to divide them"


def test_all_processes_of_a_machine_need_memory(monkeypatch: pytest.MonkeyPatch, little_memory: None) -> None:
    room.check_memory("images", 2**18, "leave some out")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    with pytest.raises(InputError, match=r"images need 2\.0 MiB of memory.*: leave some out"):
        room.check_memory("images", 2**18, "leave some out")
    # The others come when the first has what it needs.
    monkeypatch.setenv("LOCAL_RANK", "1")
    room.check_memory("images", 2**18, "leave some out")


def test_the_way_out_names_the_command_that_says_how_to_install_ffcv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "find_spec", lambda name: None)
    assert "that needs FFCV (`cfol-fast doctor`)" in room.streaming()
    monkeypatch.setattr(room, "find_spec", lambda name: name)
    assert "apt-get" not in room.streaming()


def test_a_container_has_less_memory_than_its_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = room.available_memory()
    assert whole is not None
    assert whole > 2**20
    for name, text in (("max", "3000"), ("current", "2000"), ("stat", "anon 1\nfile 500\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    monkeypatch.setattr(room, "CGROUP", tmp_path)
    assert room.available_memory() == 1500
    (tmp_path / "memory.max").write_text("max")
    assert room.available_memory() > 2**20  # type: ignore[operator]


@pytest.mark.slow
def test_decoded_images_that_do_not_fit_on_the_disk_are_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.folder(tmp_path, side=400)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2**20))
    # Twelve of 400 x 400 x 3 bytes.
    with pytest.raises(InputError, match=r"12 images of train, decoded, need about 5\.5 MiB") as error:
        data.load("folder", tmp_path, progress=False)
    assert "to-ffcv --mode jpg" in str(error.value)
    assert not list(tmp_path.rglob("*.bytes"))


@pytest.mark.ffcv
def test_batches_of_a_file_that_do_not_fit_are_refused_with_their_way_out(
    mini_beton: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = data.FFCVSource(mini_beton, lag=1)
    assert source.batch_memory(10) == 4 * 10 * 28 * 28
    source.check_room(10)
    monkeypatch.setattr(room, "available_memory", lambda: 2**20)
    with pytest.raises(InputError, match=r"4 batches of 500 images with room for 28x28 px need 1\.5 MiB"):
        next(source.feed(lambda: torch.arange(500), 1))
