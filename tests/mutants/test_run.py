"""The faults fit the sources of today, and the run that plants them says what it found, and when it need not
run.
"""

import pytest

from tests.mutants import run, verdicts

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
    # A fault that nothing finds is planted again in the next run.
    assert len(verdicts.kept(project / "tests" / "mutants.md")) == 1


@pytest.mark.slow
def test_a_test_that_fails_anyway_finds_nothing(project, capsys):
    (project / "tests" / "test_limit.py").write_text(TEST + "    assert False\n")
    assert run.main([]) == 1
    assert "fail without any fault" in capsys.readouterr().out
    assert not (project / "tests" / "mutants.md").exists()


OTHER = """
tests = ["tests/test_other.py"]

[[fault]]
operator = "another number"
file = "cfol_fast/other.py"
find = "value = 1"
replace = "value = 2"

[[fault]]
operator = "another number of a kernel"
file = "csrc/one.h"
find = "int one"
replace = "int two"
"""


@pytest.fixture
def planted(project, monkeypatch):
    """The operators of the faults that the next runs plant, each of which is found."""
    make_all_found(project)
    for name, text in {
        "cfol_fast/other.py": "value = 1",
        "tests/test_other.py": "from tests.shared import value",
        "tests/shared.py": "from tests import deeper",
        "tests/deeper.py": "",
        "tests/mutants/faults/other.toml": OTHER,
    }.items():
        (project / name).write_text(text)
    names = []
    monkeypatch.setattr(run, "found_by", lambda fault: names.append(fault.operator) or "a test")
    monkeypatch.setattr(run, "failing_without_a_fault", lambda faults, jobs: [])
    monkeypatch.setattr(run, "run_in", lambda *arguments, **variables: (0, ""))
    return names


LIMITS = {"move a bound by one", "another message"}
NUMBER, KERNEL = "another number", "another number of a kernel"


@pytest.mark.parametrize(
    ("name", "again"),
    [
        ("cfol_fast/limit.py", LIMITS),
        ("cfol_fast/other.py", {NUMBER}),
        ("cfol_fast/another.py", set()),
        ("cfol_fast/ops/one.py", {KERNEL}),
        ("csrc/one.h", {KERNEL}),
        ("csrc/cuda/another.cu", {KERNEL}),
        ("tests/test_limit.py", LIMITS),
        ("tests/test_other.py", {NUMBER, KERNEL}),
        ("tests/test_another.py", set()),
        ("tests/shared.py", {NUMBER, KERNEL}),
        ("tests/deeper.py", {NUMBER, KERNEL}),
        ("tests/conftest.py", {*LIMITS, NUMBER, KERNEL}),
        ("tests/native/building.py", {KERNEL}),
        ("tests/native/test_another.py", set()),
        ("tests/emu/exercise.h", {KERNEL}),
        ("tests/ptx/kernel.h", {KERNEL}),
        ("tests/reference/philox.py", {KERNEL}),
        ("README.md", set()),
    ],
)
def test_only_faults_of_which_something_changed_are_planted_again(project, planted, name, again):
    assert run.main(["--if-changed"]) == 0
    assert set(planted) == {*LIMITS, NUMBER, KERNEL}
    planted.clear()
    assert run.main(["--if-changed"]) == 0
    assert planted == []
    path = project / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((path.read_text() if path.exists() else "") + ("\n" if path.suffix != ".h" else "\n//"))
    assert run.main(["--if-changed"]) == 0
    assert set(planted) == again
    planted.clear()
    assert run.main(["--if-changed"]) == 0
    assert planted == []


def test_a_fault_that_is_changed_added_or_missed_is_planted(project, planted, monkeypatch):
    assert run.main([]) == 0
    planted.clear()
    faults = project / "tests" / "mutants" / "faults" / "other.toml"
    faults.write_text(OTHER.replace("value = 2", "value = 3"))
    assert run.main(["--if-changed"]) == 0
    assert planted == [NUMBER]
    planted.clear()
    extra = '[[fault]]\noperator = "a third"\nfile = "cfol_fast/other.py"\nfind = "value"\nreplace = "x"\n'
    faults.write_text(faults.read_text() + extra)
    with monkeypatch.context() as patch:
        patch.setattr(run, "found_by", lambda fault: planted.append(fault.operator) or "")
        assert run.main(["--if-changed"]) == 1
    assert planted == ["a third"]
    assert "**NOT FOUND**" in (project / "tests" / "mutants.md").read_text()
    assert run.main(["--if-changed"]) == 0
    assert planted == ["a third", "a third"]


def test_the_faults_of_some_files_write_their_rows_and_leave_the_others(project, planted):
    other = project / "tests" / "mutants" / "faults" / "other.toml"
    assert run.main(["--faults", str(other)]) == 0
    assert set(planted) == {NUMBER, KERNEL}
    assert (project / "tests" / "mutants.md").read_text().count("**not planted yet**") == 2
    planted.clear()
    assert run.main(["--if-changed"]) == 0
    assert set(planted) == LIMITS


@pytest.mark.slow
@pytest.mark.parametrize(("failures", "status"), [(2, 0), (3, 1)])
def test_a_fault_may_ask_for_several_tests_that_fail(project, failures, status):
    test = project / "tests" / "test_limit.py"
    test.write_text(
        TEST + "\ndef test_ten_again():\n    with pytest.raises(ValueError):\n        check(10)\n"
    )
    first = FAULT.partition('[[fault]]\noperator = "another message"')[0]
    faults = project / "tests" / "mutants" / "faults" / "limit.toml"
    faults.write_text(f"{first}failures = {failures}\n")
    assert run.main([]) == status


def test_a_table_of_files_that_changed_meanwhile_is_not_written(project, capsys, monkeypatch):
    monkeypatch.setattr(run, "failing_without_a_fault", lambda faults, jobs: [])
    monkeypatch.setattr(
        run, "found_by", lambda fault: (project / fault.file).write_text(LIMIT + "#") and "a test"
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
