"""What a run is asked from outside, by signals; the training loop looks at it between two steps.

SIGTERM, SIGHUP (a closed terminal) and Ctrl-C: finish the step, save, and leave. A second Ctrl-C leaves at
once. SIGUSR1, which SLURM sends before a job's time is over (`--signal=USR1@120`): save, and go on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Any

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SAVE = signal.SIGUSR1
STOPPING = "cfol-fast: stopping after this step; Ctrl-C again leaves at once"


class StopRequest:
    """Context manager that turns the signals into flags the loop looks at. Only the main thread gets signals.

    signal_number: what this process was sent to stop it. save: whether this process was asked to save.
    says_so: answer the first Ctrl-C on the standard error at once, since a step may take seconds.
    """

    def __init__(self, says_so: bool = False) -> None:
        self._says_so = says_so
        self.signal_number: int | None = None
        self.save = False
        self._interrupts = 0
        self._before: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        return self.signal_number is not None

    def take_save(self) -> bool:
        """Whether to save; asked once for each request."""
        asked, self.save = self.save, False
        return asked

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in STOP:
                # Under nohup a run outlives its terminal, in a script's background Ctrl-C.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._ask)
            # Also where it was ignored, so that a job script and torchrun can ignore it for themselves.
            self._before[SAVE] = signal.signal(SAVE, self._ask_to_save)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._interrupts += number == signal.SIGINT
        self.signal_number = self.signal_number or number
        if self._interrupts > 1:
            # Whoever handled Ctrl-C before the run, Python itself if nobody did, leaves.
            handler = self._before.get(signal.SIGINT)
            (handler if callable(handler) else signal.default_int_handler)(number, frame)
        elif self._interrupts and number == signal.SIGINT and self._says_so:
            # A buffered stream may be in the middle of a write. The terminal shows ^C on the live line.
            with contextlib.suppress(OSError):
                os.write(2, f"\n{STOPPING}\n".encode())

    def _ask_to_save(self, number: int, frame: FrameType | None) -> None:
        self.save = True
        if callable(before := self._before.get(SAVE)):
            before(number, frame)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # None: a handler that was not set in Python cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
