"""Small models in other people's habits, changed between two attacks: the fast attack is the plain one, or it
is not fast.
"""

from __future__ import annotations

import pytest
import torch

from cfol_fast.frozen import proof, tracing
from tests.frozen import grammar
from tests.frozen.changes import CHANGES
from tests.frozen.grammar import Case
from tests.frozen.layers import FEATURES

# Sentences with each change; `make check` reads one of every seventh.
SENTENCES = 3
CHANGING = [name for name, change in CHANGES.items() if not change.neutral]


def sampled(names: list[str]) -> list:
    return [pytest.param(name, marks=() if i % 7 == 0 else pytest.mark.slow) for i, name in enumerate(names)]


pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("change", sampled(list(CHANGES)))
def test_fast_and_plain_attacks_agree_before_and_after_a_change(change: str, request) -> None:
    whole = any(mark.name == "slow" for mark in request.node.own_markers)
    for case in grammar.cases(change, SENTENCES if whole else 1):
        try:
            grammar.check(case)
        except Exception as error:
            error.add_note(str(case))
            raise


def test_the_grammar_is_wide() -> None:
    assert SENTENCES * sum(1 for i in range(len(CHANGES)) if i % 7) >= 300
    assert len(CHANGING) >= 25


@pytest.fixture
def without_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "current_fingerprint", lambda model, functions: ())


@pytest.fixture
def without_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "due", lambda record, case: False)


@pytest.mark.usefixtures("without_fingerprint")
@pytest.mark.parametrize("change", sampled(CHANGING))
def test_the_proof_alone_catches_a_change_at_the_second_call(change: str) -> None:
    check_one_change(change)


@pytest.mark.usefixtures("without_proof")
@pytest.mark.parametrize("change", sampled(CHANGING))
def test_the_fingerprint_alone_catches_a_change(change: str) -> None:
    check_one_change(change)


def check_one_change(change: str) -> None:
    case = Case(change=change)
    fast, plain, (x, y) = case.build(), case.build(), case.batch()
    with pytest.MonkeyPatch.context() as patch:
        before = grammar.check_equal(fast, plain, x, y)
        for model in (fast, plain):
            CHANGES[change].apply(model, patch)
        assert grammar.moved(before, grammar.check_equal(fast, plain, x, y))


def test_without_both_guards_most_changes_would_go_unseen(without_fingerprint, without_proof) -> None:
    """So the two tests above can fail. Weights are read anew at every call in any case."""
    unseen = set()
    for change in CHANGING[:40]:
        try:
            check_one_change(change)
        except AssertionError:
            unseen.add(change)
    assert {"number", "flag", "list appended", "key of a dict", "activation function", "__class__"} <= unseen


@pytest.mark.parametrize(("precision", "share"), [(torch.float32, 0.999), (torch.bfloat16, 0.98)])
@pytest.mark.slow
def test_in_lower_precision_nearly_all_pixels_go_the_same_way(precision: torch.dtype, share: float) -> None:
    """Rounding moves those whose gradient is near zero."""
    same, pixels = 0, 0
    for features in list(FEATURES)[::3]:
        case = Case(features, seed=1)
        x, y = (part.float() if part.is_floating_point() else part for part in case.batch())
        with torch.autocast("cpu", precision, enabled=precision is torch.bfloat16):
            found, wanted = (grammar.attacked(case.build().float(), x, y, fast)[0] for fast in (True, False))
        same += int(((found - wanted).abs() < 1e-5).sum())
        pixels += x.numel()
    assert same / pixels >= share
