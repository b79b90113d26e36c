"""Ctrl-C on the command line: one sentence and status 130, wherever the program is and however often it is
pressed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

STATUS = 128 + signal.SIGINT
SENTENCE = "cfol-fast: interrupted"


class Interrupts:
    """Context manager.

    `asked`: Ctrl-C was pressed, so whatever exception comes now may be a consequence of it.

    Libraries turn a KeyboardInterrupt into errors of their own, or lose it in a destructor: the exception
    alone says too little. A further Ctrl-C ends the process at once, since the first may be caught in
    something that does not end.
    """

    def __init__(self) -> None:
        self.asked = False
        self._process = os.getpid()
        self._before: Any = None
        self._before_save: Any = None
        self._hook = sys.unraisablehook

    def __enter__(self) -> Interrupts:
        # A script's background job ignores Ctrl-C. Only the main thread may change that.
        main_thread = threading.current_thread() is threading.main_thread()
        if main_thread:
            # It asks a run to save. Where there is none yet, and in workers, it must not end the process.
            self._before_save = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        if main_thread and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            self._before = signal.signal(signal.SIGINT, self._press)
            self._hook, sys.unraisablehook = sys.unraisablehook, self._lost
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            sys.unraisablehook = self._hook
            signal.signal(signal.SIGINT, self._before)
        if self._before_save is not None:
            signal.signal(signal.SIGUSR1, self._before_save)

    def _press(self, number: int, frame: FrameType | None) -> None:
        # An exception in the middle of loading a library in C++ makes that call abort(), and there is nothing
        # to clean up yet.
        if (self.asked or _is_importing(frame)) and os.getpid() == self._process:
            leave()
        self.asked = True
        raise KeyboardInterrupt

    def _lost(self, unraisable: Any) -> None:
        """A destructor or a callback from C swallowed the exception: without this the program would go on."""
        if issubclass(unraisable.exc_type, KeyboardInterrupt) and os.getpid() == self._process:
            leave()
        self._hook(unraisable)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def leave() -> None:
    """Ends the process with the sentence.

    Nothing is cleaned up; every file is written so that this may happen at any moment.
    """
    os.write(2, f"{SENTENCE}\n".encode())
    os._exit(STATUS)
