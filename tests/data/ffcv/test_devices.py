"""The FFCV source and the GPU it feeds: which stream its events are recorded on, shown with fakes; its
batches, on a real one.
"""

from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from cfol_fast import data
from tests.data.ffcv.test_source import EVERYTHING, drawn, equal

pytestmark = pytest.mark.ffcv


@pytest.fixture(scope="module")
def shared(mini_beton) -> data.FFCVSource:
    return data.FFCVSource(mini_beton, lag=1, workers=1)


class Stream:
    """The current stream of a device, as torch.cuda would give it; without a device, that of the
    current one.
    """

    def __init__(self, device=None):
        self.device = torch.device("cuda:0" if device is None else device)


class Event:
    """Remembers where it was recorded; waiting for one that was recorded nowhere is an error."""

    made: ClassVar[list["Event"]] = []

    def __init__(self, blocking=False):
        self.blocking, self.device, self.waited = blocking, None, False
        self.made.append(self)

    def record(self, stream=None):
        self.device = (stream or Stream()).device

    def synchronize(self):
        assert self.device is not None
        self.waited = True


@pytest.fixture
def two_gpus(monkeypatch):
    """torch.cuda with fakes; the current device is cuda:0."""
    plain = torch.empty
    monkeypatch.setattr(Event, "made", [])
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **options: plain(*a, **options))


def test_the_feed_waits_for_the_device_it_was_given_and_not_for_the_current_one(
    shared, monkeypatch, two_gpus
):
    monkeypatch.setattr(shared, "_gpu", lambda idx: torch.device("cuda:1"))
    assert len(list(shared.feed(lambda: torch.arange(4), 5))) == 5
    assert [event.device for event in Event.made] == [torch.device("cuda:1")] * 5
    assert all(event.blocking and event.waited for event in Event.made)


@pytest.mark.parametrize(
    ("pixels", "indices", "expected"),
    [
        ("cuda:1", "cpu", "cuda:1"),
        ("cuda:1", "cuda:0", "cuda:1"),
        ("cpu", "cuda:1", "cuda:1"),
        ("cpu", "cpu", None),
    ],
)
def test_the_device_of_a_feed_is_where_the_pixels_go(shared, monkeypatch, pixels, indices, expected):
    monkeypatch.setattr(shared, "device", torch.device(pixels))
    idx = SimpleNamespace(device=torch.device(indices))
    assert shared._gpu(idx) == (None if expected is None else torch.device(expected))


def test_indices_of_another_gpu_are_moved_to_the_source_s(shared, monkeypatch):
    moved = []
    idx = SimpleNamespace(is_cuda=True, device=torch.device("cuda:0"), to=moved.append)
    monkeypatch.setattr(shared, "device", torch.device("cuda:1"))
    shared._here(idx)
    assert moved == [torch.device("cuda:1")]


def last_gpu() -> torch.device:
    """Not the current device, where there are two."""
    return torch.device("cuda", torch.cuda.device_count() - 1)


@pytest.mark.gpu
@pytest.mark.parametrize("lag", [0, 1])
def test_on_a_gpu_the_batches_are_the_resident_source_s(mini, mini_beton, lag):
    draw = drawn(1)
    ours = data.FFCVSource(mini_beton, lag=lag, augment=EVERYTHING, device=last_gpu(), seed=7).feed(
        lambda: draw().to(last_gpu()), 6
    )
    again = drawn(1)
    other = data.ResidentSource(mini.train, augment=EVERYTHING, device=last_gpu(), seed=7)
    assert equal(ours, other.feed(lambda: again().to(last_gpu()), 6))


@pytest.mark.gpu
def test_on_a_gpu_pixels_on_their_way_are_not_overwritten(mini, mini_beton):
    """Indices drawn on the CPU, and a GPU that is far behind."""
    ours = data.FFCVSource(mini_beton, lag=1, device=last_gpu()).feed(drawn(1), 20)
    batches = []
    for batch in ours:
        with torch.cuda.device(last_gpu()):
            torch.cuda._sleep(20_000_000)
        batches.append(batch)
    again = drawn(1)
    other = data.ResidentSource(mini.train, device=last_gpu())
    assert equal(batches, other.feed(lambda: again().to(last_gpu()), 20))
