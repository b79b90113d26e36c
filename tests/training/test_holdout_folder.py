"""A hold-out that the user brings: val/ beside test/, or another folder."""

import json
from pathlib import Path

import pytest
import torch

from cfol_fast import data
from cfol_fast.errors import InputError
from cfol_fast.runs.config import TrainConfig, to_dict
from cfol_fast.runs.identity import essential_settings
from cfol_fast.training import train
from cfol_fast.training.images import load_images
from cfol_fast.training.offsets import fit_offsets
from tests.data import published_files

SMALL = {"model.name": "demo-cnn@0.25", "epochs": 1, "batch_size": 4, "device": "cpu"}
SMALL |= {"steps_per_epoch": 2, "attack.steps": 1, "test.steps": 1, "validation.steps": 1}


def config(root: Path, holdout: str | None = None, **more) -> TrainConfig:
    given = {} if holdout is None else {"data.holdout": holdout}
    return TrainConfig({"data.root": str(root), "method": "erm", **SMALL, **given, **more})


def images_of(part: data.ImageSet) -> torch.Tensor:
    return torch.stack([part.image(row) for row in range(len(part))])


@pytest.mark.parametrize("name", ["val", "validation"])
def test_val_beside_test_is_the_holdout_and_all_of_train_is_trained_on(tmp_path, name):
    published_files.folder(tmp_path, ("train", "test", name), side=16)
    chosen = config(tmp_path)
    found = load_images(chosen)
    assert chosen.data.holdout == "val"
    assert len(found.labels) == 12
    assert (len(found.validation), len(found.test), found.validation_split) == (12, 12, "holdout")
    both = data.load("folder", tmp_path, holdout_folder="val")
    assert both.files["holdout"].paths[0] == f"{name}/ant/0.png"
    assert not torch.equal(images_of(both.holdout), images_of(both.test))
    assert set(found.content) == {"train", "test", "holdout"}
    assert any(f"{name}/ is the hold-out; test/ is the test part" in note for note in found.notes)


@pytest.mark.parametrize("outside", [False, True])
def test_the_stream_reads_the_same_holdout(tmp_path, outside):
    published_files.folder(tmp_path / "mine", ("train", "test", "val"), side=16)
    published_files.folder(tmp_path / "theirs", ("other", "test"), side=16, count=5)
    holdout = str(tmp_path / "theirs/test") if outside else "val"
    resident, stream = (
        data.load("folder", tmp_path / "mine", holdout_folder=holdout, source=source)
        for source in ("resident", "stream")
    )
    for part in ("train", "test", "holdout"):
        assert torch.equal(images_of(getattr(stream, part)), images_of(getattr(resident, part)))
    contents = [
        load_images(config(tmp_path / "mine", holdout, **{"data.source": source})).content
        for source in ("resident", "stream")
    ]
    assert contents[0] == contents[1]


def test_alone_val_stays_the_test_part_and_a_share_is_held_out(tmp_path):
    published_files.folder(tmp_path, ("train", "val"), side=16)
    chosen = config(tmp_path)
    found = load_images(chosen)
    assert (chosen.data.holdout, len(found.test), len(found.validation)) == ("0.2", 12, 3)
    with pytest.raises(InputError, match="val/ is the test part"):
        load_images(config(tmp_path, "val"))


def test_a_share_goes_before_val_and_names_the_run_as_ever(tmp_path):
    published_files.folder(tmp_path, ("train", "test", "val"), side=16)
    for share in ("0.2", "1/5", "20%"):
        assert len(load_images(config(tmp_path, share)).validation) == 3
    assert "data.holdout" not in essential_settings(to_dict(config(tmp_path, "0.2")))
    assert essential_settings(to_dict(config(tmp_path)))["data.holdout"] == "val"


def test_another_folder_is_the_holdout_whatever_it_is_called(tmp_path, monkeypatch):
    published_files.folder(tmp_path / "mine", side=16)
    published_files.folder(tmp_path / "theirs", ("test", "train"), side=16, count=5)
    monkeypatch.chdir(tmp_path)
    for name in ("test", "train"):
        chosen = config(tmp_path / "mine", f"theirs/{name}")
        assert chosen.data.holdout == str(tmp_path / "theirs" / name)
        found = load_images(chosen)
        assert (len(found.labels), len(found.validation), len(found.test)) == (12, 15, 12)
    # What was decoded of one part is not taken for another.
    whole = data.load("folder", tmp_path / "mine", holdout_folder=str(tmp_path / "theirs/test"))
    assert len(whole.test) == 12
    assert len(whole.holdout) == 15


@pytest.mark.parametrize(
    ("holdout", "problem"),
    [
        ("val", "has no val/"),
        ("{root}/nowhere", "is not a folder"),
        ("{root}/test", "is test/ of the data set itself"),
        ("{root}/train", "is train/ of the data set itself"),
        ("nowhere", "must be a share"),
        ("1.5", "must be a share"),
    ],
)
def test_what_is_no_holdout_is_refused(tmp_path, holdout, problem):
    published_files.folder(tmp_path, side=16)
    with pytest.raises(InputError, match=problem):
        load_images(config(tmp_path, holdout.format(root=tmp_path)))


def test_a_holdout_without_one_of_the_classes_is_refused(tmp_path):
    published_files.folder(tmp_path, ("train", "test", "val"), side=16)
    for file in (tmp_path / "val/bee").iterdir():
        file.unlink()
    (tmp_path / "val/bee").rmdir()
    with pytest.raises(InputError, match="only in train/: bee"):
        load_images(config(tmp_path))


def test_a_folder_is_no_holdout_of_other_data(tmp_path):
    published_files.folder(tmp_path, ("train", "test", "val"))
    for holdout in ("val", str(tmp_path / "val")):
        with pytest.raises(InputError, match="got fashion-mini"):
            TrainConfig({"data.name": "fashion-mini", "data.holdout": holdout})
        with pytest.raises(InputError, match="does not read"):
            data.load("fashion-mini", holdout_folder=holdout)


def test_copies_of_training_images_in_the_holdout_are_said(tmp_path):
    published_files.folder(tmp_path, ("train", "test", "val"), side=16)
    (tmp_path / "val/ant/0.png").write_bytes((tmp_path / "train/ant/1.png").read_bytes())
    assert load_images(config(tmp_path)).copies == {"holdout": (1, 12)}


@pytest.mark.slow
def test_a_run_validates_on_it_and_offsets_and_resuming_take_it(tmp_path):
    root, run = tmp_path / "data", tmp_path / "run"
    published_files.folder(root, ("train", "test", "val"), side=16)
    chosen = config(root, out=str(run))
    result = train(chosen).result
    assert result["holdout"] == "val"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    held = [row for row in rows if row.get("split") == "holdout"]
    assert held
    assert held[0]["robust"]["count"] == {"ant": 4, "bee": 4, "cat": 4}
    fit = fit_offsets(run, rounds=2)
    assert fit.images == 4
    published_files.save(root / "val/ant/0.png", 77, 16, 16)
    with pytest.raises(InputError, match="holdout: "):
        fit_offsets(run, rounds=2)
