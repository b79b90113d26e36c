"""`--log wandb`, offline, with wandb itself: what it wrote is read back from its own file."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from wandb.proto import wandb_internal_pb2

import cfol_fast as cf
from cfol_fast import data
from cfol_fast.commands import main as cli
from tests.training import tiny


@pytest.fixture(autouse=True)
def _wandb_reads_its_environment_again() -> Iterator[None]:
    yield
    wandb.teardown()


@pytest.fixture(autouse=True)
def _few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "load", tiny.few_images())


def records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: LevelDB's log format, in blocks of 32 KiB, behind seven bytes of
    its own.
    """
    content, position, record = path.read_bytes(), 7, b""
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        record += content[position + 7 : position + 7 + length]
        position += 7 + length
        # A whole record, or the last part of one.
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


def read(folder: Path, field: str) -> list[dict[str, Any]]:
    """The history or the summaries of all parts of the run, in the order in which they were written."""
    # Its process may hold the end of the file until it leaves.
    wandb.teardown()
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime)
    found = [r for file in files for r in records(file) if r.WhichOneof("record_type") == field]
    items = [r.history.item if field == "history" else r.summary.update for r in found]
    return [{"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in each} for each in items]


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_command_hands_every_row_and_the_result_to_wandb(tmp_path: Path) -> None:
    command = (
        "train cfol --out run --quiet --log wandb --log tensorboard --epochs 2 --batch-size 16 --device cpu"
    )
    settings = ["steps_per_epoch=3", "attack.steps=1", "test.steps=1", "validation.steps=1"]
    options = [f"--set={setting}" for setting in settings]
    assert cli.main([*command.split(), "--model=demo-cnn@0.25", *options]) == 0
    history, written = read(tmp_path / "other", "history"), rows(tmp_path / "run")
    assert [(entry["epoch"], entry["step"]) for entry in history] == [
        (row["epoch"], row["step"]) for row in written
    ]
    assert history[0]["train/loss"] == pytest.approx(written[0]["loss"])
    assert history[3]["holdout robust/worst"] == pytest.approx(written[3]["robust"]["worst"])
    worst = json.loads((tmp_path / "run/result.json").read_text())["test"]["robust"]["worst"]
    assert {"test robust/worst": worst}.items() <= {
        key: value for entry in read(tmp_path / "other", "summary") for key, value in entry.items()
    }.items()
    assert list((tmp_path / "run/tensorboard").iterdir())


def test_a_resumed_run_continues_its_wandb_run_and_logs_no_row_twice(
    tmp_path: Path,
) -> None:
    """Stopped after its rows were written and before its checkpoint was: metrics.jsonl gets them again, wandb
    does not.
    """
    config = tiny.tiny_config(tmp_path / "run")

    class Power(cf.training.Callback):
        def on_validation(self, row: dict[str, Any], model: Any) -> None:
            if row["epoch"] == 2:
                raise cf.training.TrainingFailed("the power went")

    with pytest.raises(cf.training.TrainingFailed):
        cf.train(config, quiet=True, log=["wandb"], callbacks=[Power()])
    first = json.loads((tmp_path / "run/wandb.json").read_text())
    cf.train(config, quiet=True, log=["wandb"], resume=True)
    assert json.loads((tmp_path / "run/wandb.json").read_text())["id"] == first["id"]
    logged = [(entry["step"], "train/loss" in entry) for entry in read(tmp_path / "other", "history")]
    assert logged == [(row["step"], row["kind"] == "train") for row in rows(tmp_path / "run")]


def test_an_overwritten_run_is_another_run_at_wandb(tmp_path: Path) -> None:
    config = tiny.tiny_config(tmp_path / "run", epochs=1)
    ids = []
    for overwrite in (False, True):
        cf.train(config, quiet=True, overwrite=overwrite, log=["wandb"])
        ids.append(json.loads((tmp_path / "run/wandb.json").read_text())["id"])
    assert ids[0] != ids[1]


def test_without_an_account_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(cf.errors.InputError, match="WANDB_MODE=offline"):
        cf.train(tiny.tiny_config(tmp_path / "run"), quiet=True, log=["wandb"])
