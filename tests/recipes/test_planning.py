"""Runs are found by what they compute: shared between recipes, told apart by every setting that matters and
by nothing else.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from cfol_fast.errors import InputError
from cfol_fast.methods import METHODS
from cfol_fast.recipes import evaluating, list_recipes, load_recipe, plan
from cfol_fast.recipes.planning import Plan, identity, job
from cfol_fast.runs.config import TrainConfig
from tests.recipes.fake_runs import write_run

pytestmark = pytest.mark.slow


def names(made: Plan, entry: str, block: str = "cifar10") -> list[str]:
    cell = made.cell(block, entry)
    assert cell is not None
    return [item.name for item in cell.jobs]


@pytest.mark.parametrize("scale", ["paper", "mini"])
def test_recipes_share_their_runs(scale: str) -> None:
    main, seeds = (plan(load_recipe(name), scale) for name in ("cifar10", "seeds"))
    gamma, radius, exploration, attacked = (
        plan(load_recipe(name), scale) for name in ("gamma", "radius", "exploration", "autoattack")
    )
    assert names(gamma, "gamma-05") == names(seeds, "cfol")
    assert set(names(main, "cfol")) <= set(names(seeds, "cfol"))
    assert names(radius, "erm", "eps-8") == names(main, "erm")[:1]
    assert names(radius, "cfol", "eps-8") == names(main, "cfol")[:1]
    assert names(exploration, "cfol-2e-6") == names(main, "cfol")[:1]
    assert names(exploration, "fol-1e-7") == names(main, "fol")[:1]
    assert names(exploration, "lcvar-08") == names(main, "lcvar")[:1]
    assert names(attacked, "cfol") == names(exploration, "cfol-5e-6")
    assert names(radius, "erm", "eps-12") != names(radius, "erm", "eps-8")


@pytest.mark.parametrize("scale", ["paper", "mini"])
def test_every_recipe_can_be_planned_and_shares_what_it_can(scale: str) -> None:
    plans = [plan(load_recipe(name), scale) for name in list_recipes()]
    needed = [item.name for made in plans for item in made.jobs()]
    assert len(set(needed)) <= 0.6 * len(needed)
    assert all(made.jobs() for made in plans)


def test_the_paper_scale_is_the_papers_recipe() -> None:
    (first,) = plan(load_recipe("figure-distribution"), "paper").jobs()
    config = first.config
    assert (config.data.name, config.model.name, config.epochs, config.batch_size) == (
        "cifar10",
        "resnet18",
        200,
        128,
    )
    assert (config.optimizer.lr, config.optimizer.milestones) == (0.1, (100, 150))
    assert config.params["eta"] == 2e-6
    assert config.attack.eps == pytest.approx(8 / 255)
    assert config.attack.step == pytest.approx(2 / 255)
    assert config.test.step == pytest.approx(2.5 * 8 / 255 / 20)
    # The authors stop early by the attack of the test.
    assert config.validation.steps == config.test.steps == 20


def test_the_larger_radius_scales_both_steps() -> None:
    cell = plan(load_recipe("radius"), "paper").cell("eps-12", "cfol")
    assert cell is not None
    config = cell.jobs[0].config
    assert config.attack.step == pytest.approx(3 / 255)
    assert config.test.step == pytest.approx(2.5 * 12 / 255 / 20)


def test_the_paper_takes_the_test_set_for_early_stopping_in_two_tables() -> None:
    for name in ("larger-models", "imbalanced"):
        assert all(item.config.data.holdout == "test" for item in plan(load_recipe(name), "paper").jobs())
    imbalanced = plan(load_recipe("imbalanced"), "paper").jobs()
    assert {item.config.data.imbalance for item in imbalanced} == {10.0}
    kinds = {
        (i.config.params["prior"], i.config.params["base"]) for i in imbalanced if i.config.method == "cfol"
    }
    assert kinds == {("uniform", "uniform"), ("empirical", "uniform"), ("empirical", "empirical")}


@pytest.mark.parametrize("recipe", ["imagenette", "autoattack"])
def test_imagenette_is_cropped_as_in_the_authors_code_at_the_papers_scale_only(recipe: str) -> None:
    def crops(scale: str) -> set[tuple[str, float]]:
        jobs = [
            cell.jobs[0] for cell in plan(load_recipe(recipe), scale).cells if cell.block.name == "imagenette"
        ]
        return {(job.config.data.crop, job.config.data.crop_scale) for job in jobs}

    assert crops("paper") == {("random-resized", 0.35)}
    assert crops("mini") == {("own", TrainConfig().data.crop_scale)}


def test_the_mini_scale_is_the_demo_on_the_embedded_images() -> None:
    jobs = [item for name in list_recipes() for item in plan(load_recipe(name), "mini").jobs()]
    assert {item.config.data.name for item in jobs} == {"fashion-mini"}
    assert {item.config.epochs for item in jobs} == {12}
    cfol = plan(load_recipe("exploration"), "mini")
    etas = [
        cfol.cell("cifar10", entry.name).jobs[0].config.params["eta"]
        for entry in load_recipe("exploration").entries[:6]
    ]  # type: ignore[union-attr]
    assert etas == [2.3e-5, 5e-5, 1e-4, 2.5e-4, 2.7e-4, 5e-4]


def test_at_the_mini_scale_the_models_in_question_are_narrow_ones() -> None:
    models = {
        item.config.model.name
        for name in ("vgg16", "larger-models")
        for item in plan(load_recipe(name), "mini").jobs()
    }
    assert models == {"vgg16@0.125", "wrn-10-1@0.5", "resnet18@0.0625"}


def test_a_folder_of_images_can_take_the_embedded_ones_place(tmp_path: Path) -> None:
    jobs = plan(load_recipe("seeds"), "mini", tmp_path).jobs()
    assert {item.config.data.name for item in jobs} == {"folder"}
    assert {item.config.attack.eps for item in jobs} == {8 / 255}
    other = plan(load_recipe("seeds"), "mini", tmp_path / "other").jobs()
    assert not {item.name for item in jobs} & {item.name for item in other}


def test_where_a_run_is_carried_out_does_not_change_its_name() -> None:
    here = TrainConfig(data={"name": "cifar10"})
    there = here.replace(
        out="elsewhere", data={"root": "/data"}, checkpoint={"steps": 5}, device="cpu", compile=True
    )
    assert job(here).name == job(there).name


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 1),
        ("eta", 3e-6),
        ("attack.eps", 0.2),
        ("epochs", 3),
        ("model.name", "vgg16"),
        ("data.holdout", "test"),
        ("precision", "bfloat16"),
    ],
)
def test_what_is_computed_changes_the_name(key: str, value: object) -> None:
    changed = TrainConfig({key: value})
    assert job(changed).name != job(TrainConfig()).name


def test_settings_at_their_default_are_not_part_of_the_name() -> None:
    # so that a field added to the configuration later does not orphan the runs there are
    settings = identity(TrainConfig())
    assert "optimizer.momentum" not in settings
    assert "ensemble" not in settings
    assert {"method", "seed", "data.name", "attack.eps"} <= set(settings)


def test_finished_runs_are_not_missing(tmp_path: Path) -> None:
    made = plan(load_recipe("seeds"), "mini")
    write_run(made.jobs()[0], tmp_path)
    assert len(made.missing(tmp_path)) == len(made.jobs()) - 1


def test_a_column_without_its_checkpoint_is_left_open_at_the_papers_scale_only() -> None:
    column = plan(load_recipe("larger-models"), "paper").cell("cifar10", "erm")
    small = plan(load_recipe("larger-models"), "mini").cell("cifar10", "erm")
    assert column is not None
    assert column.absent
    assert small is not None
    assert small.jobs[0].config.method == "erm"


def test_checkpoints_go_to_columns_that_take_one(tmp_path: Path) -> None:
    cell = plan(load_recipe("larger-models"), "paper", checkpoints={"erm": tmp_path / "x.pt"}).cell(
        "cifar10", "erm"
    )
    assert cell is not None
    assert cell.checkpoint == tmp_path / "x.pt"
    with pytest.raises(InputError, match=r"'cfol'.*trades, erm"):
        plan(load_recipe("larger-models"), checkpoints={"cfol": tmp_path})
    with pytest.raises(InputError, match="none"):
        plan(load_recipe("cifar10"), checkpoints={"erm": tmp_path})
    with pytest.raises(InputError, match=r"paper, mini.*'large'"):
        plan(load_recipe("cifar10"), "large")


def test_a_method_without_a_step_size_for_the_embedded_images_follows_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = dataclasses.replace(METHODS["cfol"], datasets={})
    monkeypatch.setitem(METHODS, "cfol", row)
    cell = plan(load_recipe("cifar10"), "mini").cell("cifar10", "cfol")
    assert cell is not None
    assert cell.jobs[0].config.params["eta"] == "auto"


def test_a_folder_is_tested_with_autoattack_on_random_images_of_every_class(tmp_path: Path) -> None:
    cell = plan(load_recipe("autoattack"), "mini", data=tmp_path).cells[0]
    assert cell.attack is not None
    assert (cell.attack["images_per_class"], cell.attack["images_seed"]) == (30, 0)
    labels = torch.arange(3).repeat_interleave(100)
    chosen = evaluating._of_each_class(labels, 3, 30, 0)
    assert torch.bincount(labels[chosen]).tolist() == [30, 30, 30]
    assert torch.equal(chosen, evaluating._of_each_class(labels, 3, 30, 0))
    first = torch.cat([torch.arange(30) + 100 * c for c in range(3)])
    assert not torch.equal(chosen, first)
    assert torch.equal(evaluating._of_each_class(labels, 3, 30), first)
