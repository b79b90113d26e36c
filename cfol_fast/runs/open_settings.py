"""Open settings: plain mappings that say some of a run's settings. They are merged, parsed and checked here.

A layer may be nested (`{"attack": {"eps": "8/255"}}`), name a setting by its path (`attack.eps`), or by its
last name where only one setting has it (`eps`). The result names each by its path.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cfol_fast.errors import InputError
from cfol_fast.runs.config import settings
from cfol_fast.runs.json_files import read_object
from cfol_fast.runs.spec import Parameters, Setting
from cfol_fast.runs.toml_files import read_toml
from cfol_fast.user_input import (
    check_home_folder,
    did_you_mean,
    parse_number,
    parse_parameter,
    parse_whole,
    shorten,
)

PARAMS = "params"
LARGEST_PARAMETER = 1e12
LONGEST_TEXT = 4096
Layer = Mapping[str, Any]


def merged(*layers: Layer) -> dict[str, Any]:
    """What the layers say, by path, each value of its setting's type and within its limits.

    A later layer wins. None takes back what an earlier layer says.
    """
    found: dict[str, Any] = {}
    for layer in layers:
        for path, value in _leaves(layer):
            if path == PARAMS:
                found = {key: kept for key, kept in found.items() if not key.startswith(f"{PARAMS}.")}
            elif path.startswith(f"{PARAMS}."):
                found[path] = _parameter(value, path.removeprefix(f"{PARAMS}."))
            elif (read := parsed(value, settings()[path])) is None:
                found.pop(path, None)
            else:
                found[path] = read
    return found


def assignment(text: str) -> dict[str, str]:
    """One `key=value` of the command line's --set."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set takes key=value, got {text!r}; example: --set attack.eps=8/255")
    return {key.strip(): value.strip()}


def of_file(path: str | Path) -> dict[str, Any]:
    """What a file sets: TOML, or JSON as `--print-config` and a run's config.json have it.

    The keys are those of `config.json`, and fractions are strings (`eps = "8/255"`).
    """
    file = Path(path)
    return merged(read_object(file) if _is_json(file) else read_toml(file))


def _is_json(file: Path) -> bool:
    """By its content, since `--print-config > FILE` has any name: no TOML file begins with a brace."""
    if file.suffix == ".json":
        return True
    try:
        with file.open(encoding="utf-8") as stream:
            return stream.read(1000).lstrip().startswith("{")
    except (OSError, UnicodeDecodeError):
        # The reader of TOML says what is wrong.
        return False


def with_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """A complete configuration's values, from what its file says."""
    values: dict[str, Any] = {}
    for key, chosen in settings().items():
        values[key] = given.get(key, chosen.default)
        if chosen.follows and values[key] is None:
            raise InputError(f"it has no value of {key}, so it is not complete")
    # --help imports this module, and does without torch.
    from cfol_fast.methods import METHODS

    values[PARAMS] = parameters(given)
    if method := METHODS.get(values["method"]):
        values[PARAMS] = Parameters(
            {name: method.as_parameter(name, value) for name, value in values[PARAMS].items()}
        )
    return values


def parameters(given: Mapping[str, Any]) -> Parameters:
    """The method's parameters among open settings."""
    start = f"{PARAMS}."
    return Parameters(
        {key.removeprefix(start): value for key, value in given.items() if key.startswith(start)}
    )


def known_keys() -> list[str]:
    """Every setting's path, in the order of the tree."""
    return [key for key in settings() if key != PARAMS]


def parsed(value: Any, chosen: Setting) -> Any:
    """The value as the setting's type and within its limits, or an error that names the key and its type.

    None for what is not said.
    """
    if chosen.key == "data.augment":
        value = augmentation_word(value)
    if value is None or (isinstance(value, str) and value.lower() == "none" and chosen.kind is not str):
        if chosen.is_open:
            return None
        raise InputError(f"{chosen.key} needs a value")
    try:
        found = _as(value, chosen.kind)
    except (InputError, ValueError, TypeError, OverflowError):
        wanted = _WORDS.get(chosen.kind, "a list of whole numbers")
        raise InputError(f"{chosen.key} takes {wanted}, got {shorten(value)}") from None
    check(found, chosen)
    return found


