"""The fair tables that are committed: complete, and each figure, plot and command what the kept predictions
and the code give.
"""

import argparse
import json
import shlex

import pytest

from cfol_fast.commands import train
from cfol_fast.recipes import kept_predictions, planning
from cfol_fast.recipes.frontier import drawing, facts, plan, text
from cfol_fast.reporting import picture_files
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.price import price
from tests.recipes.test_results import RESULTS
from tools import headline
from tools.collection import read_frontiers

pytestmark = pytest.mark.slow

# The paper's scale needs a GPU.
CARRIED_OUT = ["mini", "small"]


def same_as_the_images(made, tree):
    """Every figure of the facts again: from what each image was taken for, and the choices from the search's
    figures.
    """
    accuracies = {
        (entry["name"], rule, kind): {
            seed: kept_predictions.accuracy(tree, run, rule, kind, made["classes"])
            for seed, run in zip(entry["seeds"], entry["runs"], strict=True)
        }
        for entry in made["rows"]
        for rule in entry["rules"]
        for kind in facts.KINDS
    }
    for entry in made["rows"]:
        for rule, kept in entry["rules"].items():
            of_kind = {kind: accuracies[entry["name"], rule, kind] for kind in facts.KINDS}
            again = facts.measured(
                [{kind: of_kind[kind][seed] for kind in facts.KINDS} for seed in entry["seeds"]],
                kept["robust"].keys(),
            )
            assert json.loads(json.dumps(kept)) == json.loads(json.dumps(again)), (entry["name"], rule)
    robust = {entry["name"]: accuracies[entry["name"], facts.RULE, "robust"] for entry in made["rows"]}
    worst = {name: {seed: one.worst for seed, one in of.items()} for name, of in robust.items()}
    titles = {entry["name"]: entry["title"] for entry in made["rows"]}
    assert facts.declared(worst, made["rival"], titles) == made["declared"]
    again = {name: of for name, of in robust.items() if name in ("erm", "cfol", made["rival"])}
    beside = {
        name: {
            seed: {
                facts.RULE: {"robust": one},
                "offsets": {"robust": accuracies[name, "offsets", "robust"][seed]},
            }
            for seed, one in of.items()
        }
        for name, of in again.items()
    }
    assert facts.beside_offsets(beside, [name for name in beside if name != "erm"]) == made["beside_offsets"]
    for entry in made["rows"]:
        if "price" in entry:
            base = next(other["name"] for other in made["rows"] if other["base"] == entry["base"])
            shared = facts.shared_seeds(robust[entry["name"]], robust[base])
            sides = [[robust[name][seed] for seed in shared] for name in (base, entry["name"])]
            assert price(*sides) == entry["price"], entry["name"]
        if "autoattack" in entry:
            attacked = {
                kind: kept_predictions.accuracy(tree, entry["runs"][0], "autoattack", kind, made["classes"])
                for kind in facts.KINDS
            }
            metrics = entry["autoattack"]["robust"].keys()
            again = json.loads(json.dumps(facts.attacked(attacked, entry["seeds"][0], metrics)))
            assert again == json.loads(json.dumps(entry["autoattack"])), entry["name"]
    search = [{**item, "chosen": None} for item in made["search"]]
    facts.choose(search)
    assert search == made["search"]
    chosen = {item["row"]: item["settings"] for item in search if item["chosen"]}
    assert all(entry["settings"] == chosen.get(entry["name"], {}) for entry in made["rows"])
    ranked = facts.rank_rivals(plan.read(), search)
    assert [(item["name"], item["holdout_worst"]) for item in made["rivals"]] == ranked
    assert made["rival"] == next((name for name, _ in ranked), None)


def committed(scale):
    """The facts that are kept of a scale: all that are carried out must be there."""
    return next(kept for kept in read_frontiers(RESULTS) if kept["scale"] == scale)


def test_the_committed_tables_are_what_the_committed_images_say():
    for kept in read_frontiers(RESULTS):
        same_as_the_images(kept, kept_predictions.read(RESULTS / kept["scale"]))


def test_the_readmes_headline_has_every_committed_table():
    page = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    written = page.partition(headline.BEGIN)[2].partition(headline.END)[0].lstrip("\n")
    assert written == headline.markdown(read_frontiers(RESULTS)), (
        "run: python -m tools.headline results README.md"
    )


@pytest.mark.parametrize("scale", CARRIED_OUT)
def test_the_committed_tables_are_complete(scale):
    """Every row with every seed that the file of rows asks for, every rule, and AutoAttack on 100 images a
    class of the named rows.
    """
    kept, table = committed(scale), plan.read()
    ranking = [item["name"] for item in kept["rivals"]]
    asked = plan.rows_and_seeds(table, table.scales[scale], ranking, kept["rival"])
    assert {row["name"]: row["seeds"] for row in kept["rows"]} == asked
    assert all(set(text.RULES) == set(row["rules"]) for row in kept["rows"])
    attacked = {row["name"]: row["autoattack"]["images"] for row in kept["rows"] if "autoattack" in row}
    assert attacked == dict.fromkeys([*table.autoattack, kept["rival"]], 1000)


@pytest.mark.parametrize("scale", CARRIED_OUT)
def test_the_committed_plot_is_drawn_from_the_committed_facts(scale, tmp_path):
    figure = drawing.figure(committed(scale))
    picture_files.write(figure, tmp_path / "again.svg", note=figure.caption)
    assert (RESULTS / scale / "frontier.svg").read_bytes() == (tmp_path / "again.svg").read_bytes()


@pytest.mark.parametrize("scale", CARRIED_OUT)
def test_every_committed_command_trains_the_run_that_is_kept(scale):
    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    for row in committed(scale)["rows"]:
        words = shlex.split(row["command"])
        config = TrainConfig(train.open_settings(parser.parse_args([*words[2:], "--device", "cpu"])))
        assert words[-1] == f"runs/{row['runs'][0]}"
        assert planning.job(config).name == row["runs"][0], row["command"]
