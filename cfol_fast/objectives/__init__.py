"""Objectives: the scalar that a training step minimises, as functions of losses and as objects the trainer calls."""

from cfol_fast.objectives.objective import (
    Batch,
    Both,
    ClassWeighted,
    Clean,
    CVaR,
    LCVaR,
    Mean,
    Objective,
    Trades,
    cross_entropy,
    prediction_divergence,
)
from cfol_fast.objectives.risk import class_weighted, cvar, lcvar, mean

__all__ = [
    "Batch",
    "Both",
    "CVaR",
    "ClassWeighted",
    "Clean",
    "LCVaR",
    "Mean",
    "Objective",
    "Trades",
    "class_weighted",
    "cross_entropy",
    "cvar",
    "lcvar",
    "mean",
    "prediction_divergence",
]
