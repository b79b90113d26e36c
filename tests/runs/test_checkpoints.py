"""A checkpoint's digest: every changed byte is found before torch reads it, and the previous checkpoint is
used.
"""

import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import cfol_fast
from cfol_fast.errors import InputError
from cfol_fast.evaluation.foreign_weights import read_weights
from cfol_fast.models import ModelSpec
from cfol_fast.runs import checkpoints
from cfol_fast.runs.checkpoints import CheckpointStore, DamagedCheckpoint
from cfol_fast.runs.loading import checkpoint_path, read_checkpoint

SPEC = {
    "name": "demo-cnn@0.05",
    "num_classes": 10,
    "image_size": 28,
    "in_channels": 1,
    "mean": [0.5],
    "std": [0.5],
}


def contents(**changes) -> dict:
    return {"format": 1, "value": 1, "weights": torch.arange(50.0), **changes}


def model_file(path: Path, **changes) -> Path:
    weights = ModelSpec.from_dict(SPEC).create().state_dict()
    state = {"format": 1, "spec": SPEC, "model": weights, "classes": [str(c) for c in range(10)], **changes}
    checkpoints.write(path, state)
    return path


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "c.pt"
    checkpoints.write(path, contents())
    return path


def test_plain_torch_reads_the_file_with_its_keys(file):
    for options in ({}, {"mmap": True}):
        state = torch.load(file, weights_only=True, **options)
        assert list(state) == ["format", "value", "weights"]
        assert torch.equal(state["weights"], torch.arange(50.0))
    with zipfile.ZipFile(file) as container:
        assert container.testzip() is None
        assert container.comment.startswith(b"cfol_fast sha256 ")


def test_every_changed_byte_is_found(file):
    whole = file.read_bytes()
    for place in (*range(0, len(whole) - 400, 5), *range(len(whole) - 400, len(whole))):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        file.write_bytes(changed)
        with pytest.raises(DamagedCheckpoint):
            checkpoints.read(file)


def test_every_truncation_is_found(file):
    whole = file.read_bytes()
    for length in (*range(0, len(whole), 29), *range(len(whole) - 150, len(whole))):
        file.write_bytes(whole[:length])
        with pytest.raises(DamagedCheckpoint):
            checkpoints.read(file)


def test_bytes_added_at_the_end_are_found(file):
    file.write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(DamagedCheckpoint, match="its digest does not fit"):
        checkpoints.read(file)


def test_a_digest_cut_off_is_found(file):
    file.write_bytes(file.read_bytes()[: -checkpoints.COMMENT_SIZE])
    with pytest.raises(DamagedCheckpoint):
        checkpoints.read(file)


def test_what_goes_through_a_pipe_has_its_digest(tmp_path, file):
    pipe, copy = tmp_path / "pipe", tmp_path / "copy.pt"
    os.mkfifo(pipe)
    state = checkpoints.read(file)
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(pipe.read_bytes)
        checkpoints.write(pipe, state)
        copy.write_bytes(received.result())
    assert checkpoints.read(copy)["value"] == state["value"]


def test_a_damaged_checkpoint_never_takes_the_place_of_the_whole_one_before_it(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path)
    for value in (1, 2):
        store.save_last(contents(value=value))
    store.path("last").write_bytes(b"damaged")
    assert store.newest()[0]["value"] == 1

    replace = os.replace

    def killed(source, target):
        if Path(target) == store.path("last"):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        store.save_last(contents(value=3))
    monkeypatch.undo()
    assert CheckpointStore(tmp_path).newest()[0]["value"] == 1
    store.save_last(contents(value=3))
    store.save_last(contents(value=4))
    assert [checkpoints.read(store.path(name))["value"] for name in ("last", "previous")] == [4, 3]


def test_a_reader_says_that_it_uses_the_previous_checkpoint(tmp_path):
    for name in ("last", "previous"):
        model_file(tmp_path / f"{name}.pt", epoch=7)
    (tmp_path / "last.pt").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match=r"last\.pt is damaged.*; using .*previous\.pt instead"):
        assert read_checkpoint(tmp_path / "last.pt").epoch == 7


def test_too_little_memory_on_the_device_is_no_damage(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path)
    store.save_last(contents())

    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "load", full)
    with pytest.raises(torch.OutOfMemoryError):
        store.newest()


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_not_a_file_is_not_opened(tmp_path, kind):
    store = CheckpointStore(tmp_path)
    store.save_last(contents(value=1))
    store.save_last(contents(value=2))
    store.path("last").unlink()
    (os.mkdir if kind == "folder" else os.mkfifo)(store.path("last"))
    state, name, complaint = store.newest()
    assert (state["value"], name) == (1, "previous")
    assert "is not a file" in complaint


