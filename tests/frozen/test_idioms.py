"""The table of habits in docs/fast-attack.md is true: each runs fast, plainly or ends in an error, and the
attack is the plain one.
"""

from __future__ import annotations

import pytest

from cfol_fast.attacks import how
from tests.frozen import grammar, idioms
from tests.frozen.grammar import Case
from tests.frozen.idioms import ERROR, IDIOMS

pytestmark = pytest.mark.filterwarnings("ignore")
RUNNING = [name for name, idiom in IDIOMS.items() if idiom.runs != ERROR]
FAILING = [name for name, idiom in IDIOMS.items() if idiom.runs == ERROR]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * IDIOMS[name].slow) for name in RUNNING]
)
def test_it_runs_as_the_table_says_and_finds_what_the_model_itself_finds(name: str) -> None:
    case = Case(idiom=name)
    fast, plain, (x, y) = case.build(), case.build(), case.batch()
    for images in (x, 1 - x, x):
        grammar.check_equal(fast, plain, images, y)
    assert how(fast).partition(":")[0] == IDIOMS[name].runs, how(fast)


@pytest.mark.parametrize("name", FAILING)
def test_it_is_an_error_of_the_same_type_with_plain_passes(name: str) -> None:
    case = Case(idiom=name)
    x, y = case.batch()
    errors = []
    for fast in (True, False):
        with pytest.raises((RuntimeError, TypeError, ValueError)) as caught:
            grammar.attacked(case.build(), x, y, fast)
        errors.append(caught.type)
    assert errors[0] is errors[1]


def test_the_page_has_the_table() -> None:
    """If not: `python -m tests.frozen.idioms` writes it."""
    assert idioms.table() in idioms.PAGE.read_text()
