"""The native ops, typed: one module a family, all names here. Each op has a CPU and a CUDA kernel (csrc/), a fake function for
the meta device and torch.compile beside its wrapper, and a slow plain twin in tests/reference*.py."""

from cfol_fast.ops.native import FAULTS, fault_messages, new_fault, new_rng
from cfol_fast.ops.pgd import pgd_start, pgd_step_

__all__ = ["FAULTS", "fault_messages", "new_fault", "new_rng", "pgd_start", "pgd_step_"]
