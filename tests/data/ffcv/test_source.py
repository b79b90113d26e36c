"""The FFCV source: the resident source's batches, a fixed lag, and each of FFCV's traps shown closed."""

import gc
import itertools
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from cfol_fast import data, ops, sampling
from cfol_fast.data.ffcv import writer
from cfol_fast.data.ffcv.install import using_ffcv
from cfol_fast.errors import InputError
from cfol_fast.training.batches import TrainingBatches
from tests.data import published_files as files
from tests.data.ffcv.test_files import smooth

pytestmark = pytest.mark.ffcv
EVERYTHING = ops.Augment(pad=4, flip=True, brightness=0.25, contrast=0.25, degrees=2)


@pytest.fixture(scope="module")
def shared(mini_beton) -> data.FFCVSource:
    """One source for the tests that do not care which: its code is compiled once."""
    return data.FFCVSource(mini_beton, lag=1, workers=1)


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if type(t).__name__ == "Feed"]


def feeding():
    with using_ffcv():
        from cfol_fast.data.ffcv import feed as ffcv_feed
    return ffcv_feed


def drawn(seed: int, size: int = 64, n: int = 5000):
    generator = torch.Generator().manual_seed(seed)
    return lambda: torch.randint(0, n, (size,), generator=generator)


def equal(a, b) -> bool:
    return all(
        torch.equal(s, t) for one, two in zip(a, b, strict=True) for s, t in zip(one, two, strict=True)
    )


# ---------------------------------------------------------------- the same batches


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("lag", [0, 2])
def test_the_batches_are_those_of_the_resident_source_bit_for_bit(
    mini, mini_beton, monkeypatch, workers, lag
):
    # Otherwise one thread would copy these small batches.
    monkeypatch.setattr(feeding(), "COPIED_BY_ONE_THREAD", 1)
    source = data.FFCVSource(mini_beton, lag=lag, augment=EVERYTHING, seed=7, workers=workers)
    other = data.ResidentSource(mini.train, augment=EVERYTHING, seed=7)
    assert equal(source.feed(drawn(1), 6), other.feed(drawn(1), 6))
    assert torch.equal(source.state_dict()["rng"], other.state_dict()["rng"])


def test_on_policy_the_batches_are_the_same_while_the_sampler_learns(mini, mini_beton):
    def run(source):
        sampler = sampling.ClassSampler(mini.train.labels, eta=0.05, seed=3)
        batches = []
        for idx, x, y in source.feed(lambda: sampler.draw(32), 12):
            sampler.update(y, (x.mean((1, 2, 3)) > 0.3).float())
            batches.append((idx, x, y, sampler.p.clone()))
        return batches

    augment = mini.augment
    ours = run(data.FFCVSource(mini_beton, lag=0, augment=augment, workers=2))
    assert equal(ours, run(data.ResidentSource(mini.train, augment=augment)))
    # The distribution moved, so the indices depended on it.
    assert ours[-1][3].std() > 0.001


def test_plain_batches_are_every_image_once_in_order(mini, shared):
    assert equal(shared.batches(1024), data.ResidentSource(mini.train).batches(1024))


def test_labels_and_class_names_come_with_the_file(mini, shared):
    assert torch.equal(shared.labels, mini.train.labels)
    assert shared.classes == mini.classes
    assert len(shared) == 5000


def test_a_batch_may_be_smaller_than_the_first(shared):
    sizes = iter([8, 3, 8])
    assert [len(x) for _, x, _ in shared.feed(lambda: torch.arange(next(sizes)), 3)] == [8, 3, 8]


def test_a_subset_of_the_file_has_its_own_numbers(mini, mini_beton):
    rows = torch.arange(4999, 0, -7)
    source = data.FFCVSource(mini_beton, lag=1, augment=EVERYTHING, seed=7, workers=1, subset=rows)
    other = data.ResidentSource(mini.train.subset(rows), augment=EVERYTHING, seed=7)
    assert len(source) == len(rows)
    assert torch.equal(source.labels, other.labels)
    assert equal(source.feed(drawn(1, n=len(rows)), 4), other.feed(drawn(1, n=len(rows)), 4))
    assert equal(source.batches(300), other.batches(300))


def test_a_subset_beyond_the_file_is_refused(mini_beton):
    with pytest.raises(InputError, match=r"rows in 0\.\.4999"):
        data.FFCVSource(mini_beton, subset=torch.tensor([0, 5000]))


