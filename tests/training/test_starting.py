"""How a run starts: nothing is lost by a start that fails, and what cannot be continued is not started
afresh.
"""

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cfol_fast import data
from cfol_fast.commands import main as cli
from cfol_fast.errors import InputError, TrainingFailed
from cfol_fast.runs import checkpoints, run_folder
from cfol_fast.runs.metrics_log import read_rows
from cfol_fast.training import final_test, train, trainer
from cfol_fast.training.holdout import HoldOut
from cfol_fast.training.step import Step
from tests.training import tiny

TINY = ["--set=steps_per_epoch=2", "--set=batch_size=16", "--model=demo-cnn@0.25", "--set=attack.steps=1"]
TINY += [
    "--set=validation.steps=1",
    "--set=test.steps=1",
    "--epochs=1",
    "--holdout=none",
    "--device=cpu",
    "--quiet",
]


def files(folder: Path) -> dict[str, bytes]:
    # rglob does not go through links.
    found = {
        path for place in (folder, folder / "checkpoints") for path in place.rglob("*") if path.is_file()
    }
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def overwrite(run: Path, method: str = "erm", **settings):
    return train(tiny.tiny_config(run, method, **settings), overwrite=True, quiet=True)


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", tiny.few_images())
        return tiny.run(tmp_path_factory.mktemp("trained") / "run", epochs=1).folder


@pytest.fixture
def old(few_images, trained_run, tmp_path) -> Path:
    return Path(shutil.copytree(trained_run, tmp_path / "run"))


@pytest.mark.parametrize(
    "settings",
    [{"data__name": "cifar10", "data__root": "/typo"}, {"model__name": "nonsense"}, {"optimizer__lr": "inf"}],
    ids=["data", "model", "learning rate"],
)
def test_a_new_run_that_cannot_start_leaves_the_old_one(old, settings):
    before = files(old)
    with pytest.raises((InputError, OSError)):
        overwrite(old, **settings)
    assert files(old) == before


def test_a_new_run_that_fails_in_its_first_step_leaves_the_old_one(old, monkeypatch):
    before = files(old)
    monkeypatch.setattr(Step, "__call__", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        overwrite(old)
    assert files(old) == before


def test_a_new_run_whose_first_checkpoint_does_not_fit_gives_the_old_one_back(old, monkeypatch):
    before = files(old)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "last.pt")

    monkeypatch.setattr(checkpoints.CheckpointStore, "save_last", full)
    with pytest.raises(OSError, match=r"last\.pt"):
        overwrite(old)
    assert files(old) == before


@pytest.mark.parametrize("linked", [False, True], ids=["folder", "link"])
@pytest.mark.slow
def test_an_overwritten_run_is_the_run_that_a_new_folder_would_have_had(old, tmp_path, linked, capsys):
    if linked:
        shutil.move(old / "checkpoints", tmp_path / "other disk")
        (old / "checkpoints").symlink_to(tmp_path / "other disk")
    (old / "eval.json").write_text("{}")
    (old / "notes.txt").write_text("mine")
    before = files(old)
    train(tiny.tiny_config(old, "erm"), overwrite=True)
    tiny.run(tmp_path / "new", "erm")
    tiny.assert_same_outcome(old, tmp_path / "new")
    assert files(old).keys() == files(tmp_path / "new").keys()
    assert files(tmp_path / "run.old-1") == before
    assert f"{tmp_path / 'run.old-1'} now (" in capsys.readouterr().out
    assert (tmp_path / "run.old-1/checkpoints").is_symlink() == linked


@pytest.mark.slow
def test_a_run_of_two_stages_is_overwritten_from_its_first(few_images, tmp_path):
    for overwriting in (False, True):
        train(
            tiny.tiny_config(tmp_path / "run", "two-run", epochs=1, seed=int(overwriting)),
            overwrite=overwriting,
            quiet=True,
        )
    tiny.run(tmp_path / "new", "two-run", epochs=1, seed=1)
    tiny.assert_same_outcome(tmp_path / "run", tmp_path / "new")
    tiny.assert_same_outcome(tmp_path / "run/stage-1", tmp_path / "new/stage-1")


@pytest.mark.slow
def test_a_stage_that_lost_its_configuration_is_not_started_afresh(few_images, tmp_path):
    run = tmp_path / "run"
    tiny.run(run, "two-run", epochs=1)
    for lost in ("config.json", "result.json"):
        (run / "stage-1" / lost).unlink()
    (run / "result.json").unlink()
    before = files(run)
    with pytest.raises(InputError, match=r"stage-1 is not a run folder: it has no config\.json"):
        train(tiny.tiny_config(run, "two-run", epochs=1), resume=True, quiet=True)
    assert files(run) == before


