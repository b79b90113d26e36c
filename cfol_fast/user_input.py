"""Reading what a user typed: numbers ("8/255"), a method's parameters, and names that were misspelt.

The configuration, the table of methods, the registries and the recipes all read their input here.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import operator
import os
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from cfol_fast.errors import InputError

# More than anybody means to write; a fraction with an exponent of a million would take minutes to read.
MOST_CHARACTERS = 60


def parse_number(text: str) -> float:
    """A finite number or a fraction: `0.1`, `1e-4`, `8/255`."""
    try:
        if len(text) > MOST_CHARACTERS:
            raise ValueError
        parts = [part.strip() for part in text.split("/")]
        # As a float each part is small or refused, so that the exact ratio below is cheap.
        if len(parts) > 2 or not all(1e-300 < abs(float(part)) < 1e300 or float(part) == 0 for part in parts):
            raise ValueError
        return float(parts[0]) if len(parts) == 1 else float(Fraction(parts[0]) / Fraction(parts[1]))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise InputError(f"{shorten(text)} is not a finite number; write 0.1, 1e-4 or 8/255") from None


def check_home_folder(path: str) -> None:
    """`~name/...` of somebody who has no home folder here would be an error in Python's own words, much
    later.
    """
    if path.startswith("~") and os.path.expanduser(path) == path:
        raise InputError(
            f"{shorten(path)}: there is no home folder of that name; give the folder's whole path"
        )


def shorten(value: Any) -> str:
    """A value as a message shows it."""
    text = repr(value) if isinstance(value, str | int | float | list | tuple | None) else type(value).__name__
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."


@dataclass(frozen=True)
class Range:
    """What a number may be: `least` (itself left out if `above`) to `most`, as a check and as the type of an
    option.
    """

    least: float
    most: float
    whole: bool = True
    above: bool = False

    def check(self, value: Any, name: str) -> None:
        """Refuses, by its name, what is no such number or outside the range."""
        wanted = None
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            wanted = "a whole number" if self.whole else "a number such as 0.1, 1e-4 or 8/255"
        elif not (value > self.least if self.above else value >= self.least):
            wanted = f"{'above' if self.above else 'at least'} {_plain(self.least)}"
        elif not value <= self.most:
            wanted = f"at most {_plain(self.most)}"
        if wanted:
            raise InputError(f"{name} must be {wanted}, got {shorten(value)}")

    def in_words(self) -> str:
        """For a table: "1 to 100"."""
        return f"{'above ' if self.above else ''}{_plain(self.least)} to {_plain(self.most)}"

    def __call__(self, text: str) -> Any:
        """The value of an option, for argparse, which adds the option's name."""
        value: float | str = text
        with contextlib.suppress(InputError):
            value = parse_whole(text) if self.whole else parse_number(text)
        try:
            self.check(value, "it")
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error).removeprefix("it ")) from None
        return value


def _plain(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


# The options and fields that several places have.
COUNT = Range(1, 1_000_000)
SEED = Range(0, 2**63 - 1)
WHITE = Range(0, 2**32, whole=False, above=True)
# Torch starts all its threads at once; with a hundred thousand the process dies.
THREADS = Range(1, 1024)


def parse_whole(text: str) -> int:
    """A whole number, to its last digit: 2**63 - 1 is no float. `1e3` and `10/2` are whole numbers too."""
    with contextlib.suppress(ValueError):
        if len(text) <= MOST_CHARACTERS:
            return int(text)
    number = parse_number(text)
    if number != int(number):
        raise InputError(f"{shorten(text)} is not a whole number")
    return int(number)


def parse_parameter(value: Any) -> Any:
    """A method's parameter: a number (whole numbers stay whole), true/false, none, a list of these, or a
    word.
    """
    if not isinstance(value, str):
        return list(value) if isinstance(value, tuple) else value
    text = value.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.lower() == "none":
        return None
    if text.startswith("[") and text.endswith("]"):
        return [parse_parameter(part) for part in text[1:-1].split(",") if part.strip()]
    if len(text) <= MOST_CHARACTERS:
        with contextlib.suppress(ValueError):
            return int(text)
    try:
        return parse_number(text)
    except InputError:
        return text


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the nearest known one or, where none is near, all of
    them.
    """
    names = list(known)
    close = nearest(word, names)
    if close:
        return f"; did you mean {close!r}?"
    return f"; known are {', '.join(names)}" if names else "; there are none"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that `word` most likely stands for.

    A path such as `attack.eps` is also found by its last part.
    """
    names, word = list(known), word.lower()
    by_last_part = {name.rpartition(".")[2]: name for name in reversed(names)}
    whole = difflib.get_close_matches(word, names, n=1)
    part = difflib.get_close_matches(word.rpartition(".")[2], list(by_last_part), n=1, cutoff=0.5)
    return whole[0] if whole else by_last_part[part[0]] if part else None


def whole_number(name: str, value: Any, least: int) -> int:
    """A whole number of Python, numpy or torch that a program was given for `name`."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except (TypeError, RuntimeError):
        raise InputError(f"{name} must be a whole number of at least {least}, got {shorten(value)}") from None
    if number < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {number}")
    return number
