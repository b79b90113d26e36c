"""cfol_fast: train image classifiers that withstand attack in every class, and prove it class by class.

The names below are the public surface; they are imported when they are first used, so that `import cfol_fast`
stays cheap.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from cfol_fast import cpu_features
from cfol_fast._version import __version__

if TYPE_CHECKING:
    # What editors and type checkers see of the names below.
    from cfol_fast import attacks as attacks
    from cfol_fast import data as data
    from cfol_fast import evaluation as evaluation
    from cfol_fast import methods as methods
    from cfol_fast import models as models
    from cfol_fast import objectives as objectives
    from cfol_fast import ops as ops
    from cfol_fast import recipes as recipes
    from cfol_fast import reporting as reporting
    from cfol_fast import sampling as sampling
    from cfol_fast import theory as theory
    from cfol_fast import training as training
    from cfol_fast.attacks import PGD as PGD
    from cfol_fast.data import loader as loader
    from cfol_fast.evaluation import evaluate as evaluate
    from cfol_fast.evaluation.metrics import TailAccuracy as TailAccuracy
    from cfol_fast.evaluation.metrics import WorstClassAccuracy as WorstClassAccuracy
    from cfol_fast.runs.config import TrainConfig as TrainConfig
    from cfol_fast.sampling import ClassSampler as ClassSampler
    from cfol_fast.sampling import ExampleSampler as ExampleSampler
    from cfol_fast.training import load as load
    from cfol_fast.training import train as train

# A library shows nothing unless it is asked to: `progress.printed`, or the user's own logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())

# Before anything imports torch: oneDNN reads its environment once.
cpu_features.avoid_broken_bfloat16()

_SURFACE = {
    "ClassSampler": "cfol_fast.sampling",
    "ExampleSampler": "cfol_fast.sampling",
    "PGD": "cfol_fast.attacks",
    "TrainConfig": "cfol_fast.runs.config",
    "evaluate": "cfol_fast.evaluation",
    "loader": "cfol_fast.data",
    "train": "cfol_fast.training",
    "load": "cfol_fast.training",
}
# They need an extra, so that `import *` leaves them out.
_OPTIONAL = {
    "WorstClassAccuracy": "cfol_fast.evaluation.metrics",
    "TailAccuracy": "cfol_fast.evaluation.metrics",
}
_MODULES = (
    "attacks",
    "data",
    "evaluation",
    "methods",
    "models",
    "objectives",
    "ops",
    "recipes",
    "reporting",
    "sampling",
    "theory",
    "training",
)

__all__ = ["__version__", *_SURFACE, *_MODULES]


def __getattr__(name: str) -> Any:
    if module := _SURFACE.get(name) or _OPTIONAL.get(name):
        value = getattr(importlib.import_module(module), name)
    elif name in _MODULES:
        value = importlib.import_module(f"cfol_fast.{name}")
    else:
        raise AttributeError(f"module 'cfol_fast' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_OPTIONAL})
