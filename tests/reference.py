"""Slow plain twins of the native ops: written from the formulas, independent of csrc/. One module a family."""

from tests.reference_augment import augment_parameters, augment_with
from tests.reference_exp3 import class_tally, exp3_distribution, exp3_draw, exp3_update
from tests.reference_permutation import permutation
from tests.reference_pgd import pgd_start, pgd_step
from tests.reference_philox import philox4x32, random4, uniform01

__all__ = [
    "augment_parameters",
    "augment_with",
    "class_tally",
    "exp3_distribution",
    "exp3_draw",
    "exp3_update",
    "permutation",
    "pgd_start",
    "pgd_step",
    "philox4x32",
    "random4",
    "uniform01",
]
