"""FFCV's loader, fed one batch of indices at a time; import it inside `install.using_ffcv()`.

FFCV fixes the order of a whole epoch when it begins. Here its loader thread takes the next batch's indices
from a ring that the trainer fills, so the indices of a step can depend on the step before. Each of FFCV's
traps is closed where a comment says so.
"""

from __future__ import annotations

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
from ffcv.loader.epoch_iterator import EpochIterator
from ffcv.memory_managers import OSCacheManager
from ffcv.pipeline.allocation_query import AllocationQuery
from ffcv.pipeline.compiler import Compiler
from ffcv.pipeline.state import State

from cfol_fast.data.ffcv.format import JPG, RGB
from cfol_fast.data.ffcv.reader import Beton
from cfol_fast.data.ring_feed import RingFeed

# Two loaders may be at work at the same time (training and evaluation). numba's simplest threading layer
# aborts the process when two threads enter parallel code together, so they take turns.
_DECODING = threading.Lock()

# Bytes per thread, where images are only copied. With less, waking a second thread takes longer than the
# copy, and it takes the core
# that the trainer needs: 0.4 MB took two threads 112 µs and one 59 µs, next to a trainer on two cores.
COPIED_BY_ONE_THREAD = 4 << 20


class FlatImages(SimpleRGBImageDecoder):
    """Decodes an image of any size to the first h*w*3 bytes of its row; marks those that cannot be decoded
    and returns their number.
    """

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Any]:
        assert self.metadata is not None
        areas = self.metadata["height"].astype(np.int64) * self.metadata["width"].astype(np.int64)
        shape, kind = (int(areas.max()) * 3,), np.dtype("<u1")
        state = replace(previous_state, jit_mode=True, shape=shape, dtype=kind)
        return state, (AllocationQuery(shape, kind), AllocationQuery((1,), kind))

    def generate_code(self) -> Any:
        read, each = self.memory_read, Compiler.get_iterator()
        decode_jpeg, copy = Compiler.compile(imdecode), Compiler.compile(memcpy)
        jpg, three = JPG, np.uint64(3)

        def decode(batch_indices, memory, metadata, storage_state):  # type: ignore[no-untyped-def]
            rows, failed = memory
            failures = 0
            for i in each(len(batch_indices)):
                entry = metadata[batch_indices[i]]
                height, width = np.uint32(entry["height"]), np.uint32(entry["width"])
                failed[i, 0] = 0
                if entry["mode"] == jpg:
                    stored = read(entry["data_ptr"], storage_state)
                    # FFCV drops this status, and a damaged JPEG gives whatever the buffer held before.
                    status = decode_jpeg(
                        stored, rows[i], height, width, height, width, 0, 0, 1, 1, False, False
                    )
                    if status != 0:
                        failed[i, 0] = 1
                        failures += 1
                else:
                    # The size follows from the shape: `open_beton` has compared the two, and a search in
                    # FFCV's table would be a third of the time.
                    at = entry["data_ptr"]
                    copy(storage_state[0][at : at + np.uint64(height) * np.uint64(width) * three], rows[i])
            return failures

        decode.is_parallel = True  # type: ignore[attr-defined]
        return decode


class FlatArrays(NDArrayDecoder):
    """The same for images stored as arrays (one channel)."""

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Any]:
        shape, kind = (int(np.prod(self.field.shape)),), np.dtype("<u1")
        state = replace(previous_state, jit_mode=True, shape=shape, dtype=kind)
        return state, (AllocationQuery(shape, kind), AllocationQuery((1,), kind))

    def generate_code(self) -> Any:
        each, copy = Compiler.get_iterator(), Compiler.compile(memcpy)
        # Also the size of every stored image: `open_beton` has checked that.
        size = np.uint64(np.prod(self.field.shape))

        def decode(batch_indices, memory, metadata, storage_state):  # type: ignore[no-untyped-def]
            rows = memory[0]
            for i in each(len(batch_indices)):
                at = metadata[batch_indices[i]]
                copy(storage_state[0][at : at + size], rows[i])
            return 0

        decode.is_parallel = True  # type: ignore[attr-defined]
        return decode


class ReadOnlyFile(OSCacheManager):
    """FFCV's file manager without its fault: that one changes a type which numba shares between all functions
    to read-only.
    """

    def compile_reader(self) -> Any:  # type: ignore[override]
        return _compiled_reader()


@lru_cache
def _compiled_reader() -> Any:
    def read(address, state):  # type: ignore[no-untyped-def]
        size = state[2][np.searchsorted(state[1], address)]
        return state[0][address : address + size]

    stored, numbers = numba.types.Array(numba.uint8, 1, "C", readonly=True), numba.uint64[::1]
    return Compiler.compile(read, stored(numba.uint64, numba.types.Tuple([stored, numbers, numbers])))


