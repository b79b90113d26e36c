"""What runs FFCV behind the source: the loader it makes, and the thread that hands over its batches."""

import queue
from types import SimpleNamespace

import pytest

from cfol_fast.data import beton
from cfol_fast.data.ffcv_install import using_ffcv

pytestmark = pytest.mark.ffcv


def test_ffcv_s_own_parts_stay_in_place_while_a_loader_is_made(mini_beton, monkeypatch):
    """A loader of the user's own, made by another thread at that moment, must get FFCV's own memory manager."""
    with using_ffcv():
        from ffcv.loader import loader as ffcv_loader
        from ffcv.memory_managers import OSCacheManager

        from cfol_fast.data import ffcv_feed

    seen = []

    class Reader(ffcv_loader.Reader):
        def __init__(self, *args):
            seen.append(ffcv_loader.OSCacheManager)
            super().__init__(*args)

    monkeypatch.setattr(ffcv_loader, "Reader", Reader)
    made = ffcv_feed.make_loader(beton.open_beton(mini_beton), workers=1)
    assert seen == [OSCacheManager]
    assert type(made.memory_manager) is ffcv_feed.ReadOnlyFile


def test_a_last_batch_that_comes_when_the_wait_is_just_over_is_not_lost():
    with using_ffcv():
        from cfol_fast.data import ffcv_feed

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
