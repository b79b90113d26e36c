"""The processes of one job: which of them this one is, as torchrun or torch.distributed says.

Training and evaluation are one process's work so far. Two that do not know of each other would do the same run twice, so they are
refused; a training loop of one's own may have many (docs/own-loop.md).
"""

from __future__ import annotations

import os
import sys

from cfol_fast.errors import InputError


def group_size() -> int:
    """How many processes torch's process group has; 1 without one."""
    # A process group needs torch; the command line asks before it has loaded that.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())


def rank_and_size() -> tuple[int, int]:
    """This process's number and how many there are, as torchrun says. (0, 1): alone."""
    try:
        return int(os.environ.get("RANK", "0")), max(1, int(os.environ.get("WORLD_SIZE", "1")))
    # Somebody else's variables: torchrun writes numbers.
    except ValueError:
        return 0, 1


def refuse_many(what: str) -> None:
    """Stops `what`, which would be done again by each of several processes."""
    size = max(rank_and_size()[1], group_size())
    if size > 1:
        raise InputError(
            f"{what} runs in one process so far, and {size} were started: each would do the same work again; start one, without "
            "torchrun (a training loop of your own may have many: docs/own-loop.md)"
        )
