"""What a bandit hears of an example, from the logits of the training pass: a number in [0, 1]."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from cfol_fast.errors import InputError
from cfol_fast.user_input import shorten

Feedback = Callable[[Tensor, Tensor], Tensor]


def error(logits: Tensor, y: Tensor) -> Tensor:
    """1 where the network is wrong, else 0: (B,) float32. logits: (B, k); y: (B,) int64."""
    return (logits.argmax(dim=1) != y).float()


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """(1 - (q_y - largest q of another class)) / 2 of the softmax q: (B,) float32.

    1/2 on the boundary between two classes, 1 where another class has all, 0 where y has. It says how wrong
    an example is, where the error only says whether.
    """
    q = logits.float().softmax(dim=1)
    own = q.gather(1, y.unsqueeze(1)).squeeze(1)
    other = q.scatter(1, y.unsqueeze(1), 0.0).amax(dim=1)
    return ((1 - (own - other)) / 2).clamp(0, 1)


FEEDBACK: dict[str, Feedback] = {"error": error, "margin": margin}


def feedback(name: str) -> Feedback:
    """The feedback called `name`."""
    if not isinstance(name, str) or name not in FEEDBACK:
        raise InputError(f"feedback must be one of {', '.join(FEEDBACK)}, got {shorten(name)}")
    return FEEDBACK[name]
