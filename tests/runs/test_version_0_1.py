"""What version 0.1 wrote is refused in a sentence that names the version.

data_0_1 has the configuration and a checkpoint of a run of 0.1.0, and `weights.pt`, which `export` wrote.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import cfol_fast
from cfol_fast.commands.main import main
from cfol_fast.errors import InputError
from cfol_fast.evaluation.foreign_weights import load_weights
from cfol_fast.runs import checkpoints
from cfol_fast.runs.run_folder import read_config

RUN = Path(__file__).with_name("data_0_1")
LAST = RUN / "checkpoints" / "last.pt"


@pytest.mark.parametrize(
    "read",
    [
        lambda: cfol_fast.load(RUN),
        lambda: cfol_fast.load(LAST),
        lambda: checkpoints.read(LAST),
        lambda: checkpoints.CheckpointStore(RUN).newest(),
        lambda: read_config(RUN),
    ],
    ids=["run", "checkpoint", "its state", "to continue", "configuration"],
)
def test_files_of_version_0_1_are_refused(read) -> None:
    with pytest.raises(InputError, match=r"of version 0\.1, which is no longer read"):
        read()


@pytest.mark.parametrize(
    "words",
    [
        ["eval", str(RUN)],
        ["eval", str(LAST)],
        ["export", str(LAST), "--out", "weights.pt"],
        ["train", "--resume", "--out", str(RUN)],
        ["train", "erm", "--init", str(RUN)],
        ["train", "erm", "--init", str(LAST)],
    ],
    ids=lambda words: " ".join(words[:2]) if str(RUN) in words else f"{words[0]} checkpoint",
)
def test_a_command_says_so(words, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert "of version 0.1, which is no longer read" in capsys.readouterr().err


def test_plain_weights_are_those_of_any_project() -> None:
    x = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    weights = torch.load(RUN / "weights.pt", weights_only=True)
    model = load_weights(RUN / "weights.pt", "demo-cnn@0.05", 10, 28, 1)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert model(x).shape == (4, 10)
