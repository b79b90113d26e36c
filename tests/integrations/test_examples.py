"""examples/: users of timm with Lightning and of Hugging Face's Trainer need at most ten changed lines, and
their programs run.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.examples.pairs import EXAMPLES, changed_lines, write_pictures

NAMES = ["lightning_timm", "hugging_face"]


def run(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](str(folder), 2)
    return capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_at_most_ten_lines_change(name: str) -> None:
    assert 0 < len(changed_lines(f"{name}.py", f"{name}_cfol.py")) <= 10


@pytest.mark.parametrize("name", NAMES)
def test_the_program_as_it_was_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "robust accuracy" in run(name, write_pictures(tmp_path / "data"), capsys)


@pytest.mark.parametrize("name", NAMES)
def test_the_program_with_cfol_trains_and_reports_every_class(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = run(f"{name}_cfol", write_pictures(tmp_path / "data"), capsys)
    for line in ("cat", "dog", "sign", "worst class"):
        assert f"\n{line} " in said
