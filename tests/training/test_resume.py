"""Exact resume: a run killed at any moment and continued is, bit for bit, the run that was never
interrupted.
"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from cfol_fast import evaluation
from cfol_fast.errors import InputError
from cfol_fast.training import train, trainer
from tests.training import tiny
from tests.training.killed_run import FAMILIES

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_runs_killed_at_random_points_end_like_the_uninterrupted_ones(tmp_path):
    """CFOL at ten points, and one method of each family at one."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.training.killed_run", str(tmp_path), "2024"]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    killed = {f"killed-{index}": "whole" for index in range(10)}
    killed |= {f"{family}-killed": f"{family}-whole" for family in FAMILIES}
    assert [line.partition(":")[0] for line in process.stdout.splitlines()] == list(killed)
    for name, whole in killed.items():
        tiny.assert_same_outcome(tmp_path / name, tmp_path / whole)
        left = [path for path in (tmp_path / name).rglob("*") if path.suffix == ".tmp"]
        assert not left, "the killed process left temporary files"
    assert (tmp_path / "ema-killed/checkpoints/ema-last.pt").exists()


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGINT, signal.SIGHUP))],
)
def test_a_signal_finishes_the_step_saves_and_leaves(few_images, tmp_path, monkeypatch, number):
    tiny.run(tmp_path / "whole")
    with monkeypatch.context() as patch:
        tiny.signal_in_call(patch, 2, trainer, "learning_rate", number)
        stopped = tiny.stopped_run(tmp_path / "stopped")
    last = tmp_path / "stopped/checkpoints/last.pt"
    assert str(stopped) == f"stopped at step 2, saved {last}; --resume continues"
    assert stopped.signal_number == number
    assert torch.load(last, weights_only=True)["position"]["step"] == 2
    tiny.run(tmp_path / "stopped", resume=True)
    tiny.assert_same_outcome(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.slow
def test_a_signal_during_validation_loses_nothing(few_images, tmp_path, monkeypatch):
    tiny.run(tmp_path / "whole")
    with monkeypatch.context() as patch:
        tiny.signal_in_call(patch, 1, evaluation, "evaluate")
        assert "stopped at step 3" in str(tiny.stopped_run(tmp_path / "stopped"))
    tiny.run(tmp_path / "stopped", resume=True)
    tiny.assert_same_outcome(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.slow
def test_a_signal_during_the_final_test_leaves_the_last_epoch_as_it_was(few_images, tmp_path, monkeypatch):
    """While another checkpoint is being tested the model holds that one's weights: they must not be saved as
    the last.
    """
    settings = {"epochs": 3, "seed": 1, "ensemble": 2}
    whole = tiny.run(tmp_path / "whole", **settings)
    assert whole.result["checkpoints"]["best-average"]["epoch"] < 3
    with monkeypatch.context() as patch:
        # Three validations, the test of the last epoch, then that of another.
        tiny.signal_in_call(patch, 5, evaluation, "evaluate")
        assert "stopped at step 9" in str(tiny.stopped_run(tmp_path / "stopped", **settings))
    tiny.run(tmp_path / "stopped", resume=True, **settings)
    tiny.assert_same_outcome(tmp_path / "stopped", tmp_path / "whole")


def test_signal_handlers_are_put_back(few_images, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    tiny.run(tmp_path / "run", epochs=1)
    assert signal.getsignal(signal.SIGTERM) is before


def test_training_works_outside_the_main_thread(few_images, tmp_path):
    results = []
    thread = threading.Thread(target=lambda: results.append(tiny.run(tmp_path / "run", epochs=1)))
    thread.start()
    thread.join()
    assert results[0].result["finished"]


@pytest.mark.slow
def test_a_damaged_checkpoint_is_replaced_by_the_previous_one(few_images, tmp_path, capsys, monkeypatch):
    tiny.run(tmp_path / "whole")
    tiny.run_until(monkeypatch, 5, tmp_path / "run")
    last = tmp_path / "run/checkpoints/last.pt"
    last.write_bytes(last.read_bytes()[:-1000])
    train(tiny.tiny_config(tmp_path / "run"), resume=True)
    assert "is damaged" in capsys.readouterr().out
    tiny.assert_same_outcome(tmp_path / "run", tmp_path / "whole")


def test_a_finished_run_is_returned_as_it_is(few_images, tmp_path):
    first = tiny.run(tmp_path / "run", epochs=1)
    before = (tmp_path / "run/result.json").stat().st_mtime_ns
    again = tiny.run(tmp_path / "run", epochs=1, resume=True)
    assert again.result == first.result
    assert (tmp_path / "run/result.json").stat().st_mtime_ns == before


@pytest.mark.slow
def test_another_thread_count_is_refused_unless_forced(few_images, tmp_path, monkeypatch):
    tiny.run_until(monkeypatch, 2, tmp_path / "run")
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    with pytest.raises(InputError, match=rf"threads \(was {threads}, now {threads + 1}\) changed.*--force"):
        tiny.run(tmp_path / "run", resume=True)
    forced = train(tiny.tiny_config(tmp_path / "run"), resume=True, force=True, quiet=True)
    assert forced.result["finished"]


def test_another_instruction_set_is_refused(few_images, tmp_path, monkeypatch):
    tiny.run_until(monkeypatch, 2, tmp_path / "run")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "ABACUS")
    with pytest.raises(InputError, match="instructions"):
        tiny.run(tmp_path / "run", resume=True)