class ReadOnlyLoader(Loader):
    """FFCV's loader with the manager above.

    It has no argument for one, so what it makes itself is replaced as it is assigned.
    """

    @property
    def memory_manager(self) -> OSCacheManager:  # type: ignore[override]
        return self._read_only

    @memory_manager.setter
    def memory_manager(self, made: OSCacheManager) -> None:
        self._read_only = ReadOnlyFile(made.reader)


def make_loader(file: Beton, workers: int) -> Loader:
    """FFCV's loader for the images alone; the labels are known already."""
    decoder = FlatImages() if file.kind == RGB else FlatArrays()
    threads = numba.get_num_threads()
    try:
        # The batch size is set when a feed begins. Without os_cache FFCV needs the epoch's order in advance.
        # Without a seed it draws one from numpy's global generator, which belongs to the user.
        loader = ReadOnlyLoader(
            str(file.path),
            batch_size=1,
            num_workers=min(workers, numba.config.NUMBA_NUM_THREADS),  # type: ignore[attr-defined]
            os_cache=True,
            order=OrderOption.SEQUENTIAL,
            seed=0,
            pipelines={name: [decoder] if name == file.image_field else None for name in file.fields},
        )
        # FFCV allocates memory for each epoch, and the first write to each of its pages costs a page fault. A
        # source feeds one loop at a time, training or evaluation, so the next can have the memory of the one
        # before.
        loader.graph.allocate_memory = lru_cache(maxsize=2)(loader.graph.allocate_memory)
        loader.decode = _compiled(decoder)
        loader.places = loader.reader.metadata[f"f{file.fields.index(file.image_field)}"]
        return loader
    finally:
        numba.set_num_threads(threads)


# Compiled decoders. FFCV compiles one for each loader, which takes a second, and a run has three: training,
# hold-out and test.
_COMPILED: dict[tuple[Any, ...], Any] = {}


def _compiled(decoder: FlatImages | FlatArrays) -> Any:
    """The decoder's code.

    What it depends on beside its arguments: whether it has several threads, and the size of arrays.
    """
    key = (type(decoder), Compiler.num_threads > 1, getattr(decoder.field, "shape", None))
    if key not in _COMPILED:
        _COMPILED[key] = Compiler.compile(decoder.generate_code())
    return _COMPILED[key]


def threads_for(file: Beton, width: int, workers: int) -> int:
    """How many of the workers decode a batch of `width` images. The batch does not depend on it."""
    if (file.modes == JPG).any():
        return workers
    return max(1, min(workers, width * int(file.lengths.max()) // COPIED_BY_ONE_THREAD))


class Feed(RingFeed, EpochIterator):
    """FFCV's loader thread, which decodes into FFCV's memory."""

    current_batch_slot: int

    def __init__(
        self, loader: Loader, width: int, lag: int, device: torch.device | None, threads: int
    ) -> None:
        # Not FFCV's own queue: with batches_ahead=0 that has no bound, and its put() can block forever.
        self._start_ring(width, lag, device, int(loader.reader.num_samples), str(loader.fname))
        self._threads = threads
        self._decode_rows, self._places = loader.decode, loader.places
        loader.batch_size, loader.batches_ahead = width, lag + 1
        # An empty order: no epoch and no schedule of pages. This starts the thread.
        EpochIterator.__init__(self, loader, np.empty(0, np.int64))

    def start(self) -> None:
        ((pixels, failed),) = self.memory_allocations["operation"].values()
        self._banks = list(zip(pixels, failed, strict=True))
        super().start()

    def run(self) -> None:
        # FFCV's run() also sets torch's thread count, for the whole process. numba's count belongs to this
        # thread alone.
        numba.set_num_threads(self._threads)
        super().run()

    def _decode(self, row: int, count: int) -> None:
        # FFCV would read whatever lies at an index outside, or return zeros.
        self._wait_for(row)
        indices = self._indices[row]
        slot = self.current_batch_slot
        self.current_batch_slot = (slot + 1) % len(self._banks)
        pixels, failed = bank = self._banks[slot]
        if count < len(indices):
            indices, pixels = indices[:count], pixels[:count]
        # FFCV's run_pipeline does the same, and gathers the arguments of all its stages anew for each batch.
        with _DECODING:
            failures = self._decode_rows(indices, bank, self._places, self.storage_state)
        if failures:
            first = int(indices[int(np.flatnonzero(failed[:count])[0])])
            raise ValueError(
                f"{self.loader.fname}: image {first} is damaged and cannot be decoded: write the file again"
            )
        self._decoded.put(pixels)

    def __del__(self) -> None:
        """FFCV's would wake the thread while the interpreter shuts down; `close` does the work."""
