"""Objectives: the scalar that a training step minimises, as functions of losses and as objects the trainer
calls.
"""

from cfol_fast.objectives.best_response import chi2_ball, kl_ball
from cfol_fast.objectives.objective import (
    FAAL,
    BalancedTrades,
    Batch,
    Both,
    ChiSquare,
    ClassWeighted,
    Clean,
    CVaR,
    Examples,
    LCVaR,
    LHCVaR,
    Mean,
    NormalisedTrades,
    Objective,
    Trades,
    cross_entropy,
    prediction_divergence,
)
from cfol_fast.objectives.risk import class_weighted, cvar, lcvar, mean

__all__ = [
    "FAAL",
    "BalancedTrades",
    "Batch",
    "Both",
    "CVaR",
    "ChiSquare",
    "ClassWeighted",
    "Clean",
    "Examples",
    "LCVaR",
    "LHCVaR",
    "Mean",
    "NormalisedTrades",
    "Objective",
    "Trades",
    "chi2_ball",
    "class_weighted",
    "cross_entropy",
    "cvar",
    "kl_ball",
    "lcvar",
    "mean",
    "prediction_divergence",
]
