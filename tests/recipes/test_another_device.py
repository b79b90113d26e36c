"""A recipe that was begun on another device goes on with the one that is there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cfol_fast.errors import InputError
from cfol_fast.recipes.planning import Job, job
from cfol_fast.recipes.runner import carry_out
from cfol_fast.runs import checkpoints
from cfol_fast.runs.run_folder import read_config

pytestmark = pytest.mark.slow

UNFINISHED = Path(__file__).parents[1] / "runs" / "stored_runs" / "unfinished"


def begun_elsewhere(out: Path, **arithmetic: object) -> Job:
    """A recipe's run that stopped after some steps, on a device that rounds as `arithmetic` says."""
    begun = job(read_config(UNFINISHED))
    folder = begun.folder(out)
    shutil.copytree(UNFINISHED, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "device": "cuda:0"}))
    last = folder / "checkpoints" / "last.pt"
    checkpoints.write(last, {**checkpoints.read(last), "arithmetic": arithmetic})
    return begun


def test_a_run_begun_on_a_gpu_is_finished_on_the_cpu(tmp_path, capsys):
    begun = begun_elsewhere(tmp_path, device="cuda", threads=8, instructions="AVX2", gpu="NVIDIA H100")
    carry_out(begun, tmp_path)
    assert begun.finished(tmp_path)
    assert "device (was cuda, now cpu)" in capsys.readouterr().out


def test_a_run_begun_with_other_threads_needs_force(tmp_path):
    begun = begun_elsewhere(tmp_path, device="cpu", threads=8)
    with pytest.raises(InputError, match=r"threads \(was 8.*--force"):
        carry_out(begun, tmp_path)
    carry_out(begun, tmp_path, force=True)
    assert begun.finished(tmp_path)
