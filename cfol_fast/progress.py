"""What a person sees of long work: the lines of the log, and on a terminal a live line under them.

The package talks through the logger "cfol_fast": INFO is what a run says, WARNING is doubt about its figures.
`printed` shows these lines for a while. `Progress` shows a training run, `Count` work that is counted (an
evaluation's images), `track` the items of a loop. A live line is drawn again on a clock, not on steps: asking
the device for figures at every step would make it wait.
"""

from __future__ import annotations

import errno
import logging
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TextIO, TypeVar

from cfol_fast.plain_text import named, worst_class

Row = dict[str, Any]
T = TypeVar("T")

BLOCKS = " ▏▎▍▌▋▊▉█"
PACKAGE_LOGGER = logging.getLogger("cfol_fast")
# A level that no record has.
SILENCE = logging.CRITICAL + 1
WARNING = "warning: "

logger = logging.getLogger(__name__)


def show(stream: TextIO | None, text: str) -> None:
    """Writes at once. A terminal that was closed is no reason to lose a run: what cannot be shown is not."""
    if stream is None:
        # Python's own for a closed standard output.
        return
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        if error.errno != errno.EIO:
            raise


class LiveLine:
    """The last line of a terminal, drawn over and over.

    `live` is False, and nothing is drawn, where there is no terminal.
    """

    # The one that the terminal shows now.
    drawn: ClassVar[LiveLine | None] = None

    def __init__(self, stream: TextIO | None, redraw_seconds: float) -> None:
        self.stream, self.redraw_seconds = stream, redraw_seconds
        self.live = stream is not None and stream.isatty()
        self._length = 0
        self._drawn_at = 0.0

    def due(self) -> bool:
        """Whether it is time to draw again; if so, the clock starts anew."""
        if not self.is_due():
            return False
        self._drawn_at = time.monotonic()
        return True

    def is_due(self) -> bool:
        return self.live and time.monotonic() - self._drawn_at >= self.redraw_seconds

    def draw(self, text: str) -> None:
        text = text[: self.width()]
        show(self.stream, "\r" + text.ljust(self._length))
        self._length = len(text)
        LiveLine.drawn = self

    def clear(self) -> None:
        if self._length:
            show(self.stream, "\r" + " " * self._length + "\r")
            self._length = 0
        if LiveLine.drawn is self:
            LiveLine.drawn = None

    def width(self) -> int:
        return max(20, shutil.get_terminal_size().columns - 1)