def check(value: Any, chosen: Setting) -> None:
    """Refuses a value outside the setting's limits or words, by the setting's name."""
    for item in value if isinstance(value, tuple) else [value]:
        if chosen.limits is not None:
            chosen.limits.check(item, chosen.key)
        elif isinstance(item, str):
            _check_text(item, chosen.key)
    if chosen.words and value not in chosen.words:
        raise InputError(f"{chosen.key} must be one of {', '.join(chosen.words)}, got {value!r}")


def augmentation_word(value: Any) -> Any:
    """`data.augment` as a word, where a file under results/ or a program says true or false."""
    try:
        return "paper" if _as(value, bool) else "none"
    except TypeError:
        return value


def _leaves(layer: Layer, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a nested layer with their whole paths."""
    for key, value in layer.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            if path != PARAMS and path not in _groups():
                if path in settings():
                    raise InputError(f"{path} takes no group of settings, got {shorten(value)}")
                raise InputError(f"unknown configuration group {path!r}{did_you_mean(path, _groups())}")
            yield from _leaves(value, f"{path}.")
        elif path == PARAMS and value is None:
            yield PARAMS, None
        else:
            yield _whole_path(path), value


def _groups() -> list[str]:
    return sorted({key.rpartition(".")[0] for key in known_keys() if "." in key})


def _method_parameters() -> set[str]:
    from cfol_fast.methods import METHODS

    return {name for method in METHODS.values() for name in method.defaults}


def _whole_path(key: str) -> str:
    keys = known_keys()
    if key in keys:
        return key
    names = sorted(f"{PARAMS}.{name}" for name in _method_parameters())
    if key in names:
        return key
    matches = [path for path in keys + names if path.rpartition(".")[2] == key]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise InputError(f"{key!r} could be {' or '.join(matches)}: give the whole key")
    raise InputError(f"unknown configuration key {key!r}{did_you_mean(key, keys + names)}")


_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number such as 0.1, 1e-4 or 8/255",
    bool: "true or false",
    str: "text",
}


def _as(value: Any, target: Any) -> Any:
    if target is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false", "1", "0", "yes", "no", "on", "off"):
            return value.lower() in ("true", "1", "yes", "on")
        raise TypeError
    if isinstance(value, bool):
        raise TypeError
    if target is float:
        return parse_number(value) if isinstance(value, str) else float(value)
    if target is int:
        number = parse_whole(value) if isinstance(value, str) else value
        if int(number) != number:
            raise ValueError
        return int(number)
    if target is str:
        if not isinstance(value, str | int | float):
            raise TypeError
        return str(value)
    items = value.strip("[]()").split(",") if isinstance(value, str) else value
    return tuple(_as(item, int) for item in items if str(item).strip())


def _check_text(value: str, key: str) -> None:
    if len(value) > LONGEST_TEXT or "\0" in value:
        raise InputError(f"{key} must be a text of at most {LONGEST_TEXT} characters, got {shorten(value)}")
    check_home_folder(value)


def _parameter(value: Any, name: str) -> Any:
    """A method's parameter: the method knows its range, here it must be something that can be stored."""
    found = parse_parameter(value)
    for item in found if isinstance(found, list) else [found]:
        if isinstance(item, str):
            _check_text(item, name)
        elif isinstance(item, int | float):
            if not math.isfinite(item) or abs(item) > LARGEST_PARAMETER:
                raise InputError(
                    f"{name} must be a number of at most {LARGEST_PARAMETER:g}, got {shorten(item)}"
                )
        elif item is not None:
            raise InputError(f"{name} must be a number, a word or a list of numbers, got {shorten(found)}")
    return found
