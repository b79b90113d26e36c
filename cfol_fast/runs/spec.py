"""What a setting of a run is. Each is described in one place: its field in `cfol_fast.runs.config`.

From there come `--set`, the options of `cfol-fast train`, the limits, config.json, whether a setting is part
of a run's name, and docs/configuration.md.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any

from cfol_fast.user_input import Range

_SPEC = "setting"
Words = tuple[str, ...] | Callable[[], Iterable[str]]


@dataclasses.dataclass(frozen=True)
class Spec:
    """What a field of the configuration says of itself, beside its name, type and default."""

    help: str
    limits: Range | None
    choices: Words
    # The option of `train` and what it takes, such as "--eps EPS"; "--compile" takes nothing and means true.
    option: str | None
    # True: where and how a run is carried out. False: what it computes, and so part of the run's name.
    incidental: bool


@dataclasses.dataclass(frozen=True)
class Setting(Spec):
    """A setting as others look at it."""

    # Its path in the tree, such as "attack.eps".
    key: str
    # Its type without None.
    kind: Any
    default: Any
    # True: None is allowed. It follows the data set or the method, or is not used.
    is_open: bool

    @property
    def words(self) -> tuple[str, ...]:
        """The words that it may be; empty for a setting that is not one of several words."""
        return tuple(self.choices() if callable(self.choices) else self.choices)

    @property
    def flag(self) -> tuple[str, str | None] | None:
        """Its option on the command line, and what that takes: ("--eps", "EPS")."""
        if self.option is None or not self.option.startswith("--"):
            return None
        flag, _, metavar = self.option.partition(" ")
        return flag, metavar or None


def setting(
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    factory: Any = dataclasses.MISSING,
    limits: Range | None = None,
    choices: Words = (),
    option: str | None = None,
    incidental: bool = False,
) -> Any:
    """A field of the configuration with all that is said of it.

    help: what it means, for `--help` and the docs. limits: what a number may be. choices: the words that a
    text may be, or a function that finds them. option: its own option of `train`. incidental: it changes
    where or how a run is carried out, not what it computes.
    """
    spec = Spec(help, limits, choices, option, incidental)
    return dataclasses.field(default=default, default_factory=factory, metadata={_SPEC: spec})


def words_of(module: str, table: str) -> Callable[[], tuple[str, ...]]:
    """The choices that another module knows, imported when they are needed: `--help` needs no torch."""
    return lambda: tuple(getattr(importlib.import_module(module), table))


@functools.cache
def settings_of(kind: type, prefix: str = "") -> dict[str, Setting]:
    """Every setting of a configuration by its path, in the order of the tree."""
    found: dict[str, Setting] = {}
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        key, options = prefix + field.name, _types(hints[field.name])
        if dataclasses.is_dataclass(options[0]):
            found |= settings_of(hints[field.name], f"{key}.")
        else:
            spec, default = field.metadata[_SPEC], field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            (own,) = (option for option in options if option is not types.NoneType)
            found[key] = Setting(
                **vars(spec), key=key, kind=own, default=default, is_open=types.NoneType in options
            )
    return found


def _types(hint: Any) -> tuple[Any, ...]:
    """The types of `X | None`, and of any other hint itself."""
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
