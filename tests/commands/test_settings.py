"""No setting is silently another than the user believes: the data set is the one that was named, and nothing
is ignored unsaid.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cfol_fast as cf
from cfol_fast import data
from cfol_fast.commands import main as cli
from cfol_fast.errors import InputError
from cfol_fast.runs.config import TrainConfig, to_dict
from cfol_fast.runs.data_facts import DataFacts, settled
from cfol_fast.runs.open_settings import assignment
from cfol_fast.runs.rules import SAID_WITH, USED_WITH, without_effect
from tests.data import published_files as files
from tests.training import tiny


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = cli.main(words)
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    files.folder(tmp_path / "photos")
    return tmp_path / "photos"


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and evaluations use the first images of each class."""
    monkeypatch.setattr(data, "load", tiny.few_images())


def ways(root: Path, folder: Path) -> dict[str, list[str]]:
    """The ways to say where the data are, and nothing else of them."""
    (folder / "c.toml").write_text(f'[data]\nroot = "{root}"\n')
    return {
        "--data": ["--data", str(root)],
        "--set": ["--set", f"data.root={root}"],
        "the short key": ["--set", f"root={root}"],
        "TOML": ["--config", str(folder / "c.toml")],
    }


@pytest.mark.parametrize("way", ["--data", "--set", "the short key", "TOML"])
def test_a_folder_alone_is_the_data_set(
    tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    status, out, err = call(capsys, "train", "cfol", *ways(photos, tmp_path)[way], "--print-config")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert (found["data"]["name"], found["data"]["root"]) == ("folder", str(photos))
    assert (found["model"]["name"], found["params"]["eta"]) == ("resnet18", "auto")
    assert found["out"] == "runs/folder-cfol-seed0"


@pytest.mark.parametrize("way", ["--data", "--set", "the short key", "TOML"])
def test_a_published_data_set_is_asked_for_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    files.cifar10(tmp_path / "data", monkeypatch)
    status, out, err = call(
        capsys, "train", "cfol", *ways(tmp_path / "data", tmp_path)[way], "--print-config"
    )
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "--dataset cifar10" in err


def test_without_a_folder_they_are_the_embedded_images(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(call(capsys, "train", "cfol", "--print-config")[1])["data"]["name"] == "fashion-mini"
    assert TrainConfig().data.name == "fashion-mini"


def test_from_python_too(photos: Path) -> None:
    assert cf.TrainConfig(data={"root": str(photos)}).data.name == "folder"
    with pytest.raises(InputError, match="is not there"):
        cf.TrainConfig(data={"root": str(photos / "nowhere")})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dataset", "fashion-mini", "--data", "PHOTOS"], "fashion-mini is inside the package"),
        (["--dataset", "fashion-mini", "--download"], "data.download is for published data sets"),
        (["--download"], "needs the data set's name"),
        (["--data", "PHOTOS", "--download"], "data.download is for published data sets, got folder"),
        (["--data", "PHOTOS/nowhere"], "is not there"),
        (["--data", "PHOTOS/train/cat"], "is no data set that we recognise"),
        (["--set", "data.skip_corrupt=true"], "data.skip_corrupt is for folders of image files"),
        (["--set", "data.white=4095"], "data.white is for image files"),
        (["--set", "data.size=64"], "fashion-mini has images of 28 px"),
        (["--dataset", "cifar10", "--set", "data.size=64"], "cifar10 has images of 32 px"),
        (["--dataset", "beton", "--set", "data.size=64"], "data.size is chosen when FFCV files are written"),
        (["--data", "PHOTOS", "--set", "data.lag=4"], "data.lag belongs to data.name=beton"),
        (["--set", "data.crop_scale=0.5"], "data.crop_scale belongs to data.crop=random-resized"),
        (["--set", "optimizer.milestones=[1,2]"], "optimizer.milestones belongs to optimizer.schedule=steps"),
        (["--dataset", "cifar10", "--set", "optimizer.warmup=0.2"], "optimizer.warmup belongs to"),
        (["--set", "ema.per=epoch"], "ema.per belongs to an average"),
        (["--set", "C=100"], "params.C belongs to eta=theory"),
        (["--force"], "--force belongs to --resume"),
    ],
)
def test_what_contradicts_or_would_be_ignored_is_refused(
    photos: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    words = [word.replace("PHOTOS", str(photos)) for word in words]
    status, out, err = call(capsys, "train", "cfol", *words, "--print-config")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


# A value of each setting that nothing looks at in the run beside it.
IGNORED = {
    "data.crop_scale": ("0.5", []),
    "data.crop_ratio": ("2", []),
    "data.lag": ("3", []),
    "data.decode": ("scaled", ()),
    "optimizer.milestones": ("[3]", ["optimizer.schedule=cosine"]),
    "optimizer.decay": ("0.3", []),
    "optimizer.warmup": ("0.2", ["optimizer.schedule=steps"]),
    "ema.per": ("epoch", []),
    "params.C": ("9", []),
    "params.baseline": ("mean", ["signal=holdout"]),
    "params.feedback": ("margin", ["signal=holdout"]),
    "attack.steps": ("3", ["attack.kind=none"]),
    "attack.step": ("0.03", ["attack.kind=none"]),
    "attack.random_start": ("false", ["attack.kind=none"]),
    "data.cache": ("off", []),
    "validation.every": ("2", ["data.holdout=none"]),
    "validation.steps": ("3", ["data.holdout=none"]),
}


def config_of(*settings: str) -> TrainConfig:
    return TrainConfig({"device": "cpu"}, *map(assignment, settings))


def test_every_pair_is_tried() -> None:
    assert set(IGNORED) == {key for key, *_ in (*USED_WITH, *SAID_WITH)}


@pytest.mark.parametrize("key", IGNORED)
def test_a_setting_that_has_no_effect_is_refused_or_said(key: str) -> None:
    value, others = IGNORED[key]
    texts = [*others, f"{key}={value}"]
    if key in [used for used, *_ in USED_WITH]:
        with pytest.raises(InputError, match=f"^{key} belongs to "):
            config_of(*texts)
        return
    (line,) = without_effect(config_of(*texts))
    assert f"{key}=" in line
    assert "no effect" in line


def test_a_run_of_the_theory_s_step_can_be_continued() -> None:
    begun = config_of("eta=theory", "C=9")
    stored = settled(begun, DataFacts(("a", "b"), None, 0.01, None))
    assert stored.params["eta"] == 0.01
    assert TrainConfig(to_dict(stored)).params["C"] == 9


@pytest.mark.parametrize("kind", ["pgd", "trades", "fgsm", "n-fgsm", "none"])
@pytest.mark.parametrize("holdout", ["0.2", "none"])
def test_what_was_filled_in_is_neither_refused_nor_said_when_it_is_read_again(
    kind: str, holdout: str
) -> None:
    whole = config_of(f"attack.kind={kind}", f"data.holdout={holdout}")
    assert without_effect(whole) == []
    assert TrainConfig(to_dict(whole)) == whole


def test_a_run_says_what_has_no_effect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], few_images: None
) -> None:
    options = [
        "--set=steps_per_epoch=1",
        "--set=batch_size=8",
        "--model=demo-cnn@0.25",
        "--set=attack.steps=1",
    ]
    options += [
        "--set=validation.steps=1",
        "--set=test.steps=1",
        "--epochs=1",
        "--holdout=none",
        "--device=cpu",
    ]
    status, out, _ = call(capsys, "train", "erm", *options, "--out", str(tmp_path / "run"))
    assert status == 0
    assert "validation.steps=1 has no effect" in out


