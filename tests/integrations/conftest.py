"""What holds for the tests with other people's packages: no network, no account, no telemetry, and nothing
written to the home folder.
"""

from __future__ import annotations

import os

import pytest

# Before the packages are imported: they read their environment once.
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    TOKENIZERS_PARALLELISM="false",
    WANDB_MODE="offline",
    WANDB_SILENT="true",
    WANDB_ERROR_REPORTING="false",
)


@pytest.fixture(autouse=True)
def _their_files_go_to_a_folder_of_the_test(tmp_path, monkeypatch):
    """wandb, Lightning and datasets write where they are started."""
    monkeypatch.chdir(tmp_path)
    for name in ("HF_HOME", "WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "other"))
