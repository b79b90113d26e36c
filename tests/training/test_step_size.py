"""eta="auto" in a run: the number is known with the data, written to config.json, and told."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from PIL import Image

from cfol_fast.errors import InputError
from cfol_fast.training import train
from tests.training.tiny import tiny_config

# 2 epochs of 3 steps of 16: so few draws that the limit of chance counts, 0.5 sqrt(gamma / (k N)).
NUMBER = 0.5 * math.sqrt(0.5 / (10 * 96))


def eta_of(run: Path) -> float:
    return json.loads((run / "config.json").read_text())["params"]["eta"]


@pytest.mark.slow
def test_the_number_is_written_and_a_resumed_run_is_compared_with_it(
    tmp_path: Path, few_images: None
) -> None:
    train(tiny_config(tmp_path, eta="auto"), quiet=True)
    assert eta_of(tmp_path) == pytest.approx(NUMBER)
    (tmp_path / "result.json").unlink()
    train(tiny_config(tmp_path, eta="auto"), resume=True, quiet=True)
    (tmp_path / "result.json").unlink()
    with pytest.raises(InputError, match=r"params\.eta \(was 0\.0114\d*, now 0\.001\)"):
        train(tiny_config(tmp_path, eta=0.001), resume=True, quiet=True)


@pytest.mark.slow
def test_a_bandit_on_a_folder_of_images_does_something(tmp_path: Path) -> None:
    """The README's command for one's own images."""
    for name, shade in (("dark", 40), ("light", 200), ("grey", 120)):
        (tmp_path / "images" / "train" / name).mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (16, 16), (shade + number,) * 3).save(
                tmp_path / f"images/train/{name}/{number}.png"
            )
    data = {"data__name": "folder", "data__root": str(tmp_path / "images")}
    config = tiny_config(tmp_path / "run", epochs=3, steps_per_epoch=20, **data)
    train(config, quiet=True)
    assert eta_of(tmp_path / "run") == pytest.approx(2 * math.log(2) / (0.4 * 3 * 20 * 16))
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    p = [row["p"] for row in rows if row["kind"] == "train"][-1]
    assert max(p) - min(p) > 0.02


@pytest.mark.slow
def test_a_number_of_another_run_is_not_taken_for_this_one_s(tmp_path: Path, few_images: None) -> None:
    train(tiny_config(tmp_path, eta=0.001), quiet=True)
    (tmp_path / "result.json").unlink()
    with pytest.raises(InputError, match=r"params\.eta \(was 0\.001, now 0\.0114\d*\)"):
        train(tiny_config(tmp_path, eta="auto"), resume=True, quiet=True)


def test_a_run_says_what_p_can_reach_and_whether_it_moved(
    tmp_path: Path, few_images: None, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny_config(tmp_path, eta=1e-6))
    said = "".join(capsys.readouterr())
    assert "bandit: eta 1e-06, 96 draws" in said
    assert "warning: with eta 1e-06 p hardly moves" in said
    assert "p hardly moved, to 0.1 at most: try --set eta=" in said