class Lines(logging.Handler):
    """Shows every record as a line that stays; a live line is cleared first. stream: the standard output of
    the moment by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        # A full disk or a closed pipe is the caller's to hear of, as with `print`.
        text = (WARNING if record.levelno == logging.WARNING else "") + self.format(record)
        if LiveLine.drawn is not None:
            LiveLine.drawn.clear()
        show(self._stream or sys.stdout, text + "\n")


@contextmanager
def printed(quiet: bool = False, always: bool = False, stream: TextIO | None = None) -> Iterator[bool]:
    """Shows the lines of the log during the block; yields whether it does.

    Not where the user's own logging hears them, unless `always`. quiet: nothing is shown, also inside another
    `printed`; the user's own logging hears the lines all the same.
    """
    handler = _ours()
    if handler is None and not quiet and (always or not _heard_elsewhere()):
        with _attached(Lines(stream)):
            yield True
        return
    before = SILENCE if handler is None else handler.level
    if handler is not None and quiet:
        handler.setLevel(SILENCE)
    try:
        yield handler is not None and handler.level < SILENCE
    finally:
        if handler is not None:
            handler.setLevel(before)


@contextmanager
def silenced() -> Iterator[None]:
    """Nobody hears the log during the block: of many ranks only the first speaks."""
    before = PACKAGE_LOGGER.level
    PACKAGE_LOGGER.setLevel(SILENCE)
    try:
        yield
    finally:
        PACKAGE_LOGGER.setLevel(before)


def is_heard() -> bool:
    """Whether a line of the log reaches somebody now."""
    handler = _ours()
    return (handler is not None and handler.level < SILENCE) or _heard_elsewhere()


def tell(logger: logging.Logger, line: str) -> None:
    """Logs a line that is a warning if it begins so."""
    level = logging.WARNING if line.startswith(WARNING) else logging.INFO
    logger.log(level, line.removeprefix(WARNING))


def _ours() -> Lines | None:
    return next((handler for handler in PACKAGE_LOGGER.handlers if isinstance(handler, Lines)), None)


def _heard_elsewhere() -> bool:
    """Whether the user has set up logging for this package: a handler of its own, or one at the root and a
    level that lets lines through.
    """
    if any(not isinstance(handler, (logging.NullHandler, Lines)) for handler in PACKAGE_LOGGER.handlers):
        return True
    at_root = PACKAGE_LOGGER.propagate and bool(logging.getLogger().handlers)
    return at_root and (PACKAGE_LOGGER.level != logging.NOTSET or PACKAGE_LOGGER.isEnabledFor(logging.INFO))


@contextmanager
def _attached(handler: Lines) -> Iterator[None]:
    level, propagate = PACKAGE_LOGGER.level, PACKAGE_LOGGER.propagate
    PACKAGE_LOGGER.addHandler(handler)
    if level == logging.NOTSET:
        PACKAGE_LOGGER.setLevel(logging.INFO)
    # A handler at the root, which every notebook of some hosts has, would show each line a second time.
    PACKAGE_LOGGER.propagate = False
    try:
        yield
    finally:
        PACKAGE_LOGGER.removeHandler(handler)
        PACKAGE_LOGGER.setLevel(level)
        PACKAGE_LOGGER.propagate = propagate


@dataclass(frozen=True)
class Reading:
    """What the device says now: training robust error since the epoch began, the worst class and its
    probability.
    """

    robust_error: float
    worst_class: str | None = None
    worst_p: float | None = None


class Progress:
    """The progress of a training run, which calls `step` after every step. `quiet`: no bar.

    The log gets a line at every epoch and, where no bar is, after `log_seconds` in a long epoch or phase.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        quiet: bool = False,
        redraw_seconds: float = 0.5,
        log_seconds: float = 60.0,
    ) -> None:
        self.stream = sys.stdout if stream is None else stream
        self.log_seconds = log_seconds
        self._line = LiveLine(self.stream, redraw_seconds)
        self.quiet = quiet
        self._line.live = self._line.live and not quiet
        self._epochs = self._total = self._first = 0
        self._batch = 1
        self._step = 0
        self._started = self._said = time.monotonic()
        # The phase beside the steps, and when it began.
        self._phase: tuple[str, float] = ("", 0.0)

    def begin(self, step: int, total: int, epochs: int, batch: int) -> None:
        """The run starts, or continues, at `step` of `total`."""
        self._first, self._total, self._epochs, self._batch = step, total, epochs, batch
        self._step = step
        self._started = self._said = time.monotonic()

    def step(self, step: int, epoch: int, read: Callable[[], Reading | None]) -> None:
        """`step` steps are done; `read` is called only if the bar is due to be drawn, which goes without
        figures if it has none.
        """
        self._step = step
        silent = self._silent()
        if not silent and not self._line.due():
            return
        seconds = time.monotonic() - self._started
        rate = (step - self._first) * self._batch / seconds if seconds > 0 else 0.0
        share = step / self._total if self._total else 1.0
        head = f"epoch {epoch + 1}/{self._epochs} "
        text = f" {share:.0%}  {rate:,.0f} images/s  {clock(self._left())} left"
        if silent:
            self._say(head + text)
            return
        reading = read()
        text += "" if reading is None else f"  robust error {reading.robust_error:.1%}"
        if reading is not None and reading.worst_class is not None:
            text += f"  worst {reading.worst_class}"
            text += "" if reading.worst_p is None else f" (p {reading.worst_p:.2f})"
        # The bar takes what the figures leave.
        room = min(20, self._line.width() - len(head) - len(text))
        self._line.draw(head + (bar(share, room) if room >= 4 else "") + text)

    def wants_reading(self) -> bool:
        """Whether the next `step` will draw the bar, with figures from the device."""
        return self._line.is_due()

    def busy(self, what: str, done: int, total: int) -> None:
        """How far a phase beside the steps is, in images (validation, the final test)."""
        if done == 0 or self._phase[0] != what:
            self._phase = (what, time.monotonic())
        silent = self._silent()
        if silent or self._line.due():
            left = (time.monotonic() - self._phase[1]) * (total - done) / max(1, done)
            text = f"{what}: {done:,} of {total:,} images" + (f", {clock(left)} left" if done else "")
            (self._say if silent else self._line.draw)(text)
        if done >= total:
            self._phase = ("", 0.0)

    def _silent(self) -> bool:
        """Whether a log has been without a line for too long."""
        return not self._line.live and time.monotonic() - self._said >= self.log_seconds

    def _left(self) -> float:
        """Seconds to the end of the run, at the speed so far."""
        done = self._step - self._first
        return (time.monotonic() - self._started) / done * (self._total - self._step) if done else 0.0

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        logger.info(text)

    def row(self, row: Row, epochs: int, classes: list[str], validation: Row | None) -> None:
        """The line of a finished epoch."""
        text = (
            f"epoch {row['epoch']}/{epochs}  loss {row['loss']:.3f}  robust error {row['robust_error']:.1%}"
        )
        errors = [e if e is not None else -1.0 for e in row["class_error"]]
        worst = max(range(len(errors)), key=errors.__getitem__)
        equal = [name for name, error in zip(classes, errors, strict=True) if error == errors[worst]]
        text += f"  worst {named(equal)} {errors[worst]:.1%}"
        if row["p"] is not None:
            text += f" (p {row['p'][worst]:.2f})"
        if validation is not None:
            robust = validation["robust"]
            text += f"  {validation['split']}: robust {robust['average']:.1%}"
            text += f", worst {worst_class(robust)}"
            if "ema" in validation:
                robust = validation["ema"]["robust"]
                text += f"; ema: robust {robust['average']:.1%}, worst {worst_class(robust)}"
        text += f"  {row['images_per_second']:,.0f} images/s  {clock(row['seconds'])}"
        self._say(text + (f"  {clock(self._left())} left" if self._first < self._step < self._total else ""))

    def clear(self) -> None:
        self._line.clear()


