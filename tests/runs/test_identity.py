"""Is it the same run? What resume, recipes and reports ask, answered by one rule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cfol_fast.errors import InputError
from cfol_fast.machine import check_same_arithmetic
from cfol_fast.methods import METHODS
from cfol_fast.recipes.planning import job
from cfol_fast.runs import run_folder
from cfol_fast.runs.config import TrainConfig, settings, to_dict
from cfol_fast.runs.identity import (
    HISTORIC_DEFAULTS,
    differences,
    essential_settings,
    identity,
    is_incidental,
)

ELSEWHERE = {
    "out": "there",
    "device": "cpu",
    "data.root": "/elsewhere",
    "data.cache": "off",
    "data.download": True,
    "compile": True,
    "graph": True,
    "deterministic": True,
    "test.batch_size": 7,
    "checkpoint.steps": 10,
    "checkpoint.seconds": 60,
}
CIFAR = TrainConfig(data={"name": "cifar10"})
CPU = {"device": "cpu", "threads": 1, "instructions": "AVX2", "compiled": False}
GPU = {**CPU, "device": "cuda", "gpu": "NVIDIA H100"}


def configuration(**settings: object) -> TrainConfig:
    return TrainConfig({key.replace("__", "."): value for key, value in settings.items()})


def test_the_rule_speaks_of_settings_that_there_are():
    assert {key for key in settings() if is_incidental(key)} == set(ELSEWHERE)
    parameters = {f"params.{name}" for method in METHODS.values() for name in method.defaults}
    assert set(HISTORIC_DEFAULTS) <= {*settings(), *parameters}


@pytest.mark.parametrize(("key", "value"), ELSEWHERE.items())
def test_a_run_may_be_continued_elsewhere_and_saved_at_other_times(tmp_path, key, value):
    run_folder.begin(tmp_path / "run", CIFAR)
    run_folder.check(tmp_path / "run", CIFAR.replace({key: value}), resume=True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epochs", 3),
        ("seed", 1),
        ("params.eta", 0.5),
        ("attack.eps", 0.05),
        ("batch_size", 64),
        ("data.lag", 2),
    ],
)
def test_what_changes_the_weights_is_another_run(key, value):
    before = TrainConfig(data={"name": "beton", "root": "/here"}) if key == "data.lag" else TrainConfig()
    found = differences(before, before.replace({key: value}))
    assert key in [difference.partition(" (was ")[0] for difference in found]


def test_a_field_that_an_older_version_did_not_have_makes_no_difference():
    tree = to_dict(TrainConfig())
    older = {key: value for key, value in tree.items() if key != "ensemble"}
    assert essential_settings(older) == essential_settings(tree)


def test_the_identity_of_a_run_is_what_its_recipe_named_it_by():
    """The folders under results/ are named by a hash of this: another dictionary would orphan them."""
    config = configuration(method="cfol", data__name="cifar10", data__root="/data", epochs=200, seed=3)
    assert identity(config) == {
        "method": "cfol",
        "params.eta": 2e-6,
        "params.gamma": 0.5,
        "params.prior": "uniform",
        "params.base": "uniform",
        "data.name": "cifar10",
        "model.name": "resnet18",
        "optimizer.lr": 0.1,
        "optimizer.schedule": "steps",
        "optimizer.milestones": [100, 150],
        "attack.kind": "pgd",
        "attack.eps": 0.0313725490196,
        "attack.step": 0.0078431372549,
        "test.eps": 0.0313725490196,
        "test.step": 0.00392156862745,
        "epochs": 200,
        "seed": 3,
    }


def test_committed_runs_keep_their_names():
    committed = {
        name: run["settings"]
        for path in (Path(__file__).parents[2] / "results").glob("*/*.json")
        for name, run in json.loads(path.read_text()).get("runs", {}).items()
    }
    assert len(committed) > 30
    for name, named_by in committed.items():
        # The settings at whose defaults a run is named are left out.
        config = configuration(**{"attack.steps": 7, **named_by})
        assert job(config).name == name


@pytest.mark.parametrize(
    ("value", "means"),
    [(True, "paper"), (False, "none"), ("true", "paper"), ("off", "none"), ("crop", "crop")],
)
def test_an_older_switch_of_augmentation_is_read(value, means):
    assert configuration(data__augment=value).data.augment == means


def test_a_run_of_a_folder_from_before_the_words_goes_on_as_it_was():
    tree = to_dict(configuration(data__name="folder", data__root="/here", data__augment="paper"))
    tree["data"]["augment"] = True
    stored = TrainConfig.recorded(tree)
    assert stored.data.augment == "paper"
    assert differences(stored, TrainConfig(tree)) == []
    now = configuration(data__name="folder", data__root="/here")
    assert "data.augment (was 'paper', now 'crop')" in differences(stored, now)


@pytest.mark.parametrize("name", ["fashion-mini", "cifar10", "folder"])
def test_the_switch_of_augmentation_names_a_run_as_before(name):
    def settings(value):
        root = None if name == "fashion-mini" else "/here"
        tree = to_dict(configuration(data__name=name, data__root=root))
        tree["data"]["augment"] = value
        return essential_settings(tree)

    assert settings(True) == settings("paper")
    assert "data.augment" not in settings("paper")
    assert settings(False) == settings("none")
    assert settings("none")["data.augment"] is False
    assert settings("crop")["data.augment"] == "crop"


def test_a_folder_of_images_is_known_by_its_path(tmp_path):
    config = configuration(data__name="folder", data__root=str(tmp_path / "a" / ".." / "b"))
    assert identity(config)["data.root"] == str((tmp_path / "b").resolve())


def test_another_kind_of_device_is_accepted_and_told():
    assert check_same_arithmetic(CPU, GPU, force=False) == ["device (was cpu, now cuda)"]


@pytest.mark.parametrize(
    ("key", "value"), [("threads", 2), ("instructions", "AVX512"), ("compiled", True), ("gpu", "NVIDIA A100")]
)
def test_other_rounding_on_the_same_device_is_refused_unless_forced(key, value):
    with pytest.raises(InputError, match=f"{key} .*--force"):
        check_same_arithmetic(GPU, {**GPU, key: value}, force=False)
    assert check_same_arithmetic(GPU, {**GPU, key: value}, force=True)


def test_what_an_older_version_did_not_store_is_not_compared():
    older = {key: value for key, value in CPU.items() if key != "compiled"}
    assert check_same_arithmetic(older, {**CPU, "compiled": True}, force=False) == []


def test_a_folder_whose_content_is_known_is_named_by_it_and_another_by_its_path():
    folder = {"data__name": "folder", "data__root": "/here"}
    here, there = (
        identity(configuration(**{**folder, "data__root": root}, data__content="ab"))
        for root in ("/here", "/there")
    )
    assert here == there
    assert here["data.content"] == "ab"
    assert not any("/here" in str(value) for value in here.values())
    assert identity(configuration(**folder))["data.root"] == "/here"
    assert differences(
        configuration(**folder, data__content="ab"), configuration(**folder, data__content="cd")
    )


def test_only_a_folder_has_a_content():
    with pytest.raises(
        InputError, match=r"data\.content is the digest of a folder of images, got data\.name=cifar10"
    ):
        configuration(data__name="cifar10", data__content="ab")
