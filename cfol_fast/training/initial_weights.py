"""The weights that a run starts from (`model.init`): those of a run or checkpoint of ours, or another project's."""

from __future__ import annotations

from typing import Any

from torch import nn

from cfol_fast.errors import InputError
from cfol_fast.evaluation import foreign_weights
from cfol_fast.models.spec import ModelSpec
from cfol_fast.runs.config import ModelConfig
from cfol_fast.runs.json_files import made_from
from cfol_fast.runs.loading import checkpoint_path, is_ours, read_checkpoint


def start_from(model: nn.Module, chosen: ModelConfig, spec: ModelSpec) -> dict[str, Any]:
    """Loads the weights into `model`; returns what the result says of them. The normalisation comes with the weights.

    epochs: those that a checkpoint of ours was trained for, which belong to the budget of whoever continues from it. Where its run
    itself began from weights, their epochs count too, and `init` says the same of them.
    """
    path = checkpoint_path(chosen.init or "")
    own = is_ours(path)
    if own and chosen.init_normalize is not None:
        raise InputError(
            f"{path} is a checkpoint of ours and brings its normalisation: leave out model.init_normalize"
        )
    found: dict[str, Any] = {"weights": str(path)}
    if own:
        state = read_checkpoint(path)
        theirs = ModelSpec.from_dict(state["spec"])
        for name in ("name", "num_classes", "image_size", "in_channels"):
            if getattr(theirs, name) != getattr(spec, name):
                raise InputError(
                    f"{path} has {name} {getattr(theirs, name)}, this run has {getattr(spec, name)}: weights to start from must fit the network"
                )
        weights = state["model"]
        with made_from(path):
            found |= {"method": state["method"], "epochs": int(state["epoch"])}
            if "init" in state:
                # Another project's weights do not say for how long they were trained.
                found["epochs"] += int(state["init"].get("epochs", 0))
                found["init"] = state["init"]
    else:
        mean = std = None
        if chosen.init_normalize is not None:
            mean, std = foreign_weights.normalisation(
                chosen.init_normalize, spec.in_channels, (spec.mean, spec.std)
            )
        shape = (spec.num_classes, spec.image_size, spec.in_channels)
        try:
            weights = foreign_weights.load_weights(path, spec.name, *shape, mean, std).state_dict()
        except InputError as error:
            # The loader's way out is an option of eval; here it is a setting.
            raise InputError(f"{error}. In training the setting is model.init_normalize") from None
    model.load_state_dict(weights)
    return found
