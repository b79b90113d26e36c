"""The weights that a run starts from: those of a run or checkpoint of ours, another project's (`model.init`), or a library's (`model.pretrained`)."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from cfol_fast.errors import InputError
from cfol_fast.evaluation import foreign_weights
from cfol_fast.models.spec import ModelSpec
from cfol_fast.runs.config import ModelConfig
from cfol_fast.runs.json_files import made_from
from cfol_fast.runs.loading import checkpoint_path, is_ours, read_checkpoint


def start_from(model: nn.Module, chosen: ModelConfig, spec: ModelSpec) -> dict[str, Any] | None:
    """Loads the weights into `model`; returns what the result says of them. The normalisation comes with the weights.

    epochs: those that a checkpoint of ours was trained for, which belong to the budget of whoever continues from it. Where its run
    itself began from weights, their epochs count too, and `init` says the same of them.
    new: the layers that keep their random weights: weights of others may be for another number of classes.
    """
    if chosen.pretrained:
        new = foreign_weights.adopt_published(model, spec.name, spec.image_size, spec.in_channels)
        return {"weights": f"{spec.name}, as its library publishes them", **_new_layers(new)}
    if chosen.init is None:
        return None
    path = checkpoint_path(chosen.init)
    found: dict[str, Any] = {"weights": str(path)}
    if is_ours(path):
        if chosen.init_normalize is not None:
            raise InputError(
                f"{path} is a checkpoint of ours and brings its normalisation: leave out model.init_normalize"
            )
        state = read_checkpoint(path, model=spec.name)
        theirs = ModelSpec.from_dict(state["spec"], spec.name)
        for name in ("name", "num_classes", "image_size", "in_channels"):
            if getattr(theirs, name) != getattr(spec, name):
                raise InputError(
                    f"{path} has {name} {getattr(theirs, name)}, this run has {getattr(spec, name)}: weights to start from must fit the network"
                )
        model.load_state_dict(state["model"])
        with made_from(path):
            found |= {"method": state["method"], "epochs": int(state["epoch"])}
            if "init" in state:
                # Another project's weights do not say for how long they were trained.
                found["epochs"] += int(state["init"].get("epochs", 0))
                found["init"] = state["init"]
        return found
    mean = std = None
    if chosen.init_normalize is not None:
        mean, std = foreign_weights.normalisation(
            chosen.init_normalize, spec.in_channels, (spec.mean, spec.std)
        )
    weights = foreign_weights.read_state_dict(path)
    try:
        new = foreign_weights.adopt(
            model,
            weights,
            f"{path} is not a {spec.name}{foreign_weights.other_family(spec.name, weights)}",
            new_head=True,
        )
        foreign_weights.settle_normalisation(model, weights, str(path), spec.name, mean, std)
    except InputError as error:
        # The loader's way out is an option of eval; here it is a setting.
        raise InputError(f"{error}. In training the setting is model.init_normalize") from None
    return found | _new_layers(new)


def _new_layers(names: list[str]) -> dict[str, list[str]]:
    if not names:
        return {}
    warnings.warn(
        f"the weights are for another number of classes: {', '.join(names)} start anew", stacklevel=3
    )
    return {"new": names}
