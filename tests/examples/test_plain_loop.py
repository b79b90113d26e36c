"""examples/plain_loop_cfol.py: a user's own loop over an ImageFolder needs at most ten changed lines, and runs."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"


def code(name: str) -> list[str]:
    """The lines of an example below its docstring."""
    return (EXAMPLES / name).read_text().split('"""\n', 2)[1].splitlines()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of 12 x 12 pixels, each with a brightness of its own."""
    generator = torch.Generator().manual_seed(0)
    for part, count in (("train", 12), ("test", 6)):
        for c, name in enumerate(("cat", "dog", "sign")):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = torch.randint(80 * c, 80 * c + 60, (12, 12, 3), generator=generator).to(torch.uint8)
                Image.fromarray(pixels.numpy()).save(tmp_path / part / name / f"{i}.png")
    return tmp_path


def run(name: str, folder: Path) -> str:
    command = [sys.executable, str(EXAMPLES / name), str(folder), "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout


def test_at_most_ten_lines_change() -> None:
    before, after = code("plain_loop.py"), code("plain_loop_cfol.py")
    changed = [
        line
        for line in difflib.unified_diff(before, after, lineterm="", n=0)
        if line.startswith("+") and line[1:].strip()
    ]
    assert 0 < len(changed) - 1 <= 10


def test_the_loop_as_it_was_runs(folder: Path) -> None:
    assert "robust accuracy" in run("plain_loop.py", folder)


def test_the_loop_with_cfol_trains_and_reports_every_class(folder: Path) -> None:
    said = run("plain_loop_cfol.py", folder)
    assert "epoch 2: loss" in said
    for line in ("cat", "dog", "sign", "worst class"):
        assert f"\n{line} " in said
