"""Class policies: per-class factors of the loss, of its terms and of the radius that change at the end of an
epoch.
"""

from cfol_fast.policies.hold_out import FRL, WAT
from cfol_fast.policies.policy import ClassPolicy, ClassView, EpochFacts, Need, Neutral
from cfol_fast.policies.training_record import CFA, DAFA, CFATrades, DAFATrades

__all__ = [
    "CFA",
    "DAFA",
    "FRL",
    "WAT",
    "CFATrades",
    "ClassPolicy",
    "ClassView",
    "DAFATrades",
    "EpochFacts",
    "Need",
    "Neutral",
]
