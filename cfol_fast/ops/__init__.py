"""The native ops with types: one module per family, all names here. Each op has a CPU and a CUDA kernel
(csrc/), a fake function for the meta device and torch.compile beside its wrapper, and a slow plain twin in
tests/reference/."""

from cfol_fast.ops.augment import Augment, augment_parameters, augment_with, gather_augment
from cfol_fast.ops.convolution import WINOGRAD_LANES, input_gradient, winograd, winograd_taps
from cfol_fast.ops.exp3 import (
    MAX_CLASSES,
    class_tally_,
    exp3_add_,
    exp3_add_sums_,
    exp3_distribution,
    exp3_draw,
    exp3_learn_,
    exp3_update_,
    group_by_class,
    is_seen,
    new_seen,
    new_tally,
    read_tally,
)
from cfol_fast.ops.native import FAULTS, TICKET_FAULT, fault_messages, new_fault, new_rng
from cfol_fast.ops.permutation import permutation
from cfol_fast.ops.pgd import pgd_start, pgd_step_
from cfol_fast.ops.sum_tree import (
    SumTreeState,
    sum_tree_draw,
    sum_tree_new,
    sum_tree_probabilities,
    sum_tree_update_,
)
from cfol_fast.ops.uniform import uniform

__all__ = [
    "FAULTS",
    "MAX_CLASSES",
    "TICKET_FAULT",
    "WINOGRAD_LANES",
    "Augment",
    "SumTreeState",
    "augment_parameters",
    "augment_with",
    "class_tally_",
    "exp3_add_",
    "exp3_add_sums_",
    "exp3_distribution",
    "exp3_draw",
    "exp3_learn_",
    "exp3_update_",
    "fault_messages",
    "gather_augment",
    "group_by_class",
    "input_gradient",
    "is_seen",
    "new_fault",
    "new_rng",
    "new_seen",
    "new_tally",
    "permutation",
    "pgd_start",
    "pgd_step_",
    "read_tally",
    "sum_tree_draw",
    "sum_tree_new",
    "sum_tree_probabilities",
    "sum_tree_update_",
    "uniform",
    "winograd",
    "winograd_taps",
]
