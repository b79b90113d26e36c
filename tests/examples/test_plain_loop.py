"""examples/plain_loop_cfol.py: a user's own loop over an ImageFolder needs at most ten changed lines, and
runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.pairs import EXAMPLES, changed_lines, write_pictures

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_pictures(tmp_path)


def run(name: str, folder: Path) -> str:
    command = [sys.executable, str(EXAMPLES / name), str(folder), "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout


def test_at_most_ten_lines_change() -> None:
    assert 0 < len(changed_lines("plain_loop.py", "plain_loop_cfol.py")) <= 10


def test_the_loop_as_it_was_runs(folder: Path) -> None:
    assert "robust accuracy" in run("plain_loop.py", folder)


def test_the_loop_with_cfol_trains_and_reports_every_class(folder: Path) -> None:
    said = run("plain_loop_cfol.py", folder)
    assert "epoch 2: loss" in said
    for line in ("cat", "dog", "sign", "worst class"):
        assert f"\n{line} " in said
