from pathlib import Path

import pytest
import torch

from cfol_fast import models


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of plain weights of the demo's network."""
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("weights") / "demo.pt"
    torch.save(models.create("demo-cnn", 10, 28, 1, mean=[0.3], std=[0.3]).state_dict(), file)
    return file
