"""Every number of a configuration has its limits, and what lies outside is refused by the field's name."""

import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfol_fast.commands.main import main
from cfol_fast.errors import InputError
from cfol_fast.methods import METHODS
from cfol_fast.runs.config import TrainConfig, to_dict
from cfol_fast.runs.config import settings as known_settings
from cfol_fast.runs.open_settings import merged
from cfol_fast.runs.optimizers import OPTIMIZERS

NO_NUMBERS = ["inf", "-inf", "nan", "1e400", "9" * 400, f"1/{'3' * 400}", "1/0", "", "[1"]


def number_of(kind: typing.Any) -> type | None:
    """The kind of number that a setting takes; a tuple counts as its items."""
    return next((item for item in (kind, *typing.get_args(kind)) if item in (int, float)), None)


NUMERIC = [key for key, chosen in known_settings().items() if number_of(chosen.kind)]


def completed(key: str, value: object) -> TrainConfig:
    return TrainConfig({key: value})


def test_every_number_of_the_configuration_has_limits():
    limits = {key: chosen.limits for key, chosen in known_settings().items() if chosen.limits}
    assert set(NUMERIC) == set(limits)
    for key, allowed in limits.items():
        assert allowed.whole == (number_of(known_settings()[key].kind) is int), key


def test_every_word_that_has_choices_is_held_to_them():
    chosen = {key: found.words for key, found in known_settings().items() if found.words}
    assert chosen["optimizer.name"] == tuple(OPTIMIZERS)
    assert len(chosen) >= 10
    for key, words in chosen.items():
        default = known_settings()[key].default
        assert default is None or default in words
        # It belongs to --init, without which it is refused anyway.
        needed = {"model": {"init": "weights.pt"}} if key == "model.init_normalize" else {}
        with pytest.raises(InputError, match=rf"{key} must be one of {', '.join(words)}, got 'sideways'"):
            TrainConfig(needed, {key: "sideways"})


@settings(derandomize=True, deadline=None)
@given(
    st.sampled_from(NUMERIC), st.sampled_from([*NO_NUMBERS, float("inf"), float("nan"), [], {"a": 1}, True])
)
def test_what_is_no_finite_number_is_refused_by_name(key, value):
    # A list of milestones may be empty, and its brackets may be left out.
    if key == "optimizer.milestones" and value in ("", [], "[1"):
        return
    with pytest.raises(InputError, match=key):
        completed(key, value)


@settings(derandomize=True, deadline=None)
@given(st.sampled_from(NUMERIC), st.sampled_from([-1, "-1", 1e99, "1e99", 10**400]))
def test_what_is_far_outside_is_refused_by_name(key, value):
    with pytest.raises(InputError, match=key):
        completed(key, value)


@settings(derandomize=True, deadline=None)
@given(
    st.sampled_from([(m, name) for m, row in METHODS.items() for name in row.defaults]),
    st.sampled_from(NO_NUMBERS[:6]),
)
def test_a_parameter_that_is_no_finite_number_never_reaches_the_configuration(parameter, text):
    method, name = parameter
    given = merged({"method": method, f"params.{name}": text})
    # A word: the method says what it takes.
    assert isinstance(given[f"params.{name}"], str)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (("optimizer.decay", -1), "optimizer.decay must be above 0, got -1"),
        (("optimizer.decay", 2), "optimizer.decay must be at most 1, got 2"),
        (("optimizer.milestones", [-3, 4]), "optimizer.milestones must be at least 0, got -3"),
        (("optimizer.milestones", [4, 3]), "optimizer.milestones must not fall"),
        (
            ("attack.eps", 5),
            "attack.eps must be at most 1 for linf, .* got 5; 5/255 is written as a fraction",
        ),
        (("test.step", 0), "test.step must be above 0 where eps is, got 0"),
        (("data.lag", "1e99"), "data.lag must be at most 1,000"),
        (("seed", 2**63), "seed must be at most 9,223,372,036,854,775,807"),
        (("device", "meta"), "device meta is not supported"),
        (("params.eta", 1e300), "eta must be a number of at most 1e"),
        (("data.name", "x" * 5000), "data.name must be a text of at most 4096 characters"),
    ],
)
def test_what_makes_no_sense_is_refused(assignment, message):
    with pytest.raises(InputError, match=message):
        completed(*assignment)


def test_an_l2_radius_may_be_larger_than_a_pixel_and_eps_0_needs_no_step():
    assert TrainConfig(attack={"norm": "l2", "eps": 5}).attack.eps == 5
    assert completed("attack.eps", 0).attack.step == 0


def test_the_largest_seed_keeps_its_last_digit():
    assert completed("seed", str(2**63 - 1)).seed == 2**63 - 1


def test_a_completed_configuration_is_within_its_limits():
    for method in METHODS:
        done = TrainConfig(method=method, epochs=1)
        assert TrainConfig(to_dict(done)) == done


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "cfol", "--threads", "100000"], "--threads must be at most 1,024, got 100000"),
        (["train", "cfol", "--threads", "many"], "--threads must be a whole number, got 'many'"),
        (["eval", "x", "--eps", "nan"], "--eps must be a number such as 0.1, 1e-4 or 8/255, got 'nan'"),
        (["eval", "x", "--limit", "1e99"], "--limit must be at most 1,000,000"),
        (["demo", "--seed", "9" * 400], "--seed must be a whole number, got '999"),
        (["reproduce", "--parallel", "99999"], "--parallel must be at most 1,024"),
    ],
)
def test_an_option_is_refused_by_its_name_on_one_line(arguments, said, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
