"""Attacks that `evaluate` is given by their names."""

from __future__ import annotations

from typing import Any

from cfol_fast.attacks import KINDS
from cfol_fast.errors import InputError
from cfol_fast.user_input import did_you_mean, parse_number


def named_attacks(attack: Any, eps: float | str | None) -> Any:
    """The same, where attacks given by their names have become dicts with this radius."""
    given = [attack] if isinstance(attack, str) else attack
    names = [one for one in given if isinstance(one, str)] if isinstance(given, list | tuple) else []
    for name in names:
        if name not in (known := [*KINDS, "autoattack"]):
            raise InputError(f"unknown attack {name!r}{did_you_mean(name, known)}")
        if eps is None and name != "none":
            raise InputError(f"the attack {name!r} needs a radius: pass eps, such as eps=8 / 255")
    if eps is not None and not names:
        raise InputError(f"eps={eps!r} belongs to an attack that is given by its name: attack='pgd'")
    if not names:
        return attack
    radius = parse_number(eps) if isinstance(eps, str) else eps

    def described(one: Any) -> Any:
        if not isinstance(one, str):
            return one
        return {"kind": one} if one == "none" else {"kind": one, "eps": radius}

    return [described(one) for one in given or ()]
