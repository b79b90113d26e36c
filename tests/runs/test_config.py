"""The configuration tree: one set of fields for the command line, TOML, --set and Python."""

import json

import pytest

from cfol_fast.errors import InputError
from cfol_fast.runs.config import (
    TrainConfig,
    assign,
    assign_text,
    from_dict,
    from_toml,
    known_keys,
    to_dict,
)
from cfol_fast.runs.defaults import complete, holdout_label


def assigned(*texts: str) -> TrainConfig:
    config = TrainConfig()
    for text in texts:
        assign_text(config, text)
    return config


def test_fractions_are_understood():
    assert assigned("attack.eps=8/255").attack.eps == 8 / 255


def test_a_field_can_be_set_by_its_last_name_where_only_one_has_it():
    assert assigned("lr=0.05").optimizer.lr == 0.05


def test_a_name_that_several_fields_have_is_refused_with_their_keys():
    with pytest.raises(InputError, match=r"attack.steps or validation.steps or test.steps"):
        assigned("steps=10")


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("atack.eps", "attack.eps"),
        ("epoch", "epochs"),
        ("attack.epsilon", "attack.eps"),
        ("gama", "params.gamma"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(key, nearest):
    with pytest.raises(InputError, match=f"unknown configuration key '{key}'; did you mean '{nearest}'"):
        assigned(f"{key}=1")


def test_parameters_of_the_method_are_set_by_their_names():
    assert assigned("eta=1e-4", "params.gamma=9/10", "prior=empirical").params == {
        "eta": 1e-4,
        "gamma": 0.9,
        "prior": "empirical",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs=many", "epochs takes a whole number, got 'many'"),
        ("epochs=1.5", "epochs takes a whole number"),
        ("attack.eps=8/0", "attack.eps takes a number"),
        ("compile=perhaps", "compile takes true or false"),
        ("optimizer.milestones=ten", "optimizer.milestones takes a list of whole numbers"),
        ("epochs", "takes key=value"),
        ("batch_size=none", "batch_size needs a value"),
    ],
)
def test_values_of_the_wrong_kind_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        assigned(text)


def test_lists_booleans_and_none_are_understood():
    config = assigned(
        "optimizer.milestones=[10, 20]", "data.augment=false", "data.imbalance=10", "data.imbalance=none"
    )
    assert config.optimizer.milestones == (10, 20)
    assert config.data.augment == "none"
    assert config.data.imbalance is None


def test_the_tree_survives_json():
    config = assigned("attack.eps=8/255", "optimizer.milestones=10,20", "eta=1e-4", "data.name=cifar10")
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


def test_a_toml_file_sets_the_same_fields(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        'method = "erm"\nepochs = 3\n[attack]\neps = "8/255"\n[params]\neta = 1e-4\n[data]\nholdout = 0.1\n'
    )
    config = from_toml(path)
    assert (config.method, config.epochs, config.attack.eps) == ("erm", 3, 8 / 255)
    assert config.params == {"eta": 1e-4}
    assert config.data.holdout == "0.1"


def test_a_toml_file_with_a_mistake_is_refused(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[atack]\neps = 0.1\n")
    with pytest.raises(InputError, match="unknown configuration group 'atack'; did you mean 'attack'"):
        from_toml(path)
    path.write_text("epochs = = 3")
    with pytest.raises(InputError, match="is not TOML"):
        from_toml(path)
    with pytest.raises(InputError, match="no file"):
        from_toml(tmp_path / "none.toml")


def test_every_key_can_be_assigned_to_by_its_whole_path():
    config = TrainConfig()
    for key in known_keys():
        owner = config
        *groups, leaf = key.split(".")
        for group in groups:
            owner = getattr(owner, group)
        assign(config, key, getattr(owner, leaf)) if getattr(owner, leaf) is not None else None


def test_the_papers_recipe_is_the_default():
    config = complete(assigned("data.name=cifar10", "method=cfol"))
    assert (config.epochs, config.batch_size, config.model.name) == (200, 128, "resnet18")
    assert config.optimizer.milestones == (100, 150)
    assert (config.optimizer.lr, config.optimizer.momentum, config.optimizer.weight_decay) == (0.1, 0.9, 5e-4)
    assert config.attack.eps == pytest.approx(8 / 255)
    assert config.attack.step == pytest.approx(2 / 255)
    assert (config.attack.steps, config.test.steps) == (7, 20)
    assert config.test.step == pytest.approx(2.5 * 8 / 255 / 20)
    assert (config.params["eta"], config.params["gamma"]) == (2e-6, 0.5)


def test_the_embedded_images_have_the_demos_recipe():
    config = complete(assigned("method=cfol"))
    assert (config.data.name, config.epochs, config.model.name) == ("fashion-mini", 12, "demo-cnn")
    assert (config.optimizer.schedule, config.optimizer.lr) == ("one-cycle", 0.05)
    assert (config.attack.eps, config.attack.step) == (0.1, pytest.approx(0.25 / 7))
    assert config.params["eta"] == 1e-4


def test_imagenette_scales_eta_as_the_paper_does():
    assert complete(assigned("method=cfol", "data.name=imagenette")).params["eta"] == 5e-6


def test_a_larger_radius_scales_the_steps():
    config = complete(assigned("data.name=cifar10", "attack.eps=12/255"))
    assert config.attack.step == pytest.approx(3 / 255)
    assert config.test.eps == pytest.approx(12 / 255)
    assert config.test.step == pytest.approx(2.5 * 12 / 255 / 20)


def test_completing_twice_changes_nothing():
    once = complete(assigned("method=cfol"))
    assert complete(once) == once


def test_completing_leaves_the_given_configuration_alone():
    config = assigned("method=cfol")
    complete(config)
    assert config == assigned("method=cfol")


@pytest.mark.parametrize(
    ("text", "label"), [("0.2", "20%"), ("25%", "25%"), ("1/10", "10%"), ("test", "test"), ("none", "none")]
)
def test_the_hold_out_is_labelled(text, label):
    assert holdout_label(text) == label


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method=cfoll", "did you mean 'cfol'"),
        ("data.name=cifar11", "did you mean 'cifar10'"),
        ("data.holdout=2", "holdout must be a share between 0 and 1"),
        ("data.holdout=some", "holdout must be a share"),
        ("epochs=0", "epochs must be at least 1, got 0"),
        ("attack.eps=-0.1", "attack.eps must be at least 0"),
        ("optimizer.lr=0", "optimizer.lr must be above 0, got 0"),
        (
            "optimizer.schedule=sawtooth",
            "optimizer.schedule must be one of steps, one-cycle, cosine, constant",
        ),
        ("attack.kind=pdg", "attack.kind must be one of"),
        ("precision=float16", "precision must be one of"),
        ("alpha=0.5", "cfol has no parameter 'alpha'"),
        ("data.crop=centre", "data.crop must be one of own, random-resized, got 'centre'"),
        ("data.crop_scale=0", "data.crop_scale must be above 0, got 0"),
        ("device=gpu", "unknown device 'gpu'"),
        ("seed=-1", "seed must be at least 0"),
    ],
)
def test_bad_values_are_refused_when_the_configuration_is_completed(text, message):
    with pytest.raises(InputError, match=message):
        complete(assigned(text))
