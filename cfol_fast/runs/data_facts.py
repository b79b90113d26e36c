"""What only the data can say of a run: a second record beside its configuration, known when the images are.

A run's identity reads both (`settled`): config.json has the numbers in the place of the words that stand for
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.spec import Parameters


@dataclass(frozen=True)
class DataFacts:
    """content: the digests of the images, part by part, where this process has read them.

    eta: the bandit's step size, where the method has one. white: the value of white in the images, where they
    have more than 8 bits.
    """

    classes: tuple[str, ...]
    content: dict[str, dict[str, Any]] | None
    eta: float | None
    white: float | None

    @property
    def num_classes(self) -> int:
        return len(self.classes)


def settled(config: TrainConfig, facts: DataFacts) -> TrainConfig:
    """The configuration with what its data said: a resumed run, and an evaluation on other images, take the
    same.
    """
    values: dict[str, Any] = {}
    if isinstance(config.params.get("eta"), str):
        # "auto" or "theory".
        values["params"] = Parameters({**config.params, "eta": facts.eta})
    if facts.white is not None:
        values["data.white"] = facts.white
    return config.with_settled(values)
