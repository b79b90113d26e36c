"""The demo: two runs, a table, bars, a picture and a page; started again it does not train again."""

import json

import pytest

from cfol_fast import data
from cfol_fast.commands import demo
from cfol_fast.commands import main as cli
from tests.training import tiny


@pytest.fixture
def quick_demo(monkeypatch):
    """The demo with few images and few steps; everything else is as it ships."""
    monkeypatch.setattr(data, "load", tiny.few_images())
    original = demo.configuration

    def quick(*args):
        return original(*args).replace(steps_per_epoch=2, attack={"steps": 1}, test={"steps": 1})

    monkeypatch.setattr(demo, "configuration", quick)


@pytest.mark.slow
def test_the_demo_trains_compares_and_draws(quick_demo, tmp_path, capsys):
    assert cli.main(["demo", "--out", str(tmp_path), "--epochs", "1"]) == 0
    out = capsys.readouterr().out
    for part in ("ERM-AT", "CFOL-AT", "worst", "Shirt", "█", "comparison.png", "report.html"):
        assert part in out
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert "<html" in (tmp_path / "report.html").read_text()
    for method in ("erm", "cfol"):
        result = json.loads((tmp_path / method / "result.json").read_text())
        assert (result["method"], result["holdout"]) == (method, "none")

    before = (tmp_path / "cfol/result.json").stat().st_mtime_ns
    assert cli.main(["demo", "--out", str(tmp_path), "--epochs", "1"]) == 0
    assert "finished already" in capsys.readouterr().out
    assert (tmp_path / "cfol/result.json").stat().st_mtime_ns == before


@pytest.mark.slow
def test_another_seed_in_the_same_folder_is_refused(quick_demo, tmp_path, capsys):
    assert cli.main(["demo", "--out", str(tmp_path), "--epochs", "1", "--quiet"]) == 0
    assert cli.main(["demo", "--out", str(tmp_path), "--epochs", "1", "--seed", "1"]) == 2
    assert "seed (was 0, now 1)" in capsys.readouterr().err


def test_the_demos_recipe_is_that_of_the_embedded_images(tmp_path):

    erm, cfol = (demo.configuration(method, tmp_path, 0, None, "cpu") for method in demo.METHODS)
    assert (erm.method, cfol.method) == ("erm", "cfol")
    assert (cfol.params["eta"], cfol.params["gamma"]) == (1e-4, 0.5)
    for config in (erm, cfol):
        assert (config.epochs, config.attack.eps, config.model.name, config.data.holdout) == (
            12,
            0.1,
            "demo-cnn",
            "none",
        )
