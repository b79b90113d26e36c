import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tiny.py, which processes of their own import too


@pytest.fixture
def few_images(monkeypatch):
    """Runs use the first twenty images of each class."""
    import tiny

    from cfol_fast.training import parts

    monkeypatch.setattr(parts, "data", tiny.FewImages(tiny.few_images()))