def test_a_refused_run_leaves_no_folder(few_images, tmp_path):
    with pytest.raises(InputError):
        tiny.run(tmp_path / "deep/run", model__name="nonsense")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_rows_without_a_checkpoint_are_not_cut(old):
    (old / "result.json").unlink()
    shutil.rmtree(old / "checkpoints")
    before = files(old)
    for resume in (True, "auto"):
        with pytest.raises(InputError, match=r"metrics\.jsonl has rows, but there is no checkpoint"):
            tiny.run(old, epochs=1, resume=resume)
    assert files(old) == before


@pytest.mark.slow
def test_a_run_killed_before_its_first_checkpoint_starts_at_step_0_and_says_so(few_images, tmp_path, capsys):
    run_folder.begin(tmp_path / "run", tiny.tiny_config(tmp_path / "run", epochs=1))
    train(tiny.tiny_config(tmp_path / "run", epochs=1), resume=True)
    assert "no checkpoint yet: starting at step 0" in capsys.readouterr().out
    assert read_rows(tmp_path / "run")


@pytest.mark.slow
def test_a_row_is_never_on_the_disk_without_a_checkpoint(few_images, tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    tiny.run(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "end_epoch", killed)
        with pytest.raises(KeyboardInterrupt):
            tiny.run(tmp_path / "run")
    assert read_rows(tmp_path / "run")
    tiny.run(tmp_path / "run", resume=True)
    tiny.assert_same_outcome(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("moment", ["step", "validation", "test"])
def test_a_folder_that_is_deleted_while_it_is_trained_in_is_a_failure(
    few_images, tmp_path, monkeypatch, moment
):
    owner, name = {
        "step": (Step, "__call__"),
        "validation": (HoldOut, "row"),
        "test": (final_test, "write_gallery"),
    }[moment]
    original = getattr(owner, name)

    def delete(*args):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return original(*args)

    monkeypatch.setattr(owner, name, delete)
    with pytest.raises(TrainingFailed, match="was deleted or replaced"):
        tiny.run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_closed_terminal_saves_and_under_nohup_does_nothing(few_images, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        tiny.signal_in_call(patch, 2, trainer, "learning_rate", signal.SIGHUP)
        assert tiny.stopped_run(tmp_path / "run").signal_number == signal.SIGHUP
        assert torch.load(tmp_path / "run/checkpoints/last.pt", weights_only=True)["position"]["step"] == 2
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        tiny.signal_in_call(monkeypatch, 2, trainer, "learning_rate", signal.SIGHUP)
        assert tiny.run(tmp_path / "run", resume=True).result["finished"]
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
def test_the_command_line_continues_what_is_there_and_starts_only_when_told_so(few_images, tmp_path, capsys):
    out = ["--out", str(tmp_path / "run")]
    assert cli.main(["train", "erm", *TINY, *out, "--resume"]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert cli.main(["train", "--resume=auto", "erm", *TINY, *out]) == 0
    # The METHOD after --resume is not its value.
    for resume in ("--resume", "--resume=auto"):
        before = files(tmp_path / "run")
        assert cli.main(["train", resume, "erm", *out, "--quiet"]) == 0
        assert files(tmp_path / "run") == before
    assert cli.main(["train", "--resume=always", "erm", *out]) == 2


@pytest.mark.slow
def test_a_full_disk_names_the_checkpoint_and_the_run_continues_when_there_is_room(
    few_images, tmp_path, monkeypatch
):
    tiny.run(tmp_path / "whole")
    tiny.run_until(monkeypatch, 2, tmp_path / "run")
    last = tmp_path / "run/checkpoints/last.pt"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (last.stat().st_size // 2, limits[1]))
    try:
        with pytest.raises(OSError, match=r"MiB are free.*checkpoints/next\.pt"):
            tiny.run(tmp_path / "run", resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    tiny.run(tmp_path / "run", resume=True)
    tiny.assert_same_outcome(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("resume", [False, "auto"])
def test_a_run_killed_while_it_wrote_its_configuration_starts_again(few_images, tmp_path, resume):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".config.json.d1263e10.tmp").write_text('{"method": ')
    tiny.run(folder, "erm", resume=resume)
    assert (folder / "result.json").exists()
    assert not list(folder.glob(".config*"))


@pytest.mark.slow
def test_a_run_imports_nothing_that_takes_as_long_as_torch(tmp_path):
    code = "import sys; from cfol_fast.commands import main as cli\nassert cli.main(sys.argv[1:]) == 0\n"
    code += "print(*{'torchvision', 'torch._dynamo', 'sympy'} & set(sys.modules))"
    command = [sys.executable, "-c", code, "train", "cfol", "--dataset=fashion-mini", *TINY]
    done = subprocess.run([*command, "--out", tmp_path / "run"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""
