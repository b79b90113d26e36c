"""The GPU self-test, as far as it can run without one."""

import json
import subprocess
from pathlib import Path

import pytest

from cfol_fast.commands import gpu_check
from cfol_fast.errors import InputError


def test_without_a_gpu_it_says_so(tmp_path):
    with pytest.raises(InputError, match="there is none"):
        gpu_check.check(tmp_path / "gpu-report.json", {"cuda": {"trouble": "there is none"}})
    assert not list(tmp_path.iterdir())


def test_results_are_read_with_their_outcome(tmp_path):
    path = tmp_path / "results.xml"
    path.write_text(
        '<testsuites><testsuite><testcase classname="a" name="good"/>'
        '<testcase classname="a" name="bad"><failure message="1 != 2"/></testcase></testsuite></testsuites>'
    )
    rows = gpu_check.read_results(path)
    assert [(r["name"], r["outcome"]) for r in rows] == [("a::good", "passed"), ("a::bad", "failure")]
    assert rows[1]["message"] == "1 != 2"


def test_the_tests_are_found_in_a_checkout():
    assert (gpu_check.test_folder() / "gpu" / "test_ops_on_the_device.py").exists()


def test_it_may_be_started_from_any_folder(tmp_path, monkeypatch):
    def pytest_there(command, cwd):
        results = cwd / command[-1].removeprefix("--junitxml=")
        results.write_text('<testsuite><testcase classname="a" name="good"/></testsuite>')
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu_check.subprocess, "run", pytest_there)
    monkeypatch.setattr(gpu_check, "test_folder", lambda: tmp_path / "checkout" / "tests")
    monkeypatch.setattr(gpu_check, "measure", lambda device: {})
    (tmp_path / "checkout" / "tests").mkdir(parents=True)
    assert gpu_check.check(Path("gpu-report.json"), {"cuda": {"trouble": None}}) == 0
    assert json.loads((tmp_path / "gpu-report.json").read_text())["tests"][0]["outcome"] == "passed"
