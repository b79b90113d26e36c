"""What the fair table is made of: its rows, settings, seeds and budget."""

import argparse
import shlex

import pytest

from cfol_fast.commands import main as cli
from cfol_fast.commands import train
from cfol_fast.errors import InputError
from cfol_fast.recipes import planning
from cfol_fast.recipes.frontier import plan, reproduce_frontier
from tests.recipes import tiny_frontier


def test_class_levels_follow_erms_accuracies():
    levels = plan.resolve({"alpha_by_erm": [0.2, 0.8]}, {"a": 0.0, "b": 0.5, "c": 1.0})
    assert levels == {"alpha": [0.2, 0.5, 0.8]}


def test_the_rows_of_the_small_scale_are_the_named_ones_and_the_best_rivals():
    table = plan.read()
    seeds = plan.rows_and_seeds(table, table.scales["small"], ["dafa", "chi2", "wat", "faal"], "dafa")
    assert list(seeds) == ["erm", "cfol", "dafa", "chi2", "trades", "cfol-trades", "wat"]
    assert {name for name, of_row in seeds.items() if len(of_row) == 5} == {"erm", "cfol", "dafa"}
    assert all(len(seeds[name]) == 3 for name in ("trades", "cfol-trades", "chi2", "wat"))


def test_the_table_has_the_rows_and_three_settings_of_each():
    table = plan.read()
    at = [
        "erm",
        "cfol",
        "cfol-reweighted",
        "fol",
        "lcvar",
        "lhcvar",
        "group-dro",
        "two-run",
        "cfa",
        "dafa",
        "faal",
        "chi2",
    ]
    trades = ["trades", "cfol-trades", "wat", "frl", "cfa-trades", "dafa-trades"]
    assert [(row.name, row.base) for row in table.rows] == [(n, "AT") for n in at] + [
        (n, "TRADES") for n in trades
    ]
    assert all(len(row.grid) == (1 if row.name == "erm" else 3) for row in table.rows)


def test_every_row_of_a_scale_has_the_same_training_but_for_its_method():
    table = plan.read()
    place = plan.Place(table, table.scales["mini"], device="cpu")
    seen = []
    for row in table.rows:
        config = place.run(row, plan.resolve(row.grid[0], {str(c): 0.5 for c in range(10)}), 0).config
        seen.append(
            (
                config.model,
                config.optimizer,
                config.epochs,
                config.data,
                config.attack.steps,
                config.attack.eps,
                config.validation,
                config.test,
            )
        )
    assert all(one == seen[0] for one in seen)


def test_trades_takes_more_passes_and_two_runs_twice_as_many():
    table = plan.read()
    place = plan.Place(table, table.scales["mini"], device="cpu")

    def passes(name):
        return plan.passes(place.run(table.row(name), table.row(name).grid[0], 0).config, 4000, 1000)

    # 12 epochs of 32 batches of 128; seven steps of the attack and the training pass.
    assert passes("erm")["forward"] == passes("erm")["backward"] == 12 * 32 * 128 * 8
    assert passes("trades")["forward"] == 12 * 32 * 128 * 10
    assert passes("two-run")["forward"] == 2 * passes("erm")["forward"]
    assert passes("wat")["holdout"] > passes("trades")["holdout"]


def test_a_search_seed_that_the_table_uses_is_refused(tmp_path):
    path = tiny_frontier.write(tmp_path / "rows.toml", tiny_frontier.ERM)
    path.write_text(path.read_text().replace("search_seed = 9", "search_seed = 1"))
    with pytest.raises(InputError, match="search_seed 1 is a seed of the table"):
        plan.read(path)


def test_a_folder_of_images_stands_for_cifar10(tmp_path):
    (tmp_path / "train").mkdir()
    table = plan.read()
    place = plan.Place(table, table.scales["small"], tmp_path, device="cpu")
    assert place.run(table.row("erm"), {}, 0).config.data.name == "folder"


@pytest.mark.slow
def test_the_papers_scale_prints_commands_and_trains_nothing(tmp_path):
    said: list[str] = []
    assert reproduce_frontier("paper", tmp_path / "out", data="DIR", device="cpu", say=said.append) is None
    assert not (tmp_path / "out").exists()
    commands = [line for line in said if line.startswith("cfol-fast train")]
    assert len(commands) == 16 * 3 + 17 * 5
    assert "cfol-fast train cfol --dataset cifar10 --data DIR" in commands[0]
    assert "--set eta=1e-06" in commands[0]


def test_the_small_scale_is_frontiers_alone(capsys):
    assert cli.main(["reproduce", "cifar10", "--scale", "small"]) == 2
    assert "belong to frontier" in capsys.readouterr().err


def test_frontier_is_carried_out_alone(capsys):
    assert cli.main(["reproduce", "frontier", "cifar10", "--scale", "mini"]) == 2
    assert "carried out alone" in capsys.readouterr().err


def test_a_dry_run_shows_the_search(tmp_path, capsys):
    assert (
        cli.main(["reproduce", "frontier", "--scale", "mini", "--out", str(tmp_path / "out"), "--dry-run"])
        == 0
    )
    out = capsys.readouterr().out
    assert out.count("missing  fashion-mini-cfol-seed1000") == 3
    assert "48 runs of the search, 48 missing" in out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("scale", ["mini", "small", "paper"])
def test_the_command_of_a_row_trains_the_same_run(scale):
    """Read back by the command line, every command is the run of the table."""
    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    table = plan.read()
    place = plan.Place(table, table.scales[scale], device="cpu")
    for row in table.rows:
        job = place.run(row, plan.resolve(row.grid[0], {str(c): 0.5 for c in range(10)}), 3)
        words = shlex.split(plan.command(job, None))
        assert words[:2] == ["cfol-fast", "train"]
        config = train.read_config(parser.parse_args([*words[2:], "--device", "cpu"]))
        again = planning.job(config)
        assert again.name == job.name
        assert again.config.attack == job.config.attack
