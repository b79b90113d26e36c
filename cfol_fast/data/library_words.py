"""What C libraries write to stderr while an image is decoded.

libpng and libjpeg write their warnings of damaged or odd files to C's `stderr`, from inside the decoder, and
no program can ask them not to. While images are decoded that name points to a file in memory; what other
libraries wrote there meanwhile goes to the real one afterwards. Python's own stderr is not concerned.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import threading
from collections.abc import Iterator

# How the words of libpng and libjpeg begin.
OF_DECODERS = (
    b"libpng ",
    b"Corrupt JPEG data",
    b"Premature end of JPEG",
    b"Invalid SOS parameters",
    b"Inconsistent progression sequence",
    b"Unknown Adobe color transform",
    b"Warning: unknown JFIF revision",
    b"Application transferred too many scanlines",
)


class CaughtWords:
    """Any number of threads may be in `caught()` at once: the first one redirects, the last one restores."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._stream: ctypes.c_void_p | None = None
        self._real: int | None = None
        self._memory = -1
        self._libc, self._is_glibc = ctypes.CDLL(None), platform.libc_ver()[0] == "glibc"

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._redirect()
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    self._restore()

    def _redirect(self) -> None:
        # In other C libraries `stderr` is a constant.
        if not self._is_glibc:
            return
        libc = self._libc
        if self._stream is None:
            self._memory = os.memfd_create("decoders' words")
            libc.fdopen.restype = ctypes.c_void_p
            self._stream = ctypes.c_void_p(libc.fdopen(self._memory, b"a"))
            libc.setvbuf(self._stream, None, 2, 0)
        place = ctypes.c_void_p.in_dll(libc, "stderr")
        self._real, place.value = place.value, self._stream.value

    def _restore(self) -> None:
        if self._real is None:
            return
        ctypes.c_void_p.in_dll(self._libc, "stderr").value = self._real
        self._real = None
        if size := os.fstat(self._memory).st_size:
            lines = os.pread(self._memory, size, 0).splitlines(keepends=True)
            os.ftruncate(self._memory, 0)
            others = b"".join(line for line in lines if not line.startswith(OF_DECODERS))
            if others:
                with contextlib.suppress(OSError):
                    os.write(2, others)


caught = CaughtWords().caught
