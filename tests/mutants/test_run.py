"""The faults fit the sources of today, and the run that plants them says what it found, and when it need not
run.
"""

import pytest

from tests.mutants import run

FAULT = """
tests = ["tests/test_limit.py"]

[[fault]]
operator = "move a bound by one"
file = "cfol_fast/limit.py"
find = "value < 10"
replace = "value <= 10"

[[fault]]
operator = "another message"
file = "cfol_fast/limit.py"
find = "too large"
replace = "too big"
"""
TEST = """
import pytest
from cfol_fast.limit import check

def test_the_first_value_that_is_too_large_is_ten():
    assert check(9) == 9
    with pytest.raises(ValueError):
        check(10)
"""
LIMIT = """
def check(value):
    if value < 10:
        return value
    raise ValueError("too large")
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of one module, one test and two faults, the second of which no test finds."""
    for name, text in {
        "pyproject.toml": "",
        "cfol_fast/__init__.py": "",
        "cfol_fast/limit.py": LIMIT,
        "csrc/one.h": "int one();",
        "tests/test_limit.py": TEST,
        "tests/native/building.py": "",
        "tests/emu/exercise.h": "",
        "tests/reference/philox.py": "",
        "tests/mutants/faults/limit.toml": FAULT,
        "README.md": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    return tmp_path


def make_all_found(project):
    faults = project / "tests" / "mutants" / "faults" / "limit.toml"
    faults.write_text(FAULT + 'equivalent = "no test reads messages"\n')


def test_every_fault_stands_once_in_its_file_and_its_tests_exist():
    faults = run.load_faults()
    assert len(faults) > 60
    for fault in faults:
        assert (run.ROOT / fault.file).read_text().count(fault.find) == 1, fault
        assert fault.find != fault.replace
        assert all((run.ROOT / test.partition("::")[0]).exists() for test in fault.tests), fault


@pytest.mark.slow
def test_faults_in_python_are_planted_in_a_copy_and_found_by_the_tests_they_name(project, capsys):
    assert run.main([]) == 1
    table = (project / "tests" / "mutants.md").read_text()
    assert "tests/test_limit.py::test_the_first_value_that_is_too_large_is_ten" in table
    assert "1 of 2 found" in table
    assert (project / "cfol_fast" / "limit.py").read_text() == LIMIT
    # a fault that nothing finds is looked for again in the next run
    assert run.committed_hash() == ""


@pytest.mark.slow
def test_a_test_that_fails_anyway_finds_nothing(project, capsys):
    (project / "tests" / "test_limit.py").write_text(TEST + "    assert False\n")
    assert run.main([]) == 1
    assert "fail without any fault" in capsys.readouterr().out
    assert not (project / "tests" / "mutants.md").exists()


@pytest.mark.slow
def test_faults_are_planted_again_only_if_something_changed(project, capsys, monkeypatch):
    make_all_found(project)
    assert run.main(["--if-changed"]) == 0
    assert run.committed_hash() == run.dependency_hash(run.load_faults())
    planted = []
    monkeypatch.setattr(run, "found_by", lambda fault: planted.append(fault) or "a test")
    monkeypatch.setattr(run, "failing_without_a_fault", lambda faults, jobs: [])
    assert run.main(["--if-changed"]) == 0
    assert not planted
    assert "not again" in capsys.readouterr().out
    assert run.main([]) == 0
    assert len(planted) == 2
    (project / "csrc" / "one.h").write_text("int one(int);")
    assert run.main(["--if-changed"]) == 0
    assert len(planted) == 4


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("cfol_fast/limit.py", True),
        ("csrc/one.h", True),
        ("csrc/cuda/another.cu", True),
        ("tests/test_limit.py", True),
        ("tests/conftest.py", True),
        ("tests/native/building.py", True),
        ("tests/emu/exercise.h", True),
        ("tests/reference/philox.py", True),
        ("README.md", False),
        ("cfol_fast/another.py", False),
        ("tests/mutants.md", False),
    ],
)
def test_the_hash_changes_with_every_file_that_the_faults_depend_on(project, name, counts):
    before = run.dependency_hash(run.load_faults())
    path = project / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("something else")
    assert (run.dependency_hash(run.load_faults()) != before) == counts


def test_a_table_of_files_that_changed_meanwhile_is_not_written(project, capsys, monkeypatch):
    monkeypatch.setattr(run, "failing_without_a_fault", lambda faults, jobs: [])
    monkeypatch.setattr(
        run, "found_by", lambda fault: (project / "csrc" / "one.h").write_text("int two();") and "a test"
    )
    assert run.main([]) == 1
    assert not (project / "tests" / "mutants.md").exists()


@pytest.mark.slow
def test_the_faults_of_another_file_are_planted_alone_and_write_no_table(project, tmp_path, capsys):
    other = tmp_path / "mine.toml"
    other.write_text(FAULT.replace("value <= 10", "value < 9").replace("another message", "a sentence"))
    assert run.main(["--jobs", "1", "--faults", str(other)]) == 1
    output = capsys.readouterr().out
    assert "a sentence, cfol_fast/limit.py:5: NOT FOUND" in output
    assert "1 passed, 1 failed" in output
    assert not (project / "tests" / "mutants.md").exists()