def test_the_reader_of_the_embedded_images_takes_no_folder(photos: Path) -> None:
    with pytest.raises(InputError, match="fashion-mini is inside the package"):
        data.load("fashion-mini", photos)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dataset", "fashion-mini", "--data", "PHOTOS"], "fashion-mini is inside the package"),
        (["--dataset", "fashion-mini", "--quality", "50"], "--quality is for --mode jpg"),
        (["--dataset", "fashion-mini", "--split", "test", "--imbalance", "3"], "thins the training part"),
        (["--dataset", "cifar10", "--data", "PHOTOS", "--skip-corrupt"], "data.skip_corrupt is for folders"),
    ],
)
def test_an_ffcv_file_is_not_written_from_other_data(
    tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    words = [word.replace("PHOTOS", str(photos)) for word in words]
    status, _, err = call(capsys, "data", "to-ffcv", *words, "--out", str(tmp_path / "x.beton"))
    assert (status, err.count("\n")) == (2, 1)
    assert said in err


def test_weights_of_others_are_evaluated_on_the_folder_that_is_given(
    weights: Path, photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def load(name: str, **options: Any) -> None:
        asked.append((name, options["root"]))
        raise InputError("far enough")

    monkeypatch.setattr(data, "load", load)
    call(capsys, "eval", str(weights), "--model", "demo-cnn", "--data", str(photos))
    call(capsys, "eval", "--pretrained", "--model", "torchvision:resnet18", "--data", str(photos))
    assert asked == [("folder", str(photos))] * 2


def test_a_run_of_the_embedded_images_is_evaluated_on_no_other_folder(
    tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str], few_images: None
) -> None:
    options = [
        "--set=steps_per_epoch=1",
        "--set=batch_size=8",
        "--model=demo-cnn@0.25",
        "--set=attack.steps=1",
    ]
    options += ["--set=test.steps=1", "--epochs=1", "--holdout=none", "--device=cpu", "--quiet"]
    run = tmp_path / "run"
    assert call(capsys, "train", "erm", *options, "--out", str(run))[0] == 0
    evaluate = ["eval", str(run), "--steps", "1", "--limit", "20", "--device", "cpu"]
    assert call(capsys, *evaluate)[0] == 0
    status, _, err = call(capsys, *evaluate, "--data", str(photos))
    assert (status, err.count("\n")) == (2, 1)
    assert "fashion-mini is inside the package" in err
