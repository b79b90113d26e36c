"""Attacks: `PGD(model, eps)(x, y)` and its relatives; `create` makes one by name."""

from __future__ import annotations

from typing import Any

from torch import nn

from cfol_fast.attacks.attack import Attack, NoAttack, Slots
from cfol_fast.attacks.pgd import FGSM, NFGSM, PGD, TRADES
from cfol_fast.errors import InputError
from cfol_fast.frozen import how

KINDS: dict[str, type[Attack]] = {kind.kind: kind for kind in (PGD, TRADES, FGSM, NFGSM, NoAttack)}

__all__ = ["FGSM", "KINDS", "NFGSM", "PGD", "TRADES", "Attack", "NoAttack", "Slots", "create", "how"]


def create(kind: str, model: nn.Module, **params: Any) -> Attack:
    """The attack called `kind`, one of `KINDS`."""
    if kind not in KINDS:
        raise InputError(f"unknown attack {kind!r}; there are {', '.join(KINDS)}")
    return KINDS[kind](model, **params)
