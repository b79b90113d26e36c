"""The GPU self-test without a GPU: a fake pytest stands in for the processes, and the report is read after
each.
"""

import json
import subprocess
from pathlib import Path

import pytest

from cfol_fast.errors import InputError
from tools import gpu_check

FINE = {"cuda": {"trouble": None}}


class FakePytest:
    """Ends each process as the test says: a JUnit file or none, a status.

    Keeps the commands and what the report held then.
    """

    def __init__(self, report: Path):
        self.report, self.ends, self.seen = report, {}, []

    def __call__(self, command, cwd, env, **options):
        selection = command[3]
        content = json.loads(self.report.read_text())
        self.seen.append((selection, env.get("CUDA_LAUNCH_BLOCKING"), content))
        status, cases = self.ends.get(selection, (5, ""))
        if cases is not None:
            Path(command[-1].removeprefix("--junitxml=")).write_text(f"<testsuite>{cases}</testsuite>")
        return subprocess.CompletedProcess(command, status, "the last words", None)


GOOD = '<testcase classname="tests.gpu.test_a" name="good[cuda]"/>'
BAD = (
    '<testcase classname="tests.gpu.test_b.TestX" name="bad"><failure message="1 != 2">at line'
    " 3</failure></testcase>"
)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    fake = FakePytest(tmp_path / "gpu-report.json")
    monkeypatch.setattr(gpu_check.subprocess, "run", fake)
    monkeypatch.setattr(gpu_check, "test_files", lambda: ["tests/gpu/test_a.py", "tests/gpu/test_b.py"])
    monkeypatch.setattr(gpu_check, "PARTS", {"benchmark": lambda: {"speed": 1.0}})
    return fake


def read(fake):
    return json.loads(fake.report.read_text())


def test_without_a_gpu_it_says_so(tmp_path):
    with pytest.raises(InputError, match="there is none"):
        gpu_check.check(tmp_path / "gpu-report.json", {"cuda": {"trouble": "there is none"}})
    assert not list(tmp_path.iterdir())


def test_when_all_pass_the_report_says_so(fake):
    fake.ends = {"tests/gpu/test_a.py": (0, GOOD)}
    assert gpu_check.check(fake.report, FINE) == 0
    report = read(fake)
    assert (report["passed"], report["finished"], report["benchmark"]) == (True, True, {"speed": 1.0})
    assert report["tests"] == [{"name": "tests/gpu/test_a.py::good[cuda]", "outcome": "passed"}]


def test_the_report_is_there_before_the_first_test_and_grows_with_each_file(fake):
    fake.ends = {"tests/gpu/test_a.py": (0, GOOD)}
    gpu_check.check(fake.report, FINE)
    assert [(file, len(content["tests"])) for file, _, content in fake.seen] == [
        ("tests/gpu/test_a.py", 0),
        ("tests/gpu/test_b.py", 1),
    ]
    assert not any(content["finished"] or content["passed"] for _, _, content in fake.seen)


def test_a_process_that_dies_is_an_outcome_and_the_next_file_runs(fake):
    fake.ends = {"tests/gpu/test_a.py": (-11, None), "tests/gpu/test_b.py": (0, GOOD)}
    assert gpu_check.check(fake.report, FINE) == 1
    crashed, good = read(fake)["tests"]
    assert (crashed["name"], crashed["outcome"]) == ("tests/gpu/test_a.py", "crashed")
    assert "status -11" in crashed["message"]
    assert "the last words" in crashed["message"]
    assert good["outcome"] == "passed"


def test_a_failure_is_tried_again_alone_with_launches_that_wait(fake):
    name = "tests/gpu/test_b.py::TestX::bad"
    fake.ends = {"tests/gpu/test_b.py": (1, BAD), name: (1, BAD)}
    assert gpu_check.check(fake.report, FINE) == 1
    assert [(selection, blocking) for selection, blocking, _ in fake.seen][1:] == [
        ("tests/gpu/test_b.py", None),
        (name, "1"),
    ]
    (row,) = read(fake)["tests"]
    assert row["message"] == "1 != 2\nat line 3"
    assert row["again"] == [{"outcome": "failure", "message": "1 != 2\nat line 3"}]


def test_a_measurement_that_raises_leaves_the_tests_in_the_report(fake, monkeypatch):
    def broken():
        raise RuntimeError("out of memory")

    monkeypatch.setattr(gpu_check, "PARTS", {"benchmark": broken})
    fake.ends = {"tests/gpu/test_a.py": (0, GOOD)}
    assert gpu_check.check(fake.report, FINE) == 0
    report = read(fake)
    assert report["benchmark"] == {"trouble": "RuntimeError: out of memory"}
    assert len(report["tests"]) == 1


def test_no_test_at_all_has_not_passed(fake):
    assert gpu_check.check(fake.report, FINE) == 1
    assert read(fake)["passed"] is False


def test_the_files_are_those_with_tests_for_a_gpu():
    files = gpu_check.test_files()
    assert len(files) == len(set(files))
    assert files[0].startswith("tests/native/")
    for expected in ("tests/native/test_pgd.py", "tests/gpu/test_training_on_the_device.py"):
        assert expected in files
    assert "tests/data/ffcv/test_devices.py" in files


def test_it_may_be_started_from_any_folder(fake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fake.ends = {"tests/gpu/test_a.py": (0, GOOD)}
    assert gpu_check.check(Path("gpu-report.json"), FINE) == 0
    assert read(fake)["tests"][0]["outcome"] == "passed"


@pytest.mark.slow
def test_a_real_process_is_asked_for_the_gpu_tests_of_a_file():
    rows = gpu_check.run_tests("tests/gpu/test_ops_on_the_device.py")
    assert rows
    assert {row["outcome"] for row in rows} <= {"skipped", "passed"}
    assert all(row["name"].startswith("tests/gpu/test_ops_on_the_device.py::test_") for row in rows)


@pytest.mark.slow
def test_the_measurement_runs_here_too():
    assert all(value > 0 for value in gpu_check.measure("cpu", seconds=0.001, batch=1).values())
