"""The class bandits on classes of known errors: docs/bandit.md says what this shows of a few seeds."""

from __future__ import annotations

import json
import re

import pytest

from tools.bandit_simulation import BANDITS, ERRORS, ROOT, SIZES, Found, simulate


def found(bandit: str, errors: str, k: int = 100, draws: int = 9_728, seeds: int = 12) -> Found:
    return simulate(bandit, errors, k, draws, range(seeds))


@pytest.mark.slow
def test_of_a_hundred_classes_that_fail_the_baseline_finds_the_worst_and_the_papers_bandit_does_not() -> None:
    plain = found("none, eta of before", "hard")
    for name in ("running", "mean", "running, eta of before"):
        assert found(name, "hard").first >= 0.75
    assert plain.first <= 0.5
    assert plain.rank > 5
    assert found("running, eta of before", "hard").noise < 0.6 * plain.noise


@pytest.mark.slow
@pytest.mark.parametrize("errors", ERRORS)
def test_a_baseline_has_less_noise_at_the_same_step_size_whatever_the_errors_are(errors: str) -> None:
    plain = found("none, eta of before", errors)
    assert found("running, eta of before", errors).noise < plain.noise


@pytest.mark.slow
def test_a_baseline_of_each_class_has_less_noise_than_one_of_all_where_errors_differ() -> None:
    assert found("running", "spread").noise < found("mean", "spread").noise


@pytest.mark.slow
def test_implicit_exploration_is_a_baseline_of_one() -> None:
    """As good as ours where all fail, behind it where few fail."""
    assert found("Exp3-IX", "hard").first >= 0.75
    assert found("Exp3-IX", "easy").first < found("running", "easy").first


def test_ten_classes_that_fail_are_told_apart() -> None:
    assert found("running", "hard", k=10, seeds=5).first == 1


@pytest.mark.slow
def test_a_thousand_classes_are_told_apart() -> None:
    assert found("running", "hard", k=1000, draws=97_280, seeds=2).rank <= 2


def test_the_table_of_the_docs_is_that_of_its_file() -> None:
    kept = [Found(**row) for row in json.loads((ROOT / "docs/bandit-simulation.json").read_text())]
    assert {(one.k, one.errors, one.bandit) for one in kept} == {
        (k, errors, bandit) for k, _, _ in SIZES for errors in ERRORS for bandit in BANDITS
    }
    page = (ROOT / "docs/bandit.md").read_text()
    cells = re.findall(r"[\d.]+ / [\d.]+ / [\d.]+", page)
    assert len(cells) == len(kept)
    for one in kept:
        assert f"{one.rank:g} / {one.first:.2f} / {one.noise:.3f}" in cells
