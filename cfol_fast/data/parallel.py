"""A function over many items on all cores, for work that is done once per data set: decoding and encoding images."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# Results that may wait for their turn: enough to keep every core busy, few enough to fit in memory.
MOST_WAITING = 256


def map_in_order(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """`function` of each item, in the order of the items; only `MOST_WAITING` results are held at a time."""
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= MOST_WAITING:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
