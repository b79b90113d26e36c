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
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from cfol_fast.errors import InputError
from cfol_fast.user_input import Range

_SPEC = "setting"
# The default of a setting that follows the data set, the method or another setting (`runs.defaults`).
OPEN = object()
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
    # True: a complete configuration has a value, and nobody needs to give one.
    follows: bool


@dataclasses.dataclass(frozen=True)
class Setting(Spec):
    """A setting as others look at it."""

    # Its path in the tree, such as "attack.eps".
    key: str
    # Its type without None.
    kind: Any
    default: Any
    # True: None may be given. The setting then follows others, or is not used.
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

    default: OPEN for a setting that follows others; None for one that is not used unless it is given.
    help: what it means, for `--help` and the docs. limits: what a number may be. choices: the words that a
    text may be, or a function that finds them. option: its own option of `train`. incidental: it changes
    where or how a run is carried out, not what it computes.
    """
    spec = Spec(help, limits, choices, option, incidental, follows=default is OPEN)
    default = dataclasses.MISSING if default is OPEN else default
    return dataclasses.field(default=default, default_factory=factory, metadata={_SPEC: spec})


class Parameters(dict[str, Any]):
    """A method's parameters, which nothing changes."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise InputError(
            "params cannot be changed: a configuration is complete. Use config.replace(params={...})."
        )

    __setitem__ = __delitem__ = __ior__ = _refuse  # type: ignore[assignment]
    update = setdefault = pop = popitem = clear = _refuse  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[Parameters], tuple[dict[str, Any]]]:
        return Parameters, (dict(self),)


Group = TypeVar("Group")


def refuses_assignment(kind: type[Group]) -> type[Group]:
    """Makes a frozen dataclass say what to do where somebody assigns to one of its fields."""

    def refuse(self: Any, name: str, *_: Any) -> None:
        field = f"{kind.__name__}.{name}"
        raise InputError(
            f"{field} cannot be changed: a configuration is complete. Use config = config.replace(...),"
            ' such as config.replace(attack={"steps": 1}).'
        )

    kind.__setattr__ = kind.__delattr__ = refuse  # type: ignore[method-assign, assignment]
    return kind


def words_of(module: str, table: str) -> Callable[[], tuple[str, ...]]:
    """The choices that another module knows, imported when they are needed: `--help` needs no torch."""
    return lambda: tuple(getattr(importlib.import_module(module), table))


@functools.cache
def settings_of(kind: type, prefix: str = "") -> dict[str, Setting]:
    """Every setting of a configuration by its path, in the order of the tree."""
    found: dict[str, Setting] = {}
    groups, hints = groups_of(kind), typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        key, options = prefix + field.name, _types(hints[field.name])
        if field.name in groups:
            found |= settings_of(groups[field.name], f"{key}.")
            continue
        spec, default = field.metadata[_SPEC], field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        (own,) = (option for option in options if option is not types.NoneType)
        found[key] = Setting(
            **vars(spec),
            key=key,
            kind=own,
            default=None if spec.follows else default,
            is_open=spec.follows or types.NoneType in options,
        )
    return found


@functools.cache
def groups_of(kind: type) -> dict[str, type]:
    """The groups of settings in a configuration: {"data": DataConfig, ...}."""
    hints = typing.get_type_hints(kind)
    names = (field.name for field in dataclasses.fields(kind))
    return {name: hints[name] for name in names if dataclasses.is_dataclass(hints[name])}


def fill(config: Any, values: Mapping[str, Any], prefix: str = "") -> None:
    """Gives a frozen configuration its values, which come by their paths, once."""
    kind: type = type(config)
    groups = groups_of(kind)
    for field in dataclasses.fields(config):
        key = prefix + field.name
        if field.name in groups:
            group: Any = object.__new__(groups[field.name])
            fill(group, values, f"{key}.")
            object.__setattr__(config, field.name, group)
        else:
            object.__setattr__(config, field.name, values[key])


def _types(hint: Any) -> tuple[Any, ...]:
    """The types of `X | None`, and of any other hint itself."""
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
