"""What a person sees of a run: a live bar on a terminal, one plain line per epoch elsewhere.

The bar redraws on a clock, not on steps, and asks the device for the training error and p only then: reading them at every
step would make the device wait.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

Row = dict[str, Any]

BLOCKS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True)
class Reading:
    """What the device says now: training robust error since the epoch began, the worst class and its probability."""

    robust_error: float
    worst_class: str | None = None
    worst_p: float | None = None


class Progress:
    """Told about each step; shows what `stream` can show. `quiet` shows nothing."""

    def __init__(
        self, stream: TextIO | None = None, quiet: bool = False, redraw_seconds: float = 0.5
    ) -> None:
        self.stream = sys.stdout if stream is None else stream
        self.quiet = quiet
        self.live = not quiet and self.stream.isatty()
        self.redraw_seconds = redraw_seconds
        self._drawn = 0
        self._last_draw = 0.0
        self._epochs = self._epoch = self._total = self._first = 0
        self._batch = 1
        self._started = time.monotonic()

    def begin(self, step: int, total: int, epochs: int, batch: int) -> None:
        """The run starts, or continues, at `step` of `total`."""
        self._first, self._total, self._epochs, self._batch = step, total, epochs, batch
        self._started = time.monotonic()

    def step(self, step: int, epoch: int, read: Callable[[], Reading]) -> None:
        """`step` steps are done; `read` is called only if the bar is due to be drawn."""
        if not self.live:
            return
        now = time.monotonic()
        if now - self._last_draw < self.redraw_seconds:
            return
        self._last_draw = now
        reading = read()
        seconds = now - self._started
        done = step - self._first
        rate = done * self._batch / seconds if seconds > 0 else 0.0
        left = seconds / done * (self._total - step) if done else 0.0
        share = step / self._total if self._total else 1.0
        head = f"epoch {epoch + 1}/{self._epochs} "
        text = (
            f" {share:.0%}  {rate:,.0f} images/s  {clock(left)} left  robust error {reading.robust_error:.1%}"
        )
        if reading.worst_class is not None:
            text += f"  worst {reading.worst_class}"
            text += "" if reading.worst_p is None else f" (p {reading.worst_p:.2f})"
        room = min(20, self._width() - len(head) - len(text))  # the bar takes what the figures leave
        self._draw(head + (bar(share, room) if room >= 4 else "") + text)

    def busy(self, text: str) -> None:
        """A transient note on the live line (validation, the final test)."""
        if self.live and time.monotonic() - self._last_draw >= self.redraw_seconds:
            self._last_draw = time.monotonic()
            self._draw(text)

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.quiet:
            return
        self.clear()
        print(text, file=self.stream, flush=True)

    def row(self, row: Row, epochs: int, classes: list[str], validation: Row | None) -> None:
        """The line of a finished epoch."""
        text = (
            f"epoch {row['epoch']}/{epochs}  loss {row['loss']:.3f}  robust error {row['robust_error']:.1%}"
        )
        errors = [e if e is not None else -1.0 for e in row["class_error"]]
        worst = max(range(len(errors)), key=errors.__getitem__)
        text += f"  worst {classes[worst]} {errors[worst]:.1%}"
        if row["p"] is not None:
            text += f" (p {row['p'][worst]:.2f})"
        if validation is not None:
            robust = validation["robust"]
            text += f"  {validation['split']}: robust {robust['average']:.1%}"
            text += f", worst {robust['worst_class']} {robust['worst']:.1%}"
        self.say(f"{text}  {row['images_per_second']:,.0f} images/s  {clock(row['seconds'])}")

    def clear(self) -> None:
        if self.live and self._drawn:
            self.stream.write("\r" + " " * self._drawn + "\r")
            self.stream.flush()
            self._drawn = 0

    def _width(self) -> int:
        return max(20, shutil.get_terminal_size().columns - 1)

    def _draw(self, text: str) -> None:
        text = text[: self._width()]
        self.stream.write("\r" + text.ljust(self._drawn))
        self.stream.flush()
        self._drawn = len(text)


class Stopwatch:
    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the last lap."""
        return time.monotonic() - self._start

    def lap(self) -> float:
        """Seconds since the last lap; begins a new one."""
        now = time.monotonic()
        seconds, self._start = now - self._start, now
        return seconds


def bar(share: float, width: int) -> str:
    """A bar with eighths of a character: `████▌   `."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (BLOCKS[rest] if rest else "")).ljust(width)


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