@pytest.mark.parametrize("value", [0, 2, None, "1", [1], True])
def test_another_format_is_refused(tmp_path, value):
    checkpoints.write(tmp_path / "c.pt", contents(format=value))
    with pytest.raises(InputError, match="this version of cfol_fast reads 1"):
        checkpoints.read(tmp_path / "c.pt")


@pytest.mark.parametrize(
    "best",
    [
        {"../../x": {"epoch": 1, "value": 0.5}},
        {"best-average": {"epoch": -1, "value": 0.5}},
        {"best-average": {"epoch": 1, "value": float("nan")}},
        {"best-average": None},
        ["best-average"],
    ],
)
def test_names_and_values_of_the_best_are_checked(tmp_path, best):
    checkpoints.write(tmp_path / "c.pt", contents(position={"epoch": 1, "step": 2, "best": best}))
    with pytest.raises(InputError, match=r"c\.pt"):
        checkpoints.read(tmp_path / "c.pt")


def test_a_model_that_fits_its_weights_is_built(tmp_path):
    assert cfol_fast.load(model_file(tmp_path / "c.pt")).classes[3] == "3"


@pytest.mark.parametrize(
    "spec",
    [
        {**SPEC, "name": "wrn-100000-1"},
        {**SPEC, "name": "wrn-16-100000"},
        {**SPEC, "name": "wrn-34-10"},
        {**SPEC, "name": "vgg16"},
        {**SPEC, "name": "vit_h_14"},
        {**SPEC, "name": 7},
        {**SPEC, "num_classes": 2**40},
        {**SPEC, "num_classes": 11},
        {**SPEC, "num_classes": "10"},
        {**SPEC, "image_size": 10**6},
        {**SPEC, "in_channels": 2**50},
        {**SPEC, "mean": [float("nan")]},
        {**SPEC, "mean": "0.5"},
        {**SPEC, "std": [0.0]},
        {**SPEC, "std": None},
        {**SPEC, "surplus": 1},
        {},
        [],
        None,
    ],
)
def test_a_description_that_does_not_fit_the_weights_builds_nothing(tmp_path, spec, monkeypatch):
    path = model_file(tmp_path / "c.pt", spec=spec)
    monkeypatch.setattr(torch.nn.Module, "load_state_dict", lambda *_: pytest.fail("a model was built"))
    with pytest.raises(InputError, match=r"c\.pt"):
        cfol_fast.load(path)


@pytest.mark.parametrize(
    "change", [{"model": {}}, {"model": None}, {"model": {"a": 1}}, {"classes": None}, {"classes": [1]}]
)
def test_weights_and_class_names_that_are_none_are_refused(tmp_path, change):
    with pytest.raises(InputError, match=r"c\.pt"):
        cfol_fast.load(model_file(tmp_path / "c.pt", **change))


def test_a_damaged_checkpoint_of_ours_is_not_taken_for_weights_of_others(tmp_path):
    path = model_file(tmp_path / "c.pt")
    assert read_weights(path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"num_classes", b"num_glasses"))
    with pytest.raises(DamagedCheckpoint, match="its digest does not fit"):
        read_weights(path)


def test_a_runs_checkpoint_is_chosen_by_its_name(tmp_path):
    store = CheckpointStore(tmp_path)
    for name in ("last", "ema-best-worst"):
        store.save_best(name, contents())
    assert checkpoint_path(tmp_path) == store.path("last")
    assert checkpoint_path(tmp_path, "ema-best-worst") == store.path("ema-best-worst")
    for name in ("best-worst", "../checkpoints/last", ""):
        with pytest.raises(InputError, match=f"has no checkpoint '{name}': it has ema-best-worst, last"):
            checkpoint_path(tmp_path, name)
    with pytest.raises(
        InputError, match=r"last\.pt is a checkpoint itself: --checkpoint last belongs to a run"
    ):
        checkpoint_path(store.path("last"), "last")


def test_a_pipe_with_the_name_of_a_checkpoint_is_not_waited_for(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.folder.mkdir()
    store.path("previous").touch()
    os.mkfifo(store.path("last"))
    assert checkpoint_path(tmp_path) == store.path("previous")
    with pytest.raises(InputError, match="has no checkpoint 'last': it has previous"):
        checkpoint_path(tmp_path, "last")
