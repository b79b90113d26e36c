"""A function over many items on all cores, for work that is done once per data set: decoding and encoding
images.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# Results per core that may wait for their turn: enough to keep every core busy, few enough to fit in memory.
MOST_WAITING = 4


def map_in_order(function: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
    """`function` of each item, in the order of the items; only `MOST_WAITING` results a core are held at a
    time.
    """
    cores = os.cpu_count() or 1
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(cores) as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= MOST_WAITING * cores:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
