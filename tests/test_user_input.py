"""What a user typed is read in one place: numbers, parameters and misspelt names."""

from __future__ import annotations

import pytest

from cfol_fast.errors import InputError
from cfol_fast.user_input import did_you_mean, parse_number, parse_parameter


@pytest.mark.parametrize(
    ("text", "number"), [("8/255", 8 / 255), (" 1 / 3 ", 1 / 3), ("1e-4", 1e-4), ("0.5/255", 0.5 / 255)]
)
def test_numbers_and_fractions_are_read_exactly(text, number):
    assert parse_number(text) == number


@pytest.mark.parametrize(
    "text",
    ["", "eight", "1/0", "1/2/3", "8/", "inf", "nan", "1e400", "9" * 400, "1e999999/1e999999"],
)
def test_what_is_no_number_is_refused_with_examples(text):
    with pytest.raises(InputError, match="8/255"):
        parse_number(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("9/10", 0.9),
        ("True", True),
        ("none", None),
        ("[1, 0.5]", [1, 0.5]),
        ("empirical", "empirical"),
    ],
)
def test_a_parameter_is_read_as_what_it_looks_like(text, value):
    assert parse_parameter(text) == value
    assert type(parse_parameter(text)) is type(value)


def test_an_unknown_name_is_answered_with_the_nearest():
    assert did_you_mean("cflo", ["erm", "cfol"]) == "; did you mean 'cfol'?"
    assert did_you_mean("CFOL", ["erm", "cfol"]) == "; did you mean 'cfol'?"
    assert did_you_mean("epsilon", ["attack.step", "attack.eps"]) == "; did you mean 'attack.eps'?"


def test_a_name_that_is_near_to_none_is_answered_with_all():
    assert did_you_mean("xyz", ["erm", "cfol"]) == "; known are erm, cfol"
    assert did_you_mean("xyz", []) == "; there are none"
