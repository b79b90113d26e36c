"""What only the data can say stands beside the configuration, and the identity of a run reads both."""

from __future__ import annotations

from pathlib import Path

import pytest

from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.data_facts import DataFacts, settled
from cfol_fast.runs.identity import differences
from tests.training import tiny

FACTS = DataFacts(classes=("cat", "dog"), content=None, eta=0.25, white=4095.0)


def test_words_become_what_the_data_said_and_numbers_stay() -> None:
    automatic = settled(TrainConfig(method="cfol", params={"eta": "auto"}), FACTS)
    assert (automatic.params["eta"], automatic.params["gamma"]) == (0.25, 0.5)
    given = settled(TrainConfig(method="cfol", params={"eta": 0.1}), FACTS)
    assert given.params["eta"] == 0.1
    assert automatic.data.white == given.data.white == 4095
    assert FACTS.num_classes == 2


def test_a_method_without_a_bandit_and_images_of_8_bits_change_nothing() -> None:
    config = TrainConfig(method="erm")
    assert settled(config, DataFacts(("cat",), None, None, None)) == config


def test_the_number_of_another_run_is_another_run() -> None:
    config = TrainConfig(method="cfol", params={"eta": "auto"})
    begun = settled(config, DataFacts(("cat", "dog"), None, 0.25, None))
    # Before the images are read, "auto" may be the same number.
    assert differences(begun, config) == []
    now = settled(config, DataFacts(("cat", "dog"), None, 0.5, None))
    assert differences(begun, now) == ["params.eta (was 0.25, now 0.5)"]


def test_building_a_run_leaves_its_configuration_alone(tmp_path: Path, few_images: None) -> None:
    config = tiny.tiny_config(tmp_path, params__eta="auto")
    trainer = tiny.new_trainer(tmp_path, params__eta="auto")
    facts = trainer.state.facts
    assert trainer.config == config
    assert trainer.config.params["eta"] == "auto"
    assert facts.eta == pytest.approx(trainer.step.sampler.eta)
    assert facts.num_classes == 10
    assert facts.classes == tuple(trainer.state.images.classes)
