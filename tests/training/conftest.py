import pytest

from cfol_fast import data
from cfol_fast.training.capture import CapturedStep
from tests.training import tiny
from tests.training.replaying import fake_cuda


@pytest.fixture
def few_images(monkeypatch):
    """Runs use the first twenty images of each class."""
    monkeypatch.setattr(data, "load", tiny.few_images())


@pytest.fixture
def fake_graphs(monkeypatch):
    """The graphs that a test captures, on the CPU."""
    return fake_cuda(monkeypatch)


@pytest.fixture
def graph_trainer(tmp_path, fake_graphs):
    """Makes trainers that take their steps by a graph."""

    def new(method="cfol", **settings):
        trainer = tiny.new_trainer(tmp_path, method, **settings)
        trainer.state.captured = CapturedStep(trainer.step, trainer.state.batches)
        return trainer

    return new
