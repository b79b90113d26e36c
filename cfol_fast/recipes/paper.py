"""The paper's own numbers (`paper.toml`): data, looked up by table, block, column and metric."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cfol_fast.runs.toml_files import read_toml

FILE = Path(__file__).with_name("paper.toml")


@dataclass(frozen=True)
class Number:
    value: float
    deviation: float | None = None


@cache
def tables() -> dict[str, Any]:
    """Every table and figure of the paper by recipe name, in the paper's order."""
    return read_toml(FILE)


def number(names: list[str], block: str, column: str, metric: str) -> Number | None:
    """What the paper prints for `metric` ("robust.worst"), from the first of the tables `names` that
    has it.
    """
    kind, _, statistic = metric.partition(".")
    for name in names:
        cell = tables().get(name, {}).get("blocks", {}).get(block, {}).get(column, {})
        value = cell.get(kind, {}).get(statistic)
        if value is not None:
            return Number(value, cell.get(f"{kind}_deviation", {}).get(statistic))
    return None


def reference(name: str) -> str:
    """Where in the paper: "Table 1". Empty for a recipe of one's own."""
    return str(tables().get(name, {}).get("number", ""))


def caption(name: str) -> str:
    return str(tables().get(name, {}).get("caption", ""))


def text(name: str, key: str) -> Any:
    """A number that stands in the running text only, or None."""
    return tables().get(name, {}).get("text", {}).get(key)
