"""What a results file keeps when some of its questions are asked again."""

import json
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks import __main__ as command
from benchmarks.__main__ import ask, kept, updated
from benchmarks.rows import Row


def test_asking_one_question_again_replaces_its_rows_and_no_others(tmp_path):
    old = [
        Row("a", "x", 1.0, None, 1.0, 1.0, "n"),
        Row("b", "y (the fastest peer)", 1.0, None, 1.0, 1.0, "n"),
    ]
    path = tmp_path / "machine.json"
    path.write_text(json.dumps({"questions": [asdict(row) for row in old]}))
    new = Row("b", "y", 2.0, None, 1.0, 1.0, "n")
    assert kept(path, [new]) == [old[0], new]


def test_a_question_asked_again_says_so_and_leaves_the_rest_as_it_was(tmp_path):
    old, path = Row("a", "x", 1.0, None, 1.0, 1.0, "n"), tmp_path / "machine.json"
    whole = {"machine": {"minutes": 9}, "versions": {"torch": "1"}, "questions": [asdict(old)]}
    path.write_text(json.dumps(whole))
    new = updated(path, [Row("a", "x", 2.0, None, 1.0, 1.0, "n")])
    assert (new["machine"], new["versions"]) == (whole["machine"], whole["versions"])
    assert new["questions"][0]["ratio"] == 2.0
    assert new["questions"][0]["note"].startswith("n; asked again on 20")
    assert updated(tmp_path / "none.json", [old])["questions"] == [asdict(old)]


def test_rows_of_one_run_join_its_file_unmarked(tmp_path):
    path, of = tmp_path / "machine.json", {"machine": {"began": "2026-01-01"}, "versions": {"torch": "1"}}
    rows = [Row(name, "x", 1.0, None, 1.0, 1.0, "n") for name in "ab"]
    path.write_text(json.dumps(updated(path, rows[:1], of)))
    assert updated(path, rows[1:], of) == {**of, "questions": [asdict(row) for row in rows]}


def test_what_a_question_no_longer_answers_goes_when_it_is_asked_again(tmp_path):
    def row(name, question=""):
        return Row(name, "x", 1.0, None, 1.0, 1.0, "n", question)

    path = tmp_path / "machine.json"
    old = [row("a", "pgd"), row("another name", "pgd"), row("b", "epoch"), row("before names were kept")]
    path.write_text(json.dumps({"questions": [asdict(each) for each in old]}))
    new = [replace(old[0], ratio=2.0), row("c", "pgd")]
    assert kept(path, new) == [new[0], old[2], old[3], new[1]]


def test_a_row_knows_its_question(tmp_path, monkeypatch):
    def start(module, cache, flag, answer):
        Path(answer).write_text(json.dumps([asdict(Row("a", "x", 1.0, None, 1.0, 1.0, "n"))]))

    monkeypatch.setattr(command, "start", start)
    assert [row.question for row in ask("pgd", False, tmp_path)] == ["pgd"]


def test_a_question_asked_again_with_other_packages_names_their_versions(tmp_path, monkeypatch):
    path, row = tmp_path / "machine.json", Row("a", "x", 1.0, None, 1.0, 1.0, "n")
    then = {"cfol_fast": "commit a", "torch": "2.14.1", "ffcv": "1.0.2", "numpy": "2"}
    path.write_text(json.dumps({"machine": {"began": "then"}, "versions": then, "questions": []}))
    now = {**then, "cfol_fast": "commit b", "torch": "2.15.0", "ffcv": None}
    for found, ending in ((then, "commit a"), (now, "commit b, torch 2.15.0, ffcv not installed")):
        monkeypatch.setattr(command, "versions", lambda found=found: found)
        assert updated(path, [row])["questions"][0]["note"].split(", ", 1)[1] == ending
