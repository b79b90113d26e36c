"""What may be skipped: tests that need a GPU, and outside of CI what the machine has no packages for.

What must be marked slow.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import NOT_IN_CHECK

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


STARTING = """
import subprocess
import sys
import pytest

def test_that_starts_a_python_and_is_not_marked():
    subprocess.run([sys.executable, "-c", ""], check=True)

@pytest.mark.slow
def test_that_starts_a_python_and_is_marked():
    subprocess.run([sys.executable, "-c", ""], check=True)
"""


def session(folder, code, ci=""):
    (folder / "test_one.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-c", "pyproject.toml"]
    environment = {**os.environ, "CI": ci, "PYTEST_ADDOPTS": ""}
    return subprocess.run([*command, str(folder)], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_what_starts_a_python_of_its_own_must_be_marked_slow(tmp_path):
    result = session(tmp_path, STARTING)
    assert "1 failed, 1 passed" in result.stdout
    assert "only a test marked slow may start a Python of its own" in result.stdout


def test_make_check_leaves_out_every_marker_but_none_else():
    """`slow` and what a machine may lack: a new marker has to be named in the Makefile and in
    conftest too.
    """
    markers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
    names = {marker.partition(":")[0] for marker in markers}
    left_out = re.search(r'-m "not (.*)" ', (ROOT / "Makefile").read_text())
    assert names == set(left_out[1].split(" and not ")) == set(NOT_IN_CHECK)


@pytest.mark.slow
@pytest.mark.parametrize(("ci", "status"), [("", 0), ("1", 1)])
def test_in_ci_only_gpu_tests_may_be_skipped(tmp_path, ci, status):
    result = session(tmp_path, CODE, ci)
    assert result.returncode == status, result.stdout
    assert "SKIPPED" in result.stdout
    lost = result.stdout.partition("skipped in CI")[2].partition("short test summary")[0]
    assert ("test_of_ffcv" in lost) == bool(ci)
    assert "test_of_the_gpu" not in lost
