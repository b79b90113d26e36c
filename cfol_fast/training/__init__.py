"""Training: `train(config)` from Python, `cfol-fast train` from the command line; `load(run)` gives the model
back.
"""

from cfol_fast.errors import Stopped, TrainingFailed
from cfol_fast.runs.config import TrainConfig, to_dict
from cfol_fast.runs.exporting import export
from cfol_fast.runs.loading import checkpoint_path, load, read_checkpoint
from cfol_fast.runs.run_folder import read_config, read_result
from cfol_fast.training.callbacks import Callback, RunInfo
from cfol_fast.training.loop import Run, train

__all__ = [
    "Callback",
    "Run",
    "RunInfo",
    "Stopped",
    "TrainConfig",
    "TrainingFailed",
    "checkpoint_path",
    "export",
    "load",
    "read_checkpoint",
    "read_config",
    "read_result",
    "to_dict",
    "train",
]
