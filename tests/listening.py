"""A user's own logging: a handler at the logger of the package."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Handler(logging.Handler):
    def __init__(self, hear: Callable[[str], None]) -> None:
        super().__init__()
        self.hear = hear

    def emit(self, record: logging.LogRecord) -> None:
        self.hear(record.getMessage())


@contextmanager
def listening(hear: Callable[[str], None]) -> Iterator[None]:
    """`hear` gets every line that the package logs."""
    logger, handler = logging.getLogger("cfol_fast"), _Handler(hear)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
