"""A callback hears of everything a run does, each thing once, and whatever it does the run stays the same."""

from __future__ import annotations

import json

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

import cfol_fast as cf
from cfol_fast.errors import InputError, Stopped, TrainingFailed
from cfol_fast.training import Callback, checkpoint_path
from tests.training import tiny

pytestmark = pytest.mark.usefixtures("few_images")


class Diary(Callback):
    """Writes down what it hears."""

    def __init__(self):
        self.heard, self.rows = [], []

    def on_start(self, run):
        self.run = run
        self.heard.append(("start", run.step))

    def on_step(self, step):
        self.heard.append(("step", step))

    def on_row(self, row):
        self.rows.append(row)
        self.heard.append((row["kind"], row["step"]))

    def on_validation(self, row, model):
        self.heard.append(("model", model.training, torch.is_grad_enabled()))

    def on_end(self, result):
        self.result = result
        self.heard.append("end")

    def on_close(self):
        self.heard.append("close")


def rows_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_callback_hears_start_steps_rows_validations_and_the_end(tmp_path):
    diary = Diary()
    run = cf.train(tiny.tiny_config(tmp_path / "run"), quiet=True, callbacks=[diary])
    told = [
        (
            *(("step", step) for step in steps),
            ("train", steps[-1]),
            ("validation", steps[-1]),
            ("model", False, False),
        )
        for steps in ((1, 2, 3), (4, 5, 6))
    ]
    assert diary.heard == [("start", 0), *told[0], *told[1], "end", "close"]
    assert diary.rows == rows_of(run.folder)
    assert diary.result == run.result
    assert (diary.run.folder, diary.run.steps, len(diary.run.classes)) == (run.folder, 6, 10)


@pytest.mark.slow
def test_a_resumed_run_tells_every_row_once(tmp_path, monkeypatch):
    first, second = Diary(), Diary()
    config = tiny.tiny_config(tmp_path / "run")
    with monkeypatch.context() as patch:
        tiny.signal_in_call(patch, 5, tiny.trainer, "learning_rate")
        with pytest.raises(Stopped):
            cf.train(config, quiet=True, callbacks=[first])
    assert first.heard[-1] == "close"
    cf.train(config, quiet=True, resume=True, callbacks=[second])
    assert second.heard[0] == ("start", 5)
    assert second.run.rows == first.rows
    assert first.rows + second.rows == rows_of(tmp_path / "run")


class Broken(Diary):
    def on_row(self, row):
        raise OSError("no space left")


def test_an_error_of_a_callback_is_said_and_does_not_end_the_run(tmp_path):
    broken, after = Broken(), Diary()
    with pytest.warns(
        RuntimeWarning, match=r"Broken.on_row failed: OSError: no space left .*the run goes on"
    ):
        run = cf.train(tiny.tiny_config(tmp_path / "run"), quiet=True, callbacks=[broken, after])
    assert run.result["finished"]
    assert broken.heard == [("start", 0), ("step", 1), ("step", 2), ("step", 3), "close"]
    assert after.rows == rows_of(run.folder)


def test_a_run_that_is_not_quiet_says_it_in_its_own_lines(tmp_path, capsys):
    cf.train(tiny.tiny_config(tmp_path / "run", epochs=1), callbacks=[Broken()])
    assert "warning: Broken.on_row failed: OSError: no space left" in capsys.readouterr().out


class Raises(Callback):
    def __init__(self, event, error):
        def fail(*_):
            raise error

        setattr(self, event, fail)


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ("on_start", InputError("no account")),
        ("on_row", TrainingFailed("enough")),
        ("on_row", Stopped(15, "enough")),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_ends_a_run_on_purpose_goes_through_and_the_others_are_closed(tmp_path, event, error):
    diary = Diary()
    with pytest.raises(type(error)):
        cf.train(tiny.tiny_config(tmp_path / "run"), quiet=True, callbacks=[diary, Raises(event, error)])
    assert diary.heard[-1] == "close"


class Meddler(Callback):
    """Draws random numbers, and uses the model as a careless guest would."""

    def on_step(self, step):
        torch.rand(3)

    def on_validation(self, row, model):
        torch.manual_seed(1)
        model(torch.rand(4, 1, 28, 28))


@pytest.mark.slow
def test_a_callback_that_draws_and_asks_the_model_changes_nothing(tmp_path):
    tiny.run(tmp_path / "alone")
    cf.train(tiny.tiny_config(tmp_path / "watched"), quiet=True, callbacks=[Meddler()])
    tiny.assert_same_outcome(tmp_path / "alone", tmp_path / "watched")
    alone, watched = (
        torch.load(checkpoint_path(tmp_path / name, "last"), weights_only=True)["torch_rng"]
        for name in ("alone", "watched")
    )
    assert torch.equal(alone, watched)


@pytest.mark.slow
def test_the_stages_before_the_run_itself_are_not_told(tmp_path):
    diary = Diary()
    run = cf.train(tiny.tiny_config(tmp_path / "run", "two-run", epochs=1), quiet=True, callbacks=[diary])
    assert diary.rows == rows_of(run.folder)
    assert diary.run.folder == run.folder


def test_what_is_no_callback_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"got builtin_function_or_method: put a function of a row"):
        cf.train(tiny.tiny_config(tmp_path / "run"), quiet=True, callbacks=[print])
    assert not (tmp_path / "run").exists()


def test_an_unknown_log_is_refused_before_a_folder_is_made(tmp_path):
    with pytest.raises(InputError, match="there is no log 'mlflow': choose tensorboard or wandb"):
        cf.train(tiny.tiny_config(tmp_path / "run"), quiet=True, log=["mlflow"])
    assert not (tmp_path / "run").exists()


def test_without_wandb_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(InputError, match="pip install wandb"):
        cf.train(tiny.tiny_config(tmp_path / "run"), quiet=True, log=["wandb"])
    assert not (tmp_path / "run").exists()


def rank_of_two(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    config, diary = tiny.tiny_config(f"{folder}/run", epochs=1, shards=2), Diary()
    cf.train(config, callbacks=[diary, Broken()])
    (folder / f"heard-{rank}.json").write_text(json.dumps(diary.heard))
    dist.destroy_process_group()


@pytest.mark.slow
def test_of_two_processes_the_first_calls_back_and_its_callbacks_errors_hold_nobody_up(tmp_path):
    multiprocessing.start_processes(rank_of_two, (tmp_path,), nprocs=2, start_method="fork")
    first, second = (json.loads((tmp_path / f"heard-{rank}.json").read_text()) for rank in (0, 1))
    assert (first[0], first[-2:], second) == (["start", 0], ["end", "close"], [])
