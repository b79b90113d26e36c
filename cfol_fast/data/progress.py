"""A progress bar for work that is done once (decoding, writing): live on a terminal, one line at the end elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TextIO, TypeVar

T = TypeVar("T")


def track(
    items: Iterable[T], total: int, what: str, show: bool = True, stream: TextIO | None = None
) -> Iterator[T]:
    """Passes `items` on, reporting how many of `total` went by."""
    out = stream or sys.stderr
    live = show and out.isatty()
    start = shown = time.monotonic()
    done = 0
    for done, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if live and (now - shown > 0.1 or done == total):
            shown = now
            filled = 30 * done // max(total, 1)
            left = (now - start) / done * (total - done)
            print(
                f"\r{what} [{'#' * filled}{'.' * (30 - filled)}] {done:,}/{total:,}, {left:.0f} s left ",
                end="",
                file=out,
            )
    if live:
        print(file=out)
    elif show:
        print(f"{what}: {done:,} done", file=out)
