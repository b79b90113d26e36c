"""What may be skipped: tests that need a GPU, and outside of CI what the machine has no packages for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CODE = """
import importlib.util
import pytest
importlib.util.find_spec = lambda name: None

@pytest.mark.ffcv
def test_of_ffcv_where_there_is_none():
    assert False

@pytest.mark.gpu
def test_of_the_gpu():
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(("ci", "status"), [("", 0), ("1", 1)])
def test_in_ci_only_gpu_tests_may_be_skipped(tmp_path, ci, status):
    (tmp_path / "test_one.py").write_text(CODE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-c", "pyproject.toml"]
    environment = {**os.environ, "CI": ci, "PYTEST_ADDOPTS": ""}
    result = subprocess.run(
        [*command, str(tmp_path)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert result.returncode == status, result.stdout
    assert "SKIPPED" in result.stdout
    lost = result.stdout.partition("skipped in CI")[2].partition("short test summary")[0]
    assert ("test_of_ffcv" in lost) == bool(ci)
    assert "test_of_the_gpu" not in lost
