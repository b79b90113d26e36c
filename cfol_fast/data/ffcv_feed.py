"""FFCV's loader, fed one batch of indices at a time; import it inside `ffcv_install.quietly()`.

FFCV fixes the order of a whole epoch when it begins. Here its loader thread takes the next batch's indices from a ring that the
trainer fills, so the indices of a step can depend on the step before. Each of FFCV's traps is closed where a comment says so.
"""

from __future__ import annotations

import atexit
import queue
import threading
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numba
import numpy as np
import torch
from ffcv.fields.decoders import NDArrayDecoder, SimpleRGBImageDecoder
from ffcv.libffcv import imdecode, memcpy
from ffcv.loader import Loader, OrderOption
from ffcv.loader import loader as ffcv_loader
from ffcv.loader.epoch_iterator import EpochIterator
from ffcv.memory_managers import OSCacheManager
from ffcv.pipeline.allocation_query import AllocationQuery
from ffcv.pipeline.compiler import Compiler
from ffcv.pipeline.state import State
from torch import Tensor

from cfol_fast._host import IndexRing
from cfol_fast.data.beton import JPG, RGB, Beton

# Two loaders may be at work at the same time (training and evaluation). numba's simplest threading layer aborts the process
# when two threads enter parallel code together, so they take turns.
_DECODING = threading.Lock()


class FlatImages(SimpleRGBImageDecoder):
    """Decodes an image to the first h*w*3 bytes of its row, whatever its size, and says which could not be decoded."""

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Any]:
        assert self.metadata is not None
        areas = self.metadata["height"].astype(np.int64) * self.metadata["width"].astype(np.int64)
        shape, kind = (int(areas.max()) * 3,), np.dtype("<u1")
        state = replace(previous_state, jit_mode=True, shape=shape, dtype=kind)
        return state, (AllocationQuery(shape, kind), AllocationQuery((1,), kind))

    def generate_code(self) -> Any:
        read, each = self.memory_read, Compiler.get_iterator()
        decode_jpeg, copy = Compiler.compile(imdecode), Compiler.compile(memcpy)
        jpg = JPG

        def decode(batch_indices, memory, metadata, storage_state):  # type: ignore[no-untyped-def]
            rows, failed = memory
            for i in each(len(batch_indices)):
                entry = metadata[batch_indices[i]]
                stored = read(entry["data_ptr"], storage_state)
                height, width = np.uint32(entry["height"]), np.uint32(entry["width"])
                failed[i, 0] = 0
                if entry["mode"] == jpg:
                    # FFCV drops this status, and a damaged JPEG gives whatever the buffer held before.
                    status = decode_jpeg(
                        stored, rows[i], height, width, height, width, 0, 0, 1, 1, False, False
                    )
                    if status != 0:
                        failed[i, 0] = 1
                else:
                    copy(stored, rows[i])
            return rows, failed

        decode.is_parallel = True  # type: ignore[attr-defined]
        return decode


class FlatArrays(NDArrayDecoder):
    """The same for images stored as arrays (one channel)."""

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Any]:
        shape, kind = (int(np.prod(self.field.shape)),), np.dtype("<u1")
        state = replace(previous_state, jit_mode=True, shape=shape, dtype=kind)
        return state, (AllocationQuery(shape, kind), AllocationQuery((1,), kind))

    def generate_code(self) -> Any:
        read, each, copy = self.memory_read, Compiler.get_iterator(), Compiler.compile(memcpy)

        def decode(batch_indices, memory, metadata, storage_state):  # type: ignore[no-untyped-def]
            rows, failed = memory
            for i in each(len(batch_indices)):
                copy(read(metadata[batch_indices[i]], storage_state), rows[i])
                failed[i, 0] = 0
            return rows, failed

        decode.is_parallel = True  # type: ignore[attr-defined]
        return decode


class ReadOnlyFile(OSCacheManager):
    """FFCV's own marks a type that numba shares between all functions as read-only, in place, which breaks numba's tables."""

    def compile_reader(self) -> Any:  # type: ignore[override]
        return _compiled_reader()


@lru_cache
def _compiled_reader() -> Any:
    def read(address, state):  # type: ignore[no-untyped-def]
        size = state[2][np.searchsorted(state[1], address)]
        return state[0][address : address + size]

    stored, numbers = numba.types.Array(numba.uint8, 1, "C", readonly=True), numba.uint64[::1]
    return Compiler.compile(read, stored(numba.uint64, numba.types.Tuple([stored, numbers, numbers])))


