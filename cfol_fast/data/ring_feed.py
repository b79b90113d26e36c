"""A thread that makes batches of the indices that the trainer hands it: the base of FFCV's feed and of the
stream's.

The thread takes the next batch's indices from a ring that the trainer fills, so the indices of a step can
depend on the step before, and the result cannot depend on the time that the thread takes.
"""

from __future__ import annotations

import atexit
import queue
import threading
from typing import Any

import torch
from torch import Tensor

from cfol_fast._host import IndexRing


class RingFeed(threading.Thread):
    """The thread for one run over batches of at most `width` indices, drawn at most `lag` batches ahead.

    The trainer's thread calls `push` (or `finish`) and then `pull`, alternately, after `lag` calls of `push`
    alone. The two threads share Python's lock, so what this one does for a batch is made beforehand wherever
    it can be.
    device: the GPU that the indices come from and the pixels go to, or None. A subclass says in `_decode`
    what is made of a row of the ring, and calls `_start_ring` before the thread starts.
    """

    def _start_ring(self, width: int, lag: int, device: torch.device | None, limit: int, where: str) -> None:
        """limit, where: indices must be below `limit`, the number of images of `where`."""
        # In flight: lag + 1 batches, and the row of the batch handed out last, which the thread frees when it
        # takes the next.
        rows = torch.empty((lag + 2, width), dtype=torch.int64, pin_memory=device is not None)
        self._rows, self._indices = list(rows), list(rows.numpy())
        self._device = device
        self._copied: list[Any] = [None] * len(rows)
        self._limit, self._where = limit, where
        self._ring = IndexRing(rows.numpy())
        # Without a bound: the ring is the bound.
        self._decoded: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def start(self) -> None:
        # A thread that still waits in C++ when the interpreter shuts down would end the process with an
        # error.
        atexit.register(self.close)
        super().start()

    def push(self, idx: Tensor) -> None:
        """Trainer: hands on a batch of indices without waiting for the device."""
        slot = self._ring.reserve()
        if slot < 0:
            raise RuntimeError("more batches pushed than the feed was made for")
        row, fitting = self._rows[slot], idx
        # The last batch may be shorter; a longer one is refused by commit.
        if len(idx) != len(row):
            row, fitting = row[: len(idx)], idx[: len(row)]
        row.copy_(fitting, non_blocking=True)
        if self._device is not None:
            # Also for indices that are here already: a feed may decode into pinned memory, from where the
            # pixels of an earlier batch may still be on their way. That copy was queued before this event.
            # The stream is that of the feed's own device: the current device may be another one, on whose
            # stream nothing of this is queued. blocking: the feed's thread sleeps while it waits and leaves
            # the core to the trainer.
            self._copied[slot] = torch.cuda.Event(blocking=True)
            self._copied[slot].record(torch.cuda.current_stream(self._device))
        self._ring.commit(len(idx))

    def finish(self) -> None:
        """Trainer: no more batches will be pushed."""
        self._ring.finish()

    def pull(self) -> Any:
        """Trainer: the next batch as `_decode` made it; valid until the next call of push or pull."""
        while True:
            try:
                result = self._decoded.get(timeout=1.0)
            except queue.Empty:
                # The thread may have put its last batch and ended since the wait was over: look at the queue
                # after it.
                if self.is_alive() or not self._decoded.empty():
                    continue
                raise RuntimeError("the thread that feeds the batches is gone") from None
            if isinstance(result, BaseException):
                raise result
            return result

    def run(self) -> None:
        try:
            while (taken := self._ring.take()) is not None:
                self._decode(*taken)
        # An error in the thread would leave the trainer waiting forever.
        except BaseException as error:
            self._decoded.put(error)

    def _decode(self, row: int, count: int) -> None:
        """Puts the batch of the `count` indices of a row into `_decoded`."""
        raise NotImplementedError

    def _wait_for(self, row: int) -> None:
        """Waits for the device, in this thread and not in the trainer's, and refuses indices outside."""
        if self._copied[row] is not None:
            self._copied[row].synchronize()
        outside = self._ring.find_outside(row, self._limit)
        if outside >= 0:
            index = self._indices[row][outside]
            raise IndexError(f"index {index} is not in 0..{self._limit - 1}, the images of {self._where}")

    def close(self) -> None:
        """Ends the thread, also in the middle."""
        self._ring.close()
        if self.is_alive():
            self.join()
        atexit.unregister(self.close)
