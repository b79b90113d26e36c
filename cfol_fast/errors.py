"""What ends a command other than success or a bug of ours; `commands/main.py` turns each into a message and
an exit status.
"""

from __future__ import annotations


class InputError(ValueError):
    """A bad option, file or value, said in one sentence that names the value, the limit and the way out.

    Exit status 2.
    """


class DataLost(InputError):
    """An image file that a run needs went away or broke while it was going on; the trainer saves first."""


class TrainingFailed(RuntimeError):
    """The run cannot go on (the loss is not finite, a kernel saw bad values); its last good checkpoint is
    kept. Exit status 1.
    """


class Stopped(Exception):
    """The run was asked to stop by a signal and has saved. Exit status 128 + the signal's number."""

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.signal_number = signal_number

    def __reduce__(self) -> tuple[type[Stopped], tuple[int, str]]:
        # It travels from rank to rank.
        return Stopped, (self.signal_number, str(self))


def one_line(error: BaseException) -> str:
    """What an exception says, on one line, for a message that quotes it.

    A file's contents cannot steer the terminal that shows it.
    """
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text) or type(error).__name__
