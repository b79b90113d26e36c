"""The configuration that a call of `train` means: a TrainConfig, or a method's name and keywords."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cfol_fast import data
from cfol_fast.errors import InputError
from cfol_fast.runs.config import TrainConfig
from cfol_fast.user_input import nearest

OWN_LOOP = "or train it in your own loop with cf.ClassSampler"


def configured(
    given: TrainConfig | Mapping[str, Any] | str | None, settings: Mapping[str, Any]
) -> TrainConfig:
    """given: a configuration, which the settings change; open settings; or the name of a method."""
    layer = dict(settings)
    if "data" in layer:
        layer["data"] = _data(layer["data"])
    if "model" in layer:
        layer["model"] = _model(layer["model"])
    if isinstance(given, TrainConfig):
        return given.replace(layer) if layer else given
    if isinstance(given, str):
        if "method" in layer:
            raise InputError(f"the method was given twice, {given!r} and {layer['method']!r}: leave out one")
        return TrainConfig({"method": given}, layer)
    if isinstance(given, Mapping):
        return TrainConfig(given, layer)
    if given is not None:
        raise InputError(
            f"train takes the name of a method or a TrainConfig, got {type(given).__name__}: "
            'cf.train("cfol", data="DIR", epochs=30)'
        )
    if "method" not in layer:
        raise InputError('which method? for example cf.train("cfol", data="DIR", epochs=30)')
    return TrainConfig(layer)


def _data(value: Any) -> Any:
    """A data set's name or a folder, as settings."""
    if value is None or isinstance(value, Mapping):
        return {} if value is None else value
    if not isinstance(value, str | os.PathLike):
        raise InputError(
            f"data is the name of a data set or a folder, got an object of type {type(value).__name__}: "
            f"write the images to DIR/train/<class>/ and give data='DIR', {OWN_LOOP}"
        )
    text = os.fspath(value)
    if text in data.names():
        return {"name": text}
    if (
        isinstance(value, str)
        and not Path(text).expanduser().exists()
        and (close := nearest(text, data.names()))
    ):
        raise InputError(f"data {text!r} is neither a data set nor a folder; did you mean {close!r}?")
    return {"root": text}


def _model(value: Any) -> Any:
    """A network's name, as settings."""
    if value is None or isinstance(value, Mapping):
        return {} if value is None else value
    if not isinstance(value, str):
        raise InputError(
            f"model is the name of a network, got an object of type {type(value).__name__}: "
            f"give model='package.module:factory', a function that builds it, {OWN_LOOP}"
        )
    return {"name": value}
