"""What runs FFCV behind the source: the loader it makes, and the thread that hands over its batches."""

import queue
from types import SimpleNamespace

import pytest
import torch

from cfol_fast import data
from cfol_fast.data.ffcv import reader, writer
from cfol_fast.data.ffcv.install import using_ffcv

pytestmark = pytest.mark.ffcv


def test_ffcv_s_own_parts_stay_in_place_while_a_loader_is_made(mini_beton, monkeypatch):
    """A loader of the user's own, made by another thread at that moment, must get FFCV's own memory
    manager.
    """
    with using_ffcv():
        from ffcv.loader import loader as ffcv_loader
        from ffcv.memory_managers import OSCacheManager

        from cfol_fast.data.ffcv import feed as ffcv_feed

    seen = []

    class Reader(ffcv_loader.Reader):
        def __init__(self, *args):
            seen.append(ffcv_loader.OSCacheManager)
            super().__init__(*args)

    monkeypatch.setattr(ffcv_loader, "Reader", Reader)
    made = ffcv_feed.make_loader(reader.open_beton(mini_beton), workers=1)
    assert seen == [OSCacheManager]
    assert type(made.memory_manager) is ffcv_feed.ReadOnlyFile


def test_a_last_batch_that_comes_when_the_wait_is_just_over_is_not_lost():
    with using_ffcv():
        from cfol_fast.data.ffcv import feed as ffcv_feed

    class JustTooLate:
        waits = 0

        def get(self, timeout):
            self.waits += 1
            if self.waits == 1:
                raise queue.Empty
            return "the last batch"

        def empty(self):
            return False

    ended = SimpleNamespace(_decoded=JustTooLate(), is_alive=lambda: False)
    assert ffcv_feed.Feed.pull(ended) == "the last batch"


def test_files_of_one_kind_share_what_was_compiled_and_others_do_not(mini_beton, tmp_path):
    """A decoder takes a second to compile.

    The sizes of arrays, and whether there are several threads, are compiled in.
    """
    with using_ffcv():
        from cfol_fast.data.ffcv import feed as ffcv_feed

    def file(side):
        images = data.ImageSet(torch.zeros(2, side, side, 1, dtype=torch.uint8), torch.arange(2), ["a", "b"])
        return writer.write(tmp_path / f"{side}.beton", images)

    mini = reader.open_beton(mini_beton)
    decode = ffcv_feed.make_loader(mini, workers=1).decode
    assert ffcv_feed.make_loader(file(28), workers=1).decode is decode
    assert ffcv_feed.make_loader(file(20), workers=1).decode is not decode
    if ffcv_feed.numba.config.NUMBA_NUM_THREADS > 1:
        assert ffcv_feed.make_loader(mini, workers=2).decode is not decode
