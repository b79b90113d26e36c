"""What a checkpoint holds, as types: `Checkpoint` is a model and where it comes from, `Continuation` what a
run needs besides, to continue exactly.

In the file the fields of both lie side by side, by their names. A field whose default is None is left out of
a file that has none of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from cfol_fast.errors import InputError
from cfol_fast.models import ModelSpec
from cfol_fast.runs.checkpoints import FORMAT
from cfol_fast.user_input import shorten


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """Only `last` and `previous` have it.

    metrics_size: bytes of metrics.jsonl that belong to it. data: the digests of the data. changed_data: where
    the run went on with other data. arithmetic, choices, proof: what the last bits depend on. The others are
    the states of the parts of the run with these names.
    """

    position: dict[str, Any]
    optimizer: dict[str, Any]
    sampler: dict[str, Any]
    attack: dict[str, Any]
    source: dict[str, Any]
    queue: dict[str, Any]
    step: dict[str, Any]
    ensemble: dict[str, Any] | None
    metrics_size: int
    arithmetic: dict[str, Any]
    torch_rng: Tensor
    cuda_rng: Tensor | None
    policy: dict[str, Any] | None = None
    ema: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    changed_data: list[dict[str, Any]] | None = None
    choices: dict[str, Any] | None = None
    proof: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """model: the weights, by their names in `spec.create()`. epoch: epochs that they were trained for in
    their run. init: what that run says of the weights it began with.

    validation: of the best ones, their row of metrics.jsonl. offsets: that `cfol-fast offsets` added.
    """

    model: dict[str, Tensor]
    spec: ModelSpec
    classes: list[str]
    dataset: str | None = None
    method: str | None = None
    seed: int | None = None
    epoch: int | None = None
    init: dict[str, Any] | None = None
    validation: dict[str, Any] | None = None
    offsets: Tensor | None = None
    run: Continuation | None = None

    def description(self) -> dict[str, Any]:
        """What an exported file says, besides its weights."""
        told = ("dataset", "method", "seed", "epoch", "init")
        known = {name: value for name in told if (value := getattr(self, name)) is not None}
        return {"format": FORMAT, "spec": self.spec.to_dict(), "classes": self.classes, **known}

    def to_state(self) -> dict[str, Any]:
        """As the file has it."""
        own = _fields(self)
        run = {} if self.run is None else _fields(self.run)
        return {"format": FORMAT, **own, "spec": self.spec.to_dict(), **run}

    @classmethod
    def of(cls, state: Mapping[str, Any], path: Path, named: str | None = None) -> Checkpoint:
        """What a file holds, checked as far as a reader of the model needs. named: see
        `ModelSpec.from_dict`.
        """
        if "spec" not in state or "model" not in state:
            raise InputError(f"{path} is not a checkpoint of cfol_fast (it has no model description)")
        try:
            spec = ModelSpec.from_dict(state["spec"], named)
            spec.check_weights(state["model"])
        except InputError as error:
            raise InputError(f"{path} is not a checkpoint of cfol_fast: {error}") from None
        classes = state.get("classes")
        if (
            not isinstance(classes, list)
            or [str(name) for name in classes] != classes
            or len(classes) != spec.num_classes
        ):
            raise InputError(
                f"{path} is not a checkpoint of cfol_fast: it must name its {spec.num_classes} classes"
            )
        for name, kind in KINDS.items():
            value = state.get(name)
            if value is not None and type(value) is not kind:
                raise InputError(
                    f"{path} is not a checkpoint of cfol_fast: its {name} must be {kind.__name__}, got"
                    f" {shorten(value)}"
                )
        run = _continuation(state, path) if "position" in state else None
        return cls(**{**_known(cls, state), "spec": spec, "run": run})


# The optional fields of `Checkpoint`.
KINDS = {"dataset": str, "method": str, "seed": int, "epoch": int, "init": dict, "validation": dict}


def _continuation(state: Mapping[str, Any], path: Path) -> Continuation:
    required = [field.name for field in dataclasses.fields(Continuation) if _is_required(field)]
    if missing := [name for name in required if name not in state]:
        raise InputError(
            f"{path} cannot be continued from by this version of cfol_fast: it has no {missing[0]}. Use the"
            " version that wrote it, or start another run from its weights (--init)"
        )
    return Continuation(**_known(Continuation, state))


def _fields(part: Checkpoint | Continuation) -> dict[str, Any]:
    return {
        field.name: value
        for field in dataclasses.fields(part)
        if field.name != "run" and ((value := getattr(part, field.name)) is not None or _is_required(field))
    }


def _known(kind: type[Checkpoint] | type[Continuation], state: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: state[field.name] for field in dataclasses.fields(kind) if field.name in state}


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING
