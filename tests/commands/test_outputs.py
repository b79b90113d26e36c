"""Every option that names a file to write: a link to a device stays one, and nothing appears beside it."""

import errno
import os
import stat
import sys
from pathlib import Path

import pytest

from cfol_fast.commands import main as cli
from tests.reporting.synthetic_runs import make_run

TINY = ["--set=steps_per_epoch=1", "--set=batch_size=16", "--model=demo-cnn@0.25", "--set=attack.steps=1"]
TINY += ["--set=test.steps=1", "--epochs=1", "--holdout=none", "--device=cpu", "--quiet"]
EVAL = ["--limit=20", "--attack=none", "--device=cpu", "--quiet"]
MORE = {"eval": EVAL, "export": ["--quiet"], "report": ["--no-pictures"]}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert cli.main(["train", "erm", *TINY, "--out", str(folder)]) == 0
    return str(folder)


@pytest.fixture
def null(tmp_path):
    (tmp_path / "null").symlink_to(os.devnull)
    yield str(tmp_path / "null")
    assert os.listdir(tmp_path) == ["null"]
    assert os.readlink(tmp_path / "null") == os.devnull
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.parametrize("option", ["--json", "--csv"])
@pytest.mark.slow
def test_eval_writes_to_a_device(run, null, option):
    assert cli.main(["eval", run, *EVAL, option, null]) == 0


@pytest.mark.slow
def test_train_exports_to_a_device(run, null):
    assert cli.main(["train", "--resume", "--out", run, "--quiet", "--export", null]) == 0


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (".", "is a folder: give the name of a file"),
        ("/nowhere/weights.pt", "there is no folder /nowhere"),
        ("weights.onnx", "needs the packages onnx and onnxscript"),
        ("weights.safetensors", "needs the package safetensors"),
    ],
)
def test_an_export_that_cannot_be_written_is_found_before_training(
    tmp_path, target, message, monkeypatch, capsys
):
    for package in ("onnx", "safetensors"):
        monkeypatch.setitem(sys.modules, package, None)
    folder = tmp_path / "new"
    assert cli.main(["train", "erm", *TINY, "--out", str(folder), "--export", target]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not folder.exists()


@pytest.mark.slow
def test_an_export_may_go_into_the_folder_of_the_run(tmp_path):
    folder = tmp_path / "new"
    target = folder / "weights.pt"
    assert cli.main(["train", "erm", *TINY, "--out", str(folder), "--export", str(target)]) == 0
    assert target.exists()


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "result.json", "checkpoints/last.pt"])
@pytest.mark.parametrize("command", ["eval --json", "eval --csv", "export --to torch --out", "report --out"])
def test_no_output_takes_the_place_of_what_a_run_needs(run, name, command, capsys):
    before = (Path(run) / name).read_bytes()
    verb, *options = command.split()
    assert cli.main([verb, run, *MORE[verb], *options, f"{run}/{name}"]) == 2
    error = capsys.readouterr().err
    assert f"{run}/{name} belongs to the run" in error
    assert error.count("\n") == 1
    assert (Path(run) / name).read_bytes() == before


@pytest.mark.parametrize("name", ["result.json", "checkpoints/last.pt", "checkpoints/best-average.pt"])
def test_an_export_is_none_of_the_run_s_own_files(run, name, tmp_path, capsys):
    before = (Path(run) / "checkpoints/last.pt").read_bytes()
    new = str(tmp_path / "new")
    for folder, options in ((run, ["--resume"]), (new, ["erm", *TINY])):
        assert cli.main(["train", *options, "--out", folder, "--export", f"{folder}/{name}"]) == 2
        error = capsys.readouterr().err
        assert f"--export {folder}/{name} belongs to the run" in error
        assert error.count("\n") == 1
    assert (Path(run) / "checkpoints/last.pt").read_bytes() == before
    assert not Path(new).exists()


def test_json_and_csv_are_two_files(run, tmp_path, capsys):
    assert cli.main(["eval", run, *EVAL, *(f"--{kind}={tmp_path}/both" for kind in ("json", "csv"))]) == 2
    assert "--csv and --json name one file" in capsys.readouterr().err


def test_a_report_to_a_device_has_nothing_beside_it(run, null, tmp_path_factory):
    made = make_run(tmp_path_factory.mktemp("made") / "erm", "erm")
    assert cli.main(["report", str(made), "--out", null]) == 0


def test_a_full_device_is_one_line_that_names_it(run, capsys):
    assert cli.main(["train", "--resume", "--out", run, "--quiet", "--export", "/dev/full"]) == 2
    message = capsys.readouterr().err
    assert "/dev/full" in message
    assert os.strerror(errno.ENOSPC) in message
    assert len(message.splitlines()) == 1
