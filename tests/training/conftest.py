import pytest

from cfol_fast import data
from tests.training import tiny


@pytest.fixture
def few_images(monkeypatch):
    """Runs use the first twenty images of each class."""
    monkeypatch.setattr(data, "load", tiny.few_images())
