"""Reading what a user typed: numbers ("8/255"), a method's parameters, and names that were misspelt.

The configuration, the table of methods, the registries and the recipes all read their input here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from cfol_fast.errors import InputError


def parse_number(text: str) -> float:
    """A number or a fraction: `0.1`, `1e-4`, `8/255`."""
    try:
        if text.count("/") == 1:
            numerator, _, denominator = text.partition("/")
            return float(Fraction(numerator.strip()) / Fraction(denominator.strip()))
        return float(text)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{text!r} is not a number; write 0.1, 1e-4 or 8/255") from None


def parse_parameter(value: Any) -> Any:
    """A method's parameter: a number (whole numbers stay whole), true/false, none, a list of these, or a word."""
    if not isinstance(value, str):
        return list(value) if isinstance(value, tuple) else value
    text = value.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.lower() == "none":
        return None
    if text.startswith("[") and text.endswith("]"):
        return [parse_parameter(part) for part in text[1:-1].split(",") if part.strip()]
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return parse_number(text)
    except InputError:
        return text


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the nearest known one or, where none is near, all of them."""
    names = list(known)
    close = nearest(word, names)
    if close:
        return f"; did you mean {close!r}?"
    return f"; known are {', '.join(names)}" if names else "; there are none"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that `word` most likely stands for. A path such as `attack.eps` is also found by its last part."""
    names, word = list(known), word.lower()
    by_last_part = {name.rpartition(".")[2]: name for name in reversed(names)}
    whole = difflib.get_close_matches(word, names, n=1)
    part = difflib.get_close_matches(word.rpartition(".")[2], list(by_last_part), n=1, cutoff=0.5)
    return whole[0] if whole else by_last_part[part[0]] if part else None
