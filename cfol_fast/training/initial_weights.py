"""The weights that a run starts from: those of a run or checkpoint of ours, another project's (`model.init`),
or a library's (`model.pretrained`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cfol_fast.data.classes import order_as_text, places
from cfol_fast.errors import InputError
from cfol_fast.evaluation import foreign_weights
from cfol_fast.frozen import evaluation_mode
from cfol_fast.models.head import last_linear
from cfol_fast.models.spec import ModelSpec
from cfol_fast.runs.json_files import made_from
from cfol_fast.runs.loading import checkpoint_path, is_ours, read_checkpoint
from cfol_fast.runs.setting_groups import ModelConfig

BY_POSITION = "Rename the classes, or take them by position (--classes-by-position)"


def start_from(
    model: nn.Module, chosen: ModelConfig, spec: ModelSpec, classes: Sequence[str]
) -> dict[str, Any] | None:
    """Loads the weights into `model`; returns what the result says of them.

    The normalisation comes with the weights.

    epochs: those that a checkpoint of ours was trained for, which belong to the budget of whoever continues
    from it. Where its run itself began from weights, their epochs count too, and `init` says the same of
    them.
    classes: of the run. The outputs of a checkpoint of ours with the same classes in another order are put in
    this order.
    new: the layers that keep their random weights, where the weights are for another number of classes.
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
        trained = read_checkpoint(path, model=spec.name)
        theirs = trained.spec
        for name in ("name", "image_size", "in_channels"):
            if getattr(theirs, name) != getattr(spec, name):
                raise InputError(
                    f"{path} has {name} {getattr(theirs, name)}, this run has {getattr(spec, name)}: weights"
                    " to start from must fit the network"
                )
        if theirs.num_classes == spec.num_classes:
            by_name = not chosen.init_by_position
            order = places(trained.classes, classes, str(path), BY_POSITION) if by_name else None
            model.load_state_dict(trained.model)
            if order is not None:
                _put_outputs_in_order(model, order, spec, path)
        else:
            complaint = f"{path} has {theirs.num_classes} classes, this run has {spec.num_classes}"
            new = foreign_weights.adopt(model, trained.model, complaint, new_head=True)
            foreign_weights.settle_normalisation(model, trained.model, str(path), spec.name, None, None)
            found |= _new_layers(new)
        if trained.method is None or trained.epoch is None:
            raise InputError(
                f"{path} does not say with which method, and for how many epochs, it was trained: take"
                " another checkpoint of its run"
            )
        found |= {"method": trained.method, "epochs": trained.epoch}
        if trained.init is not None:
            with made_from(path):
                # Another project's weights do not say for how long they were trained.
                found["epochs"] += int(trained.init.get("epochs", 0))
            found["init"] = trained.init
        return found
    mean = std = None
    if chosen.init_normalize is not None:
        mean, std = foreign_weights.normalisation(
            chosen.init_normalize, spec.in_channels, (spec.mean, spec.std)
        )
    weights, _, names = foreign_weights.read_weights(path)
    try:
        complaint = f"{path} is not a {spec.name}{foreign_weights.other_family(spec.name)}"
        new = foreign_weights.adopt(model, weights, complaint, new_head=True)
        foreign_weights.settle_normalisation(model, weights, str(path), spec.name, mean, std)
    except InputError as error:
        # The loader's way out is an option of eval; here it is a setting.
        raise InputError(f"{error}. In training the setting is model.init_normalize") from None
    if not new and names is not None and not chosen.init_by_position:
        order = places(names, classes, str(path), BY_POSITION)
        if order is not None:
            _put_outputs_in_order(model, order, spec, path)
    elif not new and (note := order_as_text(classes)):
        warnings.warn(note, stacklevel=3)
    return found | _new_layers(new)


def _put_outputs_in_order(model: nn.Module, order: list[int], spec: ModelSpec, path: Path) -> None:
    """Output c becomes what output order[c] was: the rows of the last linear layer, if that is what makes the
    logits.
    """
    device = next(model.parameters()).device
    images = torch.rand(2, spec.in_channels, spec.image_size, spec.image_size, generator=torch.Generator())
    head = last_linear(model)
    with evaluation_mode(model), torch.no_grad():
        before = model(images.to(device))
        if head is not None and head.out_features == len(order):
            for rows in head.parameters(recurse=False):
                rows.copy_(rows[order].clone())
            if torch.allclose(model(images.to(device)), before[:, order], rtol=1e-4, atol=1e-5):
                return
    raise InputError(
        f"{path} has the classes in another order than the data, and the model does not end in a linear layer"
        f" whose outputs could be reordered. {BY_POSITION}"
    )


def _new_layers(names: list[str]) -> dict[str, list[str]]:
    if not names:
        return {}
    warnings.warn(
        f"the weights are for another number of classes: {', '.join(names)} start anew", stacklevel=3
    )
    return {"new": names}
