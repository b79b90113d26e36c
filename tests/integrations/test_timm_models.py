"""timm's models: built for the data, attacked with the right gradient, trained, rebuilt from a checkpoint,
and their published weights.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

import cfol_fast as cf
from cfol_fast import data, models
from cfol_fast.commands import main as cli
from cfol_fast.errors import InputError
from cfol_fast.evaluation.foreign_weights import adopt_published, load_weights, published_model
from tests.attacks.small_models import awaken
from tests.data import published_files
from tests.frozen.gradients import check_attack_gradient
from tests.frozen.test_runs_fast import check_fast
from tests.training import tiny

TINY = ["--set=steps_per_epoch=2", "--set=batch_size=8", "--set=attack.steps=1", "--set=test.steps=1"]
TINY += ["--epochs=1", "--holdout=none", "--device=cpu", "--quiet"]
X, Y = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.tensor([3, 7])


@pytest.mark.parametrize(
    "name", ["resnet18", "mobilenetv3_small_050", "vit_tiny_patch16_224", "convnext_atto", "efficientnet_b0"]
)
def test_the_attacks_gradient_is_plain_autograds_with_dropout_and_stochastic_depth(name: str) -> None:
    torch.manual_seed(0)
    options = {"img_size": 32} if name.startswith("vit") else {}
    if not name.startswith("mobilenet"):
        options["drop_path_rate"] = 0.5
    network = timm.create_model(name, num_classes=10, drop_rate=0.5, **options)
    check_attack_gradient(awaken(torch.nn.Sequential(models.Normalize(3), network)), X, Y)


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnetv2_18", "seresnet18"])
def test_resnets_run_fast(name: str) -> None:
    torch.manual_seed(0)
    check_fast(torch.nn.Sequential(models.Normalize(3), timm.create_model(name, num_classes=10)))


@pytest.fixture(autouse=True)
def _few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "load", tiny.few_images())


@pytest.mark.parametrize("name", ["resnet18", "convnext_atto", "efficientnet_b0"])
def test_steps_of_training_move_every_weight(name: str, tmp_path: Path) -> None:
    published_files.folder(tmp_path / "images", side=32)
    images = {"data__name": "folder", "data__root": str(tmp_path / "images"), "data__holdout": "none"}
    trainer = tiny.new_trainer(tmp_path, model__name=f"timm:{name}", batch_size=4, **images)
    before = {key: value.clone() for key, value in trainer.step.model.named_parameters()}
    tiny.take_steps(trainer, 2)
    trainer.state.check_health()
    assert not [
        key for key, value in trainer.step.model.named_parameters() if torch.equal(value, before[key])
    ]


@pytest.mark.parametrize("name", ["timm:vit_tiny_patch16_224", "timm:mobilenetv3_small_050"])
def test_a_run_trains_and_its_model_is_built_again(name: str, tmp_path: Path) -> None:
    """Of grey images of 28 px: transformers are built for the size, and the first layer for the channels."""
    assert cli.main(["train", "cfol", *TINY, "--model", name, "--out", "run"]) == 0
    assert (
        cli.main(["eval", "run", "--limit=20", "--steps=1", "--device=cpu", "--quiet", "--json=e.json"]) == 0
    )
    assert json.loads(Path("e.json").read_text())["clean"]["per_class"]
    assert cf.load("run")(torch.rand(2, 1, 28, 28)).shape == (2, 10)


def test_a_library_says_what_its_weights_were_trained_with() -> None:
    found = models.published("timm:vit_tiny_patch16_224")
    assert found == models.Published(1000, 224, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert models.published("timm:resnet18.a1_in1k").image_size == 224


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm:resnet81", "timm has no model 'resnet81'; did you mean timm:resnet"),
        ("timm:resnet18.no_such_tag", "no_such_tag"),
        ("timm:hf_hub:somebody/model", "timm has no model"),
        ("timm:local-dir:/tmp", "timm has no model"),
    ],
)
def test_only_registered_models_are_built(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        models.create(name, 10)


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """timm's weights of a small model, made up, where Hugging Face's hub keeps what it fetched."""
    torch.manual_seed(0)
    state = timm.create_model("mobilenetv3_small_050").state_dict()
    config = timm.get_pretrained_cfg("mobilenetv3_small_050")
    folder = tmp_path / "hub" / f"models--{config.hf_hub_id.replace('/', '--')}"
    (folder / "snapshots/abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("abc")
    save_file(state, folder / "snapshots/abc/model.safetensors", {"format": "pt"})
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return state


def test_published_weights_come_from_the_hubs_cache_and_a_head_for_other_classes_is_new(cached) -> None:
    whole = published_model("timm:mobilenetv3_small_050", 1000, 32, 3)
    assert all(torch.equal(value, cached[name]) for name, value in whole[1].state_dict().items())
    model = models.create("timm:mobilenetv3_small_050", 10, 32, 3)
    assert adopt_published(model, "timm:mobilenetv3_small_050", 32, 3) == [
        "classifier.weight",
        "classifier.bias",
    ]
    assert torch.equal(model[1].conv_stem.weight, cached["conv_stem.weight"])


def test_a_run_starts_from_them(cached, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "train",
        "cfol",
        *TINY,
        "--model",
        "timm:mobilenetv3_small_050",
        "--pretrained",
        "--out",
        "run",
    ]
    with pytest.warns(UserWarning, match="classifier.weight, classifier.bias start anew"):
        assert cli.main([*command, "--lr", "1e-9"]) == 0
    result = json.loads(Path("run/result.json").read_text())
    assert result["init"]["new"] == ["classifier.weight", "classifier.bias"]
    state = cf.load("run").state_dict()
    # timm sums the first layer's weights for grey images.
    torch.testing.assert_close(
        state["net.conv_stem.weight"], cached["conv_stem.weight"].sum(1, keepdim=True), atol=1e-4, rtol=1e-4
    )
    assert float(state["normalize.mean"]) == pytest.approx((0.485 + 0.456 + 0.406) / 3)


def test_weights_that_are_not_there_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        InputError, match=r"neither in the library's cache nor can they be fetched .* --init FILE"
    ):
        published_model("timm:mobilenetv3_small_050", 1000, 32, 3)


def test_the_files_of_timms_script_and_hub_are_read(tmp_path: Path) -> None:
    network = timm.create_model("mobilenetv3_small_050", num_classes=10).eval()
    torch.save(
        {"arch": "mobilenetv3_small_050", "state_dict": network.state_dict()}, tmp_path / "last.pth.tar"
    )
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    given = {"mean": [0.0] * 3, "std": [1.0] * 3}
    for model in (
        load_weights(tmp_path / "last.pth.tar", **given),
        load_weights(tmp_path / "model.safetensors", "timm:mobilenetv3_small_050", **given),
    ):
        with torch.no_grad():
            torch.testing.assert_close(model(X), network(X))
