"""Every question runs on a tiny size and answers in the form of the results files.

How fast anything is, is not tested here.
"""

import importlib
import json
import math
import subprocess
import sys

import pytest
import torch

from benchmarks import quick, readme, startup, step_profile, stream_memory
from benchmarks.__main__ import QUESTIONS, document
from benchmarks.machine import RESULTS, instructions
from benchmarks.rows import at_most, faster, markdown
from benchmarks.steps import Problem
from benchmarks.timing import Timing, interleaved

pytestmark = pytest.mark.slow

FORM = ["name", "against", "ratio", "target", "ours_seconds", "theirs_seconds", "note", "question"]


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    """Benchmarks set torch's threads; the other tests keep theirs."""
    before = torch.get_num_threads()
    monkeypatch.setattr("benchmarks.timing.THREADS", 1)
    yield
    torch.set_num_threads(before)


def check_form(text: str) -> None:
    answer = json.loads(text)
    assert list(answer) == ["machine", "versions", "questions"]
    assert answer["versions"]["torch"] is not None
    for row in answer["questions"]:
        assert list(row) == FORM
        # Without a ratio the note says why.
        assert row["ratio"] is None or (math.isfinite(row["ratio"]) and row["ratio"] >= 0)
        assert row["target"] is None or row["target"].split()[0] in (">=", "<=")
        assert all(row[key] is None or row[key] > 0 for key in ("ours_seconds", "theirs_seconds"))
        assert row["name"]
        assert row["against"]
        assert row["note"]


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_runs_and_its_json_has_the_form(question):
    rows = importlib.import_module(f"benchmarks.{question}").measure(True)
    assert rows or (question == "gpu" and not torch.cuda.is_available())
    check_form(json.dumps(document(rows), allow_nan=False))
    assert len(markdown(rows).splitlines()) == len(rows) + 2


@pytest.mark.slow
@pytest.mark.ffcv
def test_a_folder_of_photographs_is_converted_and_trained_on_in_bounded_memory():
    (row,) = stream_memory.measure(True)
    check_form(json.dumps(document([row]), allow_nan=False))
    assert row.reached


def test_the_quick_questions_are_five(capsys):
    rows = quick.measure(True)
    assert len(rows) == 5
    check_form(json.dumps(document(rows), allow_nan=False))
    assert instructions() in capsys.readouterr().out


def test_the_profile_sorts_the_whole_step_into_groups():
    text = step_profile.table(Problem("resnet18@0.125", batch=4, images=100, steps=2), 1)
    assert "| our ops: input gradient of the first layer |" in text
    shares = [float(line.split("|")[5].strip(" %")) for line in text.splitlines() if line.count("%") == 2]
    assert sum(shares) == pytest.approx(100, abs=1)


def test_neither_side_of_the_first_step_takes_torch_down(tmp_path):
    told = "import atexit; atexit.register(print, 'the end of Python')"
    assert startup.run("-c", told + startup.READ_DATA, startup.IMAGES) == ""
    assert startup.run("-c", told + startup.TRAIN, str(tmp_path / "run")) == ""


def test_a_question_of_its_own_writes_its_rows_where_it_is_told(tmp_path):
    answer = tmp_path / "rows.json"
    command = [sys.executable, "-m", "benchmarks.pgd_step", "--tiny", "--json", str(answer)]
    subprocess.run(command, check=True, cwd=RESULTS.parent.parent, capture_output=True)
    assert [row["name"] for row in json.loads(answer.read_text())] == ["PGD step op, 4x3x8x8"] * 2


def test_contestants_take_turns_and_each_repetition_begins_with_another():
    order = []
    interleaved({name: (lambda name=name: order.append(name)) for name in "abc"}, 3, warm_up=0)
    assert "".join(order) == "abcbcacab"


def test_warm_up_is_not_timed():
    calls = []
    timings = interleaved({"a": lambda: calls.append(1)}, 2, warm_up=3)
    assert len(calls) == 5
    assert len(timings["a"].wall) == len(timings["a"].cpu) == 2


def test_faster_takes_the_minimum_and_says_the_median():
    row = faster(
        "q", "them", Timing([2.0, 1.0, 9.0], [1.0] * 3), Timing([3.0, 4.0, 8.0], [1.0] * 3), 2.5, per=10
    )
    assert (row.ratio, row.ours_seconds, row.theirs_seconds) == (3.0, 0.1, 0.3)
    assert row.target == ">= 2.5"
    assert row.reached is True
    assert "medians 2.00x" in row.note


def test_a_target_from_above_is_missed_by_more():
    assert at_most("q", "them", 1.2, 1.1, "note").reached is False
    assert at_most("q", "them", 1.0, 1.1, "note").reached is True


def test_the_readme_files_show_the_stored_results():
    for (path, name), wanted in readme.sections(readme.stored()).items():
        begin, end = readme.marks(name)
        assert path.read_text(encoding="utf-8").split(begin)[1].split(end)[0].strip() == wanted


def test_every_results_file_has_its_page():
    pages = {path.name: path.read_text(encoding="utf-8") for path in RESULTS.glob("*.md")}
    assert pages == {f"{each['machine']['name']}.md": readme.page(each) for each in readme.stored()}


def test_a_results_file_is_named_after_machine_and_instructions():
    files = {path.stem for path in RESULTS.glob("*.json") if path.name not in readme.OTHERS}
    assert files == {each["machine"]["name"] for each in readme.stored()}
    for each in readme.stored():
        assert each["machine"]["name"].endswith(each["machine"]["instructions"].lower().replace("-", ""))


def test_every_target_that_was_missed_is_explained():
    assert readme.unexplained(readme.stored(), readme.HERE.read_text(encoding="utf-8")) == []
