"""The white point that a run was trained with is its own: it is recorded, and resuming and evaluating take it
again.
"""

import json

import numpy as np
import pytest

from cfol_fast.commands import main as cli
from cfol_fast.runs import run_folder
from cfol_fast.training import trainer
from tests.data import deep_files
from tests.training import tiny

TRAIN = [
    "train",
    "erm",
    "--model=demo-cnn@0.25",
    "--epochs=1",
    "--batch-size=8",
    "--holdout=0.3",
    "--device=cpu",
]
TRAIN += ["--set=steps_per_epoch=2", "--set=validation.steps=1", "--set=test.steps=1", "--quiet"]


def write_folder(root, top):
    """Two classes of 16-bit images whose largest value is `top`."""
    for s, split in enumerate(("train", "test")):
        for c, name in enumerate(("ant", "bee")):
            (root / split / name).mkdir(parents=True)
            for i in range(4):
                values = np.random.default_rng(100 * s + 10 * c + i).integers(0, top, (16, 16, 1), np.uint16)
                values[0, 0] = top
                (root / split / name / f"{i}.png").write_bytes(deep_files.png(values))
    return root


@pytest.mark.slow
def test_a_run_keeps_its_white_point(tmp_path, monkeypatch, capsys):
    data, run = write_folder(tmp_path / "12 bits", 4095), tmp_path / "run"
    arguments = [*TRAIN, f"--data={data}", f"--out={run}"]
    with monkeypatch.context() as patch:
        tiny.signal_in_call(patch, 2, trainer, "learning_rate")
        assert cli.main(arguments) == 143
    assert run_folder.read_config(run).data.white == 4095
    assert cli.main([*arguments, "--resume", "--set=data.white=1023"]) == 2
    assert "data.white (was 4095.0, now 1023.0)" in capsys.readouterr().err
    assert cli.main([*arguments, "--resume"]) == 0
    assert json.loads((run / "result.json").read_text())["white"] == 4095

    # By itself this one would be of 10 bits, and nobody could say what this other one is.
    for top in (1023, 3000):
        other, out = write_folder(tmp_path / f"up to {top}", top), tmp_path / f"{top}.json"
        assert cli.main(["eval", str(run), f"--data={other}", "--attack=none", f"--json={out}"]) == 0
        assert json.loads(out.read_text())["settings"]["white"] == 4095
    far = write_folder(tmp_path / "16 bits", 65535)
    assert cli.main(["eval", str(run), f"--data={far}", "--attack=none"]) == 2
    assert "far beyond white=4095" in capsys.readouterr().err
    assert cli.main(["eval", str(run), f"--data={far}", "--attack=none", "--white=65535"]) == 0


@pytest.mark.slow
def test_doubt_is_told_before_anything_is_trained(tmp_path, capsys):
    data, run = write_folder(tmp_path / "data", 3000), tmp_path / "run"
    assert cli.main([*TRAIN, f"--data={data}", f"--out={run}"]) == 2
    assert "is 3000, so white may be 4095, 16383 or 65535" in capsys.readouterr().err
    assert not run.exists()
    options = ["--set=data.white=4095", "--set=data.cache=off"]
    assert cli.main([*TRAIN, f"--data={data}", f"--out={run}", *options]) == 0
    assert run_folder.read_config(run).data.white == 4095
