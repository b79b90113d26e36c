"""`package.module:factory`: a network that a function of the user's makes.

Its module is imported only for a user who named it, on the command line or in a program. A name that stands
in a file (a checkpoint, a config.json, a TOML file) imports nothing: files come from strangers.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from cfol_fast.errors import InputError, one_line
from cfol_fast.models.libraries import PREFIXES
from cfol_fast.user_input import shorten


def is_factory(name: str | None) -> bool:
    """Whether the name stands for code of the user's."""
    return name is not None and ":" in name and not name.startswith(PREFIXES)


def check_named(name: str | None, named: str | None, where: str) -> None:
    """Refuses a factory that stands in the file `where` unless the user named it too."""
    if is_factory(name) and name != named:
        raise InputError(
            f"{where} asks for the code {shorten(name)}, and a file cannot make us import code: if you trust"
            ' it, add --model with that name (in Python: model="...")'
        )


def build(name: str, num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """What the factory makes; it is called with those of the three numbers that it has a place for."""
    factory = _imported(name)
    with _working_folder_importable():
        try:
            made = factory(**_taken(factory, name, num_classes, in_channels, image_size))
        except InputError:
            raise
        # The code is somebody else's and may raise anything.
        except Exception as error:
            raise InputError(f"the model {name} cannot be built: {one_line(error)[:200]}") from error
    if not isinstance(made, nn.Module):
        raise InputError(f"{name} must return a torch.nn.Module, got {type(made).__name__}")
    return made


def arguments(name: str, num_classes: int, in_channels: int, image_size: int) -> str:
    """What `build` calls the factory with, as Python code."""
    taken = _taken(_imported(name), name, num_classes, in_channels, image_size)
    return ", ".join(f"{key}={value}" for key, value in taken.items())


def _imported(name: str) -> Any:
    """The factory; its module may be a file in the working folder."""
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*", name):
        raise InputError(f"a model of your own is written as package.module:factory, got {shorten(name)}")
    module, _, path = name.partition(":")
    try:
        with _working_folder_importable():
            factory: Any = importlib.import_module(module)
            for part in path.split("."):
                factory = getattr(factory, part)
    except Exception as error:
        raise InputError(f"the model {name} cannot be imported: {one_line(error)[:200]}") from error
    if not callable(factory):
        raise InputError(f"{name} must be a function of num_classes, got {type(factory).__name__}")
    return factory


def _taken(factory: Any, name: str, num_classes: int, in_channels: int, image_size: int) -> dict[str, int]:
    parameters = inspect.signature(factory).parameters
    offered = {"num_classes": num_classes, "in_channels": in_channels, "in_chans": in_channels}
    offered |= {"image_size": image_size, "img_size": image_size}
    taken = {key: value for key, value in offered.items() if key in parameters}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        taken["num_classes"] = num_classes
    if "num_classes" not in taken:
        raise InputError(
            f"{name} must have an argument num_classes (and may have in_channels and image_size), got"
            f" {', '.join(parameters) or 'none'}"
        )
    return taken


@contextmanager
def _working_folder_importable() -> Iterator[None]:
    """As for `python -m`; last on the path, so that it hides nothing that is installed."""
    folder = os.getcwd()
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
