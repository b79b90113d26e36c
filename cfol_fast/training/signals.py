"""SIGTERM, SIGHUP (a closed terminal) and Ctrl-C ask a run to stop: it finishes its step, saves, and leaves. A second Ctrl-C leaves at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopRequest:
    """Context manager that turns the signals into a flag the loop looks at. Only the main thread gets signals.

    signal_number: what this process was sent. agreed: what any rank was sent, known to all of them since the same step.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self.agreed: int | None = None
        self._before: dict[int, object] = {}

    @property
    def requested(self) -> bool:
        return self.signal_number is not None

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # Under nohup a run outlives its terminal.
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_number = number

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