def test_images_of_different_sizes_give_the_resident_source_s_batches(tmp_path):
    files.imagenette(tmp_path)
    found = data.load("imagenette", tmp_path, progress=False)
    writer.write(tmp_path / "a.beton", found.train, description={"size": [160, 160]})
    source = data.FFCVSource(tmp_path / "a.beton", lag=0, augment=found.augment, workers=2)
    other = data.ResidentSource(found.train, size=(160, 160), augment=found.augment)
    assert equal(source.feed(drawn(1, 5, 9), 4), other.feed(drawn(1, 5, 9), 4))
    assert equal(source.batches(4), other.batches(4))


def test_images_of_different_sizes_need_the_size_of_the_batches(tmp_path):
    files.imagenette(tmp_path)
    writer.write(tmp_path / "a.beton", data.load("imagenette", tmp_path, progress=False).train)
    with pytest.raises(InputError, match="needs size="):
        data.FFCVSource(tmp_path / "a.beton")


def test_jpegs_do_not_depend_on_the_workers(tmp_path):
    images = data.ImageSet(smooth(20, 32, 40), torch.arange(20) % 2, ["a", "b"])
    writer.write(tmp_path / "a.beton", images, mode="jpg")
    one, two = (data.FFCVSource(tmp_path / "a.beton", lag=1, augment=EVERYTHING, workers=w) for w in (1, 2))
    assert equal(one.feed(drawn(2, 16, 20), 5), two.feed(drawn(2, 16, 20), 5))


def test_a_run_is_continued_from_its_state(mini_beton, mini):
    first = data.FFCVSource(mini_beton, lag=0, augment=EVERYTHING, seed=1, workers=1)
    draw = drawn(4)
    list(first.feed(draw, 2))
    resumed = data.ResidentSource(mini.train, augment=EVERYTHING, seed=2)
    resumed.load_state_dict(first.state_dict())
    other = drawn(4)
    other(), other()
    assert equal(first.feed(draw, 3), resumed.feed(other, 3))


def test_small_batches_are_copied_by_one_thread_and_large_ones_by_more(tmp_path):
    images = data.ImageSet(smooth(4, 64, 64), torch.arange(4) % 2, ["a", "b"])
    raw = writer.write(tmp_path / "raw.beton", images)
    jpg = writer.write(tmp_path / "jpg.beton", images, mode="jpg")
    fitting = feeding().COPIED_BY_ONE_THREAD // (64 * 64 * 3)
    threads_for = feeding().threads_for
    assert [threads_for(raw, width, 8) for width in (1, fitting, 4 * fitting + 4, 90 * fitting)] == [
        1,
        1,
        4,
        8,
    ]
    # Decoding a JPEG is worth a thread for any size.
    assert threads_for(jpg, 1, 8) == 8


def test_the_next_loop_has_the_memory_of_the_one_before(shared):
    """New memory for each epoch costs a page fault for every page of it."""

    def banks(size: int) -> list[int]:
        feed = shared.feed(lambda: torch.arange(size), 2)
        next(feed)
        at = [pixels.ctypes.data for pixels, _ in shared._feeds[0]._banks]
        feed.close()
        return at

    first = banks(6)
    assert len(set(first)) == shared.lag + 3
    # Another batch size, as an evaluation has.
    assert banks(12) != first
    assert banks(6) == first


# ---------------------------------------------------------------- the lag


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("slow", ["nobody", "trainer", "loader"])
def test_a_change_after_step_t_is_seen_at_exactly_t_plus_1_plus_lag(shared, monkeypatch, lag, slow):
    """The version of the distribution each batch was drawn with, whoever of the two threads is ahead."""
    ffcv_feed = feeding()
    handed_out = threading.Semaphore(0)
    # It decodes a batch only when the trainer asks for it.
    if slow == "loader":
        decode = ffcv_feed.Feed._decode
        monkeypatch.setattr(
            ffcv_feed.Feed, "_decode", lambda self, *a: (handed_out.acquire(), decode(self, *a))
        )
        pull = ffcv_feed.Feed.pull
        monkeypatch.setattr(ffcv_feed.Feed, "pull", lambda self: (handed_out.release(), pull(self))[1])
    monkeypatch.setattr(shared, "lag", lag)
    version = [0]
    seen = []
    for idx, x, _ in shared.feed(lambda: torch.full((4,), version[0]), 10):
        seen.append(int(idx[0]))
        assert torch.equal(x[0], shared_pixels(shared, int(idx[0])))
        version[0] += 1
        # The loader has decoded all it was given before the update is done.
        if slow == "trainer":
            feed = shared._feeds[0]
            while feed._ring.waiting:
                pass
    assert seen == [max(0, t - lag) for t in range(10)]


