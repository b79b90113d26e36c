"""Columns of text, and numbers with a sign."""

import pytest

from cfol_fast.plain_text import aligned, signed


def test_columns_are_as_wide_as_their_widest_cell():
    assert aligned([["name", "n"], None, ["a", "1000"], ["longer", "2"]]) == [
        "name       n",
        "──────  ────",
        "a       1000",
        "longer     2",
    ]


def test_colours_take_no_room_and_a_row_may_be_short():
    lines = aligned([["a", "22"], ["b"], ["c", "1"]], codes=[None, None, ["", "<"]], end=">")
    assert lines == ["a  22", "b", "c  < 1>"]


@pytest.mark.parametrize(
    ("number", "text"), [(2.04, "+2.0"), (-2.06, "\u22122.1"), (0.04, "0.0"), (-0.04, "0.0")]
)
def test_a_number_has_its_sign_unless_it_is_rounded_to_nothing(number, text):
    assert signed(number) == text
