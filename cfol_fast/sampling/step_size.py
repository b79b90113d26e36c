"""The bandits' step size: chosen from the length of the run, and told by what p can reach with it.

Whatever p drew an example, a draw adds eta times its class's error to w in expectation, since the mistake is
divided by p. So after N draws a class that fails D more often than the others is ahead by eta * D * N, and
the softmax follows: all rules here are this one line.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from cfol_fast import theory
from cfol_fast.errors import InputError

# How much more often the worst class fails than the others, under attack: 0.4 on CIFAR-10 (the paper) and on
# the demo's images.
GAP = 0.4
# The largest deviation of w by chance, at the end of a run.
LARGEST_NOISE = 0.5
# The variance of a loss in [0, 1], at most, about 0 and about its mean.
VARIANCE = {"none": 1.0, "mean": 0.25, "running": 0.25}
# By how much an eta may be below "auto" before the sampler warns: by whether the number of draws is known, or
# is taken to be `PASSES`.
FAR_FROM = {False: 5.0, True: 20.0}
# The length of a run of which nobody says how long it is: so many times the number of examples.
PASSES = 30


def draws_of(draws: int | None, size: int) -> int:
    """How many examples the run will draw: as said, or `PASSES` passes over `size` examples."""
    return PASSES * size if draws is None else _checked(draws)


def choose(
    eta: float | str, arms: int, C: float | None, automatic: Callable[[], float], proven: bool = True
) -> float:
    """The step size meant by `eta`: a positive number, "theory" (Theorem 1) or "auto" (the sampler's own rule
    for its draws). proven: whether Theorem 1 is about this sampler.
    """
    if eta == "theory" and not proven:
        raise InputError(
            "eta='theory' is the step size of Theorem 1, which is about the paper's bandit: take eta='auto'"
            " or a number, or baseline='none' and signal='training'"
        )
    if eta == "theory":
        return theory.step_size(arms, C)
    # A run that was begun with "theory" is continued with its number.
    if C is not None and eta != theory.step_size(arms, C):
        raise InputError(f"C belongs to eta='theory', got C={C!r} and eta={eta!r}: leave out C")
    if eta == "auto":
        return automatic()
    if isinstance(eta, bool) or not isinstance(eta, (int, float)) or not 0 < eta < math.inf:
        raise InputError(f"eta must be a positive number, 'auto' or 'theory', got {eta!r}")
    return float(eta)


def for_lead(k: int, draws: int) -> float:
    """A class that fails `GAP` more often than the others has half of the softmax after half of the draws,
    two thirds where k = 2.

    It has (k - 1) / k of it at the end.
    """
    return target_lead(k) / (GAP * _checked(draws))


def largest(draws: int, least_p: float, variance: float) -> float:
    """Beyond it chance would choose the class, not the errors.

    One mistake adds eta / p to w, which must stay below 1 (lemma 1's eta <= gamma / k), and all of them
    together must leave w with a deviation of at most `LARGEST_NOISE`. least_p: the smallest probability of a
    class. variance: of a loss about its baseline.
    """
    return min(least_p, LARGEST_NOISE / (draws * noise(draws, least_p, variance)))


def noise(draws: int, least_p: float, variance: float) -> float:
    """The deviation, at most, of a class's error as so many draws estimate it. variance: of a loss about its
    baseline.
    """
    return math.sqrt(variance / (_checked(draws) * least_p))


def resolution(draws: int, least_p: float, variance: float) -> float:
    """By how much the errors of two classes must differ to be two deviations apart after so many draws."""
    return 2 * math.sqrt(2) * noise(draws, least_p, variance)


def for_examples(draws: int, least_p: float) -> float:
    """An example that is always wrong weighs twice one that is never wrong after half of the draws, four
    times at the end.

    The rule for classes would give half of the softmax to a single example.
    """
    return min(2 * math.log(2) / _checked(draws), least_p)


def too_small(eta: float, draws: int, automatic: float) -> str:
    """What is said of an eta with which the sampler hardly learns."""
    return (
        f"with eta {eta:.3g} p hardly moves in {draws:,} draws: take eta=auto, which is {automatic:.3g} here"
    )


def target_lead(k: int) -> float:
    """How far ahead in w `for_lead` lets the worst class be at the end of a run."""
    return 2 * math.log(max(2, k - 1))


def softmax_share(k: int, lead: float) -> float:
    """The share of one of k classes that is ahead of all others by `lead`."""
    return 1 / (1 + (k - 1) * math.exp(-lead))


def times(lead: float) -> str:
    """What a lead in w is as a factor of weights."""
    return f"{math.exp(lead):.3g}" if lead < 20 else "over 1e8"


def _checked(draws: int) -> int:
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
        raise InputError(f"draws must be a whole number of at least 1, got {draws!r}")
    return draws
