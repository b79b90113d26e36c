"""The index ring between sampler and loader: order, bounds, waiting without Python's lock."""

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest
from cfol_fast._host import IndexRing


def ring_of(slots: int, width: int) -> tuple[IndexRing, np.ndarray]:
    rows = np.zeros((slots, width), np.int64)
    return IndexRing(rows), rows


def push(ring: IndexRing, rows: np.ndarray, values: list[int]) -> None:
    slot = ring.reserve()
    assert slot >= 0
    rows[slot, : len(values)] = values
    ring.commit(len(values))


def test_batches_come_out_in_the_order_they_went_in():
    ring, rows = ring_of(3, 2)
    for values in ([1, 2], [3], [4, 5]):
        push(ring, rows, values)
    assert ring.waiting == 3
    ring.finish()
    seen = []
    while (taken := ring.take()) is not None:
        slot, count = taken
        seen.append(rows[slot, :count].tolist())
    assert seen == [[1, 2], [3], [4, 5]]
    assert ring.take() is None


def test_a_full_ring_says_so_and_a_row_is_free_after_the_next_take():
    ring, rows = ring_of(2, 1)
    push(ring, rows, [1])
    push(ring, rows, [2])
    assert ring.reserve() == -1
    ring.take()
    assert ring.reserve() == -1  # the consumer still reads the row it took
    ring.take()
    assert ring.reserve() == 0


def test_a_waiting_consumer_does_not_hold_python_s_lock_and_close_wakes_it():
    ring, _ = ring_of(1, 1)
    result = []
    thread = threading.Thread(target=lambda: result.append(ring.take()))
    thread.start()
    total = sum(range(100_000))  # would never run, had the consumer kept the lock
    assert total
    ring.close()
    thread.join(30)
    assert result == [None]


def test_close_drops_what_is_waiting_and_finish_does_not():
    for end, expected in ((IndexRing.close, None), (IndexRing.finish, (0, 1))):
        ring, rows = ring_of(2, 1)
        push(ring, rows, [1])
        end(ring)
        assert ring.take() == expected


@pytest.mark.slow
def test_two_threads_pass_ten_thousand_batches_without_loss():
    ring, rows = ring_of(3, 4)
    seen: list[int] = []
    free = threading.Semaphore(2)

    def consume() -> None:
        while (taken := ring.take()) is not None:
            seen.append(int(rows[taken[0], : taken[1]].sum()))
            free.release()

    thread = threading.Thread(target=consume)
    thread.start()
    for i in range(10_000):
        free.acquire()
        push(ring, rows, [i] * (1 + i % 4))
    ring.finish()
    thread.join(60)
    assert seen == [i * (1 + i % 4) for i in range(10_000)]


@pytest.mark.parametrize(("values", "position"), [([0, 9], -1), ([3, 10, 11], 1), ([-1, 5], 0)])
def test_an_index_outside_is_found(values, position):
    ring, rows = ring_of(1, 3)
    push(ring, rows, values)
    slot, _ = ring.take()
    assert ring.find_outside(slot, 10) == position


def test_what_lies_beyond_the_count_is_not_looked_at():
    ring, rows = ring_of(1, 2)
    rows[0, 1] = 10**9
    slot = ring.reserve()
    rows[slot, 0] = 1
    ring.commit(1)
    assert ring.find_outside(ring.take()[0], 2) == -1


@pytest.mark.parametrize("count", [0, -1, 3])
def test_a_batch_of_the_wrong_size_is_refused_and_the_row_stays_free(count):
    ring, rows = ring_of(1, 2)
    ring.reserve()
    with pytest.raises(ValueError, match=rf"1\.\.2 indices, got {count}"):
        ring.commit(count)
    push(ring, rows, [7])


def test_calls_out_of_turn_are_refused():
    ring, _ = ring_of(2, 1)
    with pytest.raises(RuntimeError, match="without reserve"):
        ring.commit(1)
    ring.reserve()
    with pytest.raises(RuntimeError, match="twice"):
        ring.reserve()
    with pytest.raises(IndexError, match="no slot 5"):
        ring.find_outside(5, 1)
    ring, _ = ring_of(2, 1)
    ring.finish()
    with pytest.raises(RuntimeError, match="after the end"):
        ring.reserve()


@pytest.mark.parametrize(
    "rows", [np.zeros((2, 2), np.int32), np.zeros((2, 4), np.int64)[:, ::2], np.zeros((2, 2), np.float64)]
)
def test_memory_that_would_have_to_be_copied_is_refused(rows):
    with pytest.raises(TypeError):
        IndexRing(rows)


@pytest.mark.parametrize("shape", [(0, 2), (2, 0), (4,)])
def test_memory_without_rows_is_refused(shape):
    with pytest.raises(ValueError, match="at least one element"):
        IndexRing(np.zeros(shape, np.int64))


@pytest.mark.slow
def test_the_ring_keeps_its_memory_alive():
    ring = IndexRing(np.full((1, 1), 5, np.int64))
    gc.collect()
    ring.reserve()
    ring.commit(1)
    assert ring.find_outside(ring.take()[0], 6) == -1


@pytest.mark.slow
def test_a_thread_that_waits_at_the_end_of_the_program_does_not_disturb_it():
    code = """
import threading, numpy as np, atexit
from cfol_fast._host import IndexRing
ring = IndexRing(np.zeros((1, 1), np.int64))
thread = threading.Thread(target=ring.take, daemon=True)
thread.start()
atexit.register(lambda: (ring.close(), thread.join()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