def shared_pixels(source: data.FFCVSource, index: int) -> torch.Tensor:
    at, length = source.file.pointers[index], source.file.lengths[index]
    pixels = np.fromfile(source.file.path, np.uint8, length, offset=at)
    return torch.from_numpy(pixels).view(1, 28, 28).float() / 255


def test_the_p_that_drew_a_batch_travels_with_it(mini, shared, monkeypatch):
    monkeypatch.setattr(shared, "lag", 2)
    sampler = sampling.ClassSampler(mini.train.labels, eta=0.1, seed=0)
    tickets, after_update = [], []
    for indices, ticket, _, y in TrainingBatches(sampler, shared, 16).feed(8):
        sampler.observe(indices, y, torch.ones(16), ticket)
        tickets.append(ticket.clone())
        after_update.append(sampler.p.clone())
    for t in range(3, 8):
        assert torch.equal(tickets[t], after_update[t - 3])


def test_no_more_is_drawn_than_there_are_steps(shared):
    for steps in (0, 1, 2, 5):
        count = itertools.count()
        assert len(list(shared.feed(lambda: next(count) * 0 + torch.arange(2), steps))) == steps  # noqa: B023
        assert next(count) == steps


# ---------------------------------------------------------------- the traps


@pytest.fixture(scope="module")
def program(mini_beton) -> subprocess.CompletedProcess[str]:
    """A program that imports FFCV through a source and ends in the middle of a feed."""
    code = f"""
import torch
torch.set_num_threads(2)
from cfol_fast import data
source = data.FFCVSource({str(mini_beton)!r}, workers=2)
seen = [torch.get_num_threads()]
feed = source.feed(lambda: torch.arange(4), 100)
for _ in range(3):
    next(feed)
    seen.append(torch.get_num_threads())
print(seen)
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def test_trap_importing_and_using_ffcv_leaves_torch_s_threads_alone(program):
    assert program.stdout == "[2, 2, 2, 2]\n"


def test_trap_a_program_that_ends_in_the_middle_of_a_feed_ends_quietly(program):
    assert (program.returncode, program.stderr) == (0, "")


def test_trap_a_loader_leaves_numba_s_threads_and_shared_types_alone(mini_beton):
    import numba

    before = numba.get_num_threads()
    source = data.FFCVSource(mini_beton, workers=1)
    list(source.feed(lambda: torch.arange(4), 1))
    assert numba.get_num_threads() == before
    assert numba.uint8[::1].mutable


def test_trap_batches_that_were_handed_out_are_not_overwritten(shared):
    """FFCV hands out views of a ring buffer that the next batches overwrite."""
    step = itertools.count()
    kept = [x for _, x, _ in shared.feed(lambda: torch.full((4,), next(step)), 12)]
    for index, x in enumerate(kept):
        assert torch.equal(x[0], shared_pixels(shared, index))


def test_trap_lag_0_is_bounded(shared, monkeypatch):
    """FFCV's batches_ahead=0 is a queue without a bound, and gives wrong batches."""
    monkeypatch.setattr(shared, "lag", 0)
    feed = shared.feed(lambda: torch.arange(4), 50)
    next(feed)
    assert shared._feeds[0]._decoded.empty()
    assert shared._loader.batches_ahead == 1
    feed.close()


@pytest.mark.parametrize("bad", [5000, -1, 2**62])
def test_trap_an_index_out_of_range_is_an_error_and_not_zeros(shared, bad):
    with pytest.raises(IndexError, match=rf"index {bad} is not in 0\.\.4999"):
        list(shared.feed(lambda: torch.tensor([3, bad, 4]), 5))
    assert not threads()


def test_trap_an_error_in_the_loader_s_thread_reaches_the_trainer(shared, monkeypatch):
    def broken(*args):
        raise OSError("the disk went away")

    monkeypatch.setattr("cfol_fast.data.ffcv.feed.Feed._decode", broken)
    with pytest.raises(OSError, match="the disk went away"):
        next(iter(shared.feed(lambda: torch.arange(4), 5)))
    assert not threads()


def test_trap_a_thread_that_is_gone_is_noticed(shared, monkeypatch):
    monkeypatch.setattr("cfol_fast.data.ffcv.feed.Feed.run", lambda self: None)
    with pytest.raises(RuntimeError, match="the thread that feeds the batches is gone"):
        next(iter(shared.feed(lambda: torch.arange(4), 5)))


