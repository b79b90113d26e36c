"""Exact resume: a run killed at any moment and continued is, bit for bit, the run that was never interrupted."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from cfol_fast.errors import InputError, Stopped
from cfol_fast.training import loop
from tests.training import tiny
from tests.training.tiny import stop_after

ROOT = Path(__file__).parents[2]


def test_a_run_killed_at_ten_random_points_ends_like_the_uninterrupted_one(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.training.killed_run", str(tmp_path), "2024"]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert len(process.stdout.splitlines()) == 10
    for index in range(10):
        tiny.assert_same_outcome(tmp_path / f"killed-{index}", tmp_path / "whole")
        left = [path for path in (tmp_path / f"killed-{index}").rglob("*") if path.suffix == ".tmp"]
        assert not left, "the killed process left temporary files"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_step_saves_and_leaves(few_images, tmp_path, monkeypatch, number):
    loop.train(tiny.tiny_config(tmp_path / "whole"), quiet=True)
    with monkeypatch.context() as patch:
        stop_after(patch, 2, number)
        with pytest.raises(
            Stopped, match=r"stopped at step 2, saved .*last.pt; --resume continues"
        ) as stopped:
            loop.train(tiny.tiny_config(tmp_path / "stopped"), quiet=True)
    assert stopped.value.signal_number == number
    assert torch.load(tmp_path / "stopped/checkpoints/last.pt", weights_only=True)["position"]["step"] == 2
    loop.train(tiny.tiny_config(tmp_path / "stopped"), resume=True, quiet=True)
    tiny.assert_same_outcome(tmp_path / "stopped", tmp_path / "whole")


def test_a_signal_during_validation_loses_nothing(few_images, tmp_path, monkeypatch):
    loop.train(tiny.tiny_config(tmp_path / "whole"), quiet=True)
    with monkeypatch.context() as patch:
        original = loop.validation.evaluation.evaluate

        def interrupted(*args, **options):
            os.kill(os.getpid(), signal.SIGTERM)
            return original(*args, **options)

        patch.setattr(loop.validation.evaluation, "evaluate", interrupted)
        with pytest.raises(Stopped, match="stopped at step 3"):
            loop.train(tiny.tiny_config(tmp_path / "stopped"), quiet=True)
    loop.train(tiny.tiny_config(tmp_path / "stopped"), resume=True, quiet=True)
    tiny.assert_same_outcome(tmp_path / "stopped", tmp_path / "whole")


def test_a_signal_during_the_final_test_leaves_the_last_epoch_as_it_was(few_images, tmp_path, monkeypatch):
    """While another checkpoint is being tested the model holds that one's weights: they must not be saved as the last."""
    loop.train(tiny.tiny_config(tmp_path / "whole", epochs=3, seed=1, ensemble=2), quiet=True)
    assert (
        json.loads((tmp_path / "whole/result.json").read_text())["checkpoints"]["best-average"]["epoch"] < 3
    )
    with monkeypatch.context() as patch:
        original = loop.validation.evaluation.evaluate
        calls = []

        def interrupted(*args, **options):
            calls.append(1)
            if len(calls) == 5:  # three validations, the test of the last epoch, then that of another
                os.kill(os.getpid(), signal.SIGTERM)
            return original(*args, **options)

        patch.setattr(loop.validation.evaluation, "evaluate", interrupted)
        with pytest.raises(Stopped, match="stopped at step 9"):
            loop.train(tiny.tiny_config(tmp_path / "stopped", epochs=3, seed=1, ensemble=2), quiet=True)
    loop.train(tiny.tiny_config(tmp_path / "stopped", epochs=3, seed=1, ensemble=2), resume=True, quiet=True)
    tiny.assert_same_outcome(tmp_path / "stopped", tmp_path / "whole")


def test_signal_handlers_are_put_back(few_images, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    loop.train(tiny.tiny_config(tmp_path / "run", epochs=1), quiet=True)
    assert signal.getsignal(signal.SIGTERM) is before


def test_training_works_outside_the_main_thread(few_images, tmp_path):
    results = []
    thread = threading.Thread(
        target=lambda: results.append(loop.train(tiny.tiny_config(tmp_path / "run", epochs=1), quiet=True))
    )
    thread.start()
    thread.join()
    assert results[0].result["finished"]


def test_a_damaged_checkpoint_is_replaced_by_the_previous_one(few_images, tmp_path, capsys, monkeypatch):
    loop.train(tiny.tiny_config(tmp_path / "whole"), quiet=True)
    with monkeypatch.context() as patch:
        stop_after(patch, 5, signal.SIGTERM)
        with pytest.raises(Stopped):
            loop.train(tiny.tiny_config(tmp_path / "run"), quiet=True)
    last = tmp_path / "run/checkpoints/last.pt"
    last.write_bytes(last.read_bytes()[:-1000])
    loop.train(tiny.tiny_config(tmp_path / "run"), resume=True)
    assert "is damaged" in capsys.readouterr().out
    tiny.assert_same_outcome(tmp_path / "run", tmp_path / "whole")


def test_a_finished_run_is_returned_as_it_is(few_images, tmp_path):
    first = loop.train(tiny.tiny_config(tmp_path / "run", epochs=1), quiet=True)
    before = (tmp_path / "run/result.json").stat().st_mtime_ns
    again = loop.train(tiny.tiny_config(tmp_path / "run", epochs=1), resume=True, quiet=True)
    assert again.result == first.result
    assert (tmp_path / "run/result.json").stat().st_mtime_ns == before


def test_another_thread_count_is_refused_unless_forced(few_images, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 2, signal.SIGTERM)
        with pytest.raises(Stopped):
            loop.train(tiny.tiny_config(tmp_path / "run"), quiet=True)
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    with pytest.raises(InputError, match=rf"threads \(was {threads}, now {threads + 1}\) changed.*--force"):
        loop.train(tiny.tiny_config(tmp_path / "run"), resume=True, quiet=True)
    assert loop.train(tiny.tiny_config(tmp_path / "run"), resume=True, force=True, quiet=True).result[
        "finished"
    ]


def test_another_instruction_set_is_refused(few_images, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 2, signal.SIGTERM)
        with pytest.raises(Stopped):
            loop.train(tiny.tiny_config(tmp_path / "run"), quiet=True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "ABACUS")
    with pytest.raises(InputError, match="instructions"):
        loop.train(tiny.tiny_config(tmp_path / "run"), resume=True, quiet=True)
