import pytest

from cfol_fast.training import parts
from tests.training import tiny


@pytest.fixture
def few_images(monkeypatch):
    """Runs use the first twenty images of each class."""
    monkeypatch.setattr(parts, "data", tiny.FewImages(tiny.few_images()))