class Count:
    """How far counted work is, on stderr: `count(done, total)` after every piece.

    A terminal shows one line, which goes when the work is done. Elsewhere there is a line every half minute
    and one at the end.
    """

    def __init__(
        self, what: str, stream: TextIO | None = None, redraw_seconds: float = 0.2, log_seconds: float = 30.0
    ) -> None:
        self.what, self.log_seconds = what, log_seconds
        self.stream = sys.stderr if stream is None else stream
        self._line = LiveLine(self.stream, redraw_seconds)
        self._started = self._logged = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        finished = done >= total
        if self._line.live:
            if finished:
                self._line.clear()
            elif self._line.due():
                left = (now - self._started) * (total - done) / max(1, done)
                share = bar(done / max(1, total), 20)
                self._line.draw(f"{self.what} {share} {done:,} of {total:,}, {clock(left)} left")
        elif finished or now - self._logged >= self.log_seconds:
            self._logged = now
            left = (now - self._started) * (total - done) / max(1, done)
            show(
                self.stream,
                f"{self.what}: {done:,} of {total:,}" + ("\n" if finished else f", {clock(left)} left\n"),
            )

    def clear(self) -> None:
        self._line.clear()


def track(
    items: Iterable[T], total: int, what: str, show: bool = True, stream: TextIO | None = None
) -> Iterator[T]:
    """Passes `items` on and shows how many of `total` went by."""
    count = Count(what, stream) if show else None
    try:
        for done, item in enumerate(items, 1):
            yield item
            if count is not None:
                count(done, total)
    finally:
        if count is not None:
            count.clear()


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