def make_loader(file: Beton, workers: int) -> Loader:
    """FFCV's loader for the images alone; the labels are known already."""
    decoder = FlatImages() if file.kind == RGB else FlatArrays()
    threads, manager = numba.get_num_threads(), ffcv_loader.OSCacheManager
    ffcv_loader.OSCacheManager = ReadOnlyFile  # the Loader takes no other way to be given one
    try:
        return Loader(
            str(file.path),
            batch_size=1,  # set when a feed begins
            num_workers=min(workers, numba.config.NUMBA_NUM_THREADS),  # type: ignore[attr-defined]
            os_cache=True,  # the other way needs the epoch's order in advance
            order=OrderOption.SEQUENTIAL,
            seed=0,  # without one FFCV draws it from numpy's global generator, which belongs to the user
            pipelines={name: [decoder] if name == file.image_field else None for name in file.fields},
        )
    finally:
        ffcv_loader.OSCacheManager = manager
        numba.set_num_threads(threads)


class Feed(EpochIterator):
    """The loader's thread for one run over batches of at most `width` indices, drawn at most `lag` batches ahead.

    The trainer's thread calls `push` (or `finish`) and then `pull`, alternately, after `lag` calls of `push` alone.
    """

    current_batch_slot: int

    def __init__(self, loader: Loader, width: int, lag: int, cuda: bool) -> None:
        # In flight: lag + 1 batches, and the row of the batch handed out last, which the thread frees when it takes the next.
        rows = torch.empty((lag + 2, width), dtype=torch.int64, pin_memory=cuda)
        self._rows, self._indices = rows, rows.numpy()
        self._copied: list[Any] = [None] * len(rows)
        self._ring = IndexRing(self._indices)
        # Not FFCV's own queue: with batches_ahead=0 that has no bound, and its put() can block forever. Here the ring is the bound.
        self._decoded: queue.SimpleQueue[Any] = queue.SimpleQueue()
        loader.batch_size, loader.batches_ahead = width, lag + 1
        super().__init__(
            loader, np.empty(0, np.int64)
        )  # an empty order: no epoch, no schedule of pages; starts the thread

    def start(self) -> None:
        # A thread that waits while the interpreter shuts down would be torn out of C++.
        atexit.register(self.close)
        super().start()

    def push(self, idx: Tensor) -> None:
        """Trainer: hands on a batch of indices without waiting for the device."""
        slot = self._ring.reserve()
        if slot < 0:
            raise RuntimeError("more batches pushed than the feed was made for")
        count = min(len(idx), self._ring.width)
        self._rows[slot, :count].copy_(idx[:count], non_blocking=True)
        if idx.is_cuda:
            self._copied[slot] = torch.cuda.Event()
            self._copied[slot].record()
        self._ring.commit(len(idx))

    def finish(self) -> None:
        """Trainer: no more batches will be pushed."""
        self._ring.finish()

    def pull(self) -> np.ndarray:
        """Trainer: the next batch, uint8 (B, bytes); valid until the next call of push or pull."""
        while True:
            try:
                result = self._decoded.get(timeout=1.0)
            except queue.Empty:
                if not self.is_alive():
                    raise RuntimeError("the FFCV loader's thread is gone") from None
                continue
            if isinstance(
                result, BaseException
            ):  # in FFCV an error in the thread leaves the trainer waiting forever
                raise result
            return result

    def run(self) -> None:
        # FFCV's run() also sets torch's thread count, for the whole process. numba's count belongs to this thread alone.
        try:
            numba.set_num_threads(self.loader.num_workers)
            while (taken := self._ring.take()) is not None:
                self._decode(*taken)
        except BaseException as error:
            self._decoded.put(error)

    def _decode(self, row: int, count: int) -> None:
        if self._copied[row] is not None:
            self._copied[row].synchronize()  # the only wait for the device, and not the trainer's
        limit = int(self.loader.reader.num_samples)
        outside = self._ring.find_outside(row, limit)
        if outside >= 0:  # FFCV would read whatever lies there, or return zeros
            raise IndexError(
                f"index {self._indices[row, outside]} is not in 0..{limit - 1}, the images of {self.loader.fname}"
            )
        indices = self._indices[row, :count]
        slot = self.current_batch_slot
        self.current_batch_slot = (slot + 1) % (self.loader.batches_ahead + 2)
        with _DECODING:
            ((pixels, failed),) = self.run_pipeline(0, indices, slot, None)
        if failed.any():
            first = int(indices[int(np.flatnonzero(failed)[0])])
            raise ValueError(
                f"{self.loader.fname}: image {first} is damaged and cannot be decoded: write the file again"
            )
        self._decoded.put(pixels)

    def close(self) -> None:
        """Ends the thread, also in the middle; FFCV leaves it behind when a loop is left early."""
        self._ring.close()
        if self.is_alive():
            self.join()
        atexit.unregister(self.close)

    def __del__(self) -> None:
        """FFCV's would wake the thread while the interpreter shuts down; `close` does the work."""
