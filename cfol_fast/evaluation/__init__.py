"""Evaluation: how a model does in every class, with and without an attack."""

from cfol_fast.evaluation.autoattack import AutoAttack
from cfol_fast.evaluation.class_accuracy import ClassAccuracy, wilson
from cfol_fast.evaluation.ensemble import EnsembleEvaluation, evaluate_ensemble
from cfol_fast.evaluation.evaluator import evaluate
from cfol_fast.evaluation.inputs import TensorSource
from cfol_fast.evaluation.pictures import gallery
from cfol_fast.evaluation.radius_curve import evaluate_radii
from cfol_fast.evaluation.result import Evaluation
from cfol_fast.evaluation.sanity import check_gradients

__all__ = [
    "AutoAttack",
    "ClassAccuracy",
    "EnsembleEvaluation",
    "Evaluation",
    "TensorSource",
    "check_gradients",
    "evaluate",
    "evaluate_ensemble",
    "evaluate_radii",
    "gallery",
    "wilson",
]
