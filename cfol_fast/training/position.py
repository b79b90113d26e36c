"""How far a run is, and how far it goes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Position:
    """How far a run is. The names of the fields are keys of the checkpoint.

    step: steps that are done. epoch: epochs that are finished, validated and logged.
    seconds: over all parts of a run that was interrupted. epoch_seconds: of training, without validation, in
    this epoch.
    best: for each early-stopping rule the checkpoint's name and its {"epoch", "value"}, of the worst
    class with what is compared "then".
    """

    step: int = 0
    epoch: int = 0
    seconds: float = 0.0
    epoch_seconds: float = 0.0
    best: dict[str, dict[str, Any]] = field(default_factory=dict)

    def spend(self, seconds: float) -> None:
        """A step took so long."""
        self.seconds += seconds
        self.epoch_seconds += seconds

    def end_epoch(self) -> None:
        self.epoch += 1
        self.epoch_seconds = 0.0

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for key, value in state.items():
            setattr(self, key, value)


@dataclass(frozen=True)
class Length:
    """How far a run goes."""

    epochs: int
    steps_per_epoch: int
    batch_size: int

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    @property
    def draws(self) -> int:
        return self.steps * self.batch_size