@pytest.mark.parametrize("lag", [0, 1, 4])
def test_trap_leaving_the_loop_early_leaves_no_thread(shared, monkeypatch, lag):
    monkeypatch.setattr(shared, "lag", lag)
    for step, _ in enumerate(shared.feed(lambda: torch.arange(4), 100)):
        if step == 2:
            break
    gc.collect()
    assert not threads()
    assert len(list(shared.feed(lambda: torch.arange(4), 3))) == 3


def test_trap_an_error_in_the_sampler_leaves_no_thread(shared):
    step = itertools.count()

    def draw():
        if next(step) == 3:
            raise ZeroDivisionError
        return torch.arange(4)

    with pytest.raises(ZeroDivisionError):
        list(shared.feed(draw, 10))
    assert not threads()


def test_trap_close_ends_a_feed_that_is_still_held(shared):
    feed = shared.feed(lambda: torch.arange(4), 10)
    next(feed)
    assert threads()
    shared.close()
    assert not threads()
    feed.close()


def test_trap_the_user_s_random_numbers_are_not_touched(mini_beton):
    """Without a seed FFCV draws one from numpy's global generator."""
    np.random.seed(5)
    before = np.random.get_state()[1].copy()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    list(data.FFCVSource(mini_beton, augment=EVERYTHING, workers=1).feed(lambda: torch.arange(8), 2))
    assert np.array_equal(before, np.random.get_state()[1])
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("workers", [1, 2])
def test_trap_a_damaged_jpeg_inside_is_named_and_not_decoded_to_noise(tmp_path, workers):
    images = data.ImageSet(smooth(6, 64, 48), torch.arange(6) % 2, ["a", "b"])
    file = writer.write(tmp_path / "a.beton", images, mode="jpg")
    content = bytearray((tmp_path / "a.beton").read_bytes())
    at = int(file.pointers[4])
    content[at : at + 200] = bytes(200)
    (tmp_path / "a.beton").write_bytes(content)
    source = data.FFCVSource(tmp_path / "a.beton", workers=workers)
    with pytest.raises(ValueError, match=r"a\.beton: image 4 is damaged"):
        list(source.batches(3))
    assert not threads()
    # Batches without the damaged image, in memory that held it.
    (_, x, _), *_ = source.feed(lambda: torch.tensor([3, 0, 5]), 4)
    assert x.std() > 0.01


def test_two_sources_may_be_read_at_the_same_time(mini_beton, mini):
    """Training and evaluation: numba's simplest threading layer would abort the process."""
    one, two = (data.FFCVSource(mini_beton, lag=2, workers=2) for _ in range(2))
    other = data.ResidentSource(mini.train)
    for a, b, c in zip(one.feed(drawn(1), 8), two.batches(625), other.feed(drawn(1), 8), strict=True):
        assert torch.equal(a[1], c[1])
        assert torch.equal(b[2], mini.train.labels[b[0]])


def test_one_source_feeds_one_loop_at_a_time(shared):
    feed = shared.feed(lambda: torch.arange(4), 5)
    next(feed)
    with pytest.raises(InputError, match="feeding already"):
        next(iter(shared.batches(10)))
    feed.close()


@pytest.mark.parametrize(
    ("options", "said"), [({"lag": -1}, "lag must be 0"), ({"workers": 0}, "workers must be at least 1")]
)
def test_options_that_make_no_sense_are_refused(mini_beton, options, said):
    with pytest.raises(InputError, match=said):
        data.FFCVSource(mini_beton, **options)


def test_a_batch_larger_than_the_first_is_refused(shared):
    sizes = iter([4, 9, 9])
    with pytest.raises(ValueError, match=r"1\.\.4 indices, got 9"):
        list(shared.feed(lambda: torch.arange(next(sizes)), 3))


def test_a_jpeg_is_decoded_as_pillow_does(tmp_path):
    images = data.ImageSet(torch.from_numpy(files.pixels(1, 4, 24, 24, 3)), torch.arange(4) % 2, ["a", "b"])
    file = writer.write(tmp_path / "a.beton", images, mode="jpg")
    content = (tmp_path / "a.beton").read_bytes()
    for i, (_, x, _) in enumerate(data.FFCVSource(tmp_path / "a.beton", workers=1).batches(1)):
        at = int(file.pointers[i])
        (tmp_path / "one.jpg").write_bytes(content[at : at + int(file.lengths[i])])
        with Image.open(tmp_path / "one.jpg") as image:
            pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        # Two versions of the same decoder.
        assert ((x[0] * 255).round() - pixels).abs().max() <= 8
