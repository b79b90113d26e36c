"""What the fair table is made of: its rows, settings, seeds and budget."""

import argparse
import shlex

import pytest

from cfol_fast.commands import main as cli
from cfol_fast.commands import train
from cfol_fast.data.content import content_of
from cfol_fast.errors import InputError
from cfol_fast.recipes import planning
from cfol_fast.recipes.frontier import plan, reproduce_frontier
from cfol_fast.runs.config import TrainConfig
from cfol_fast.sampling import step_size
from tests.data import published_files as files
from tests.listening import listening
from tests.recipes import tiny_frontier
from tests.recipes.test_results import RESULTS
from tools.collection import read_kept

# Whole plans and tables: `make check` leaves them out.
pytestmark = pytest.mark.slow


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
        "cvar",
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
    assert all(len(row.grid) == (1 if row.name in ("erm", "trades") else 3) for row in table.rows)
    assert all(row.origin for row in table.rows if row.searched)


def test_beta_is_six_in_every_row_on_trades_but_frl():
    table = plan.read()
    place = plan.Place(table, table.scales["mini"], device="cpu")
    rows = [row for row in table.rows if row.base == "TRADES"]
    beta = {row.name: [place.run(row, grid, 0).config.params["beta"] for grid in row.grid] for row in rows}
    assert beta.pop("frl") == [1.5] * 3
    assert all(value == 6.0 for values in beta.values() for value in values)


def test_the_seeds_of_the_mini_scale_are_not_those_of_the_published_recipes():
    published = {run["seed"] for table in read_kept(RESULTS) for run in table["runs"].values()}
    assert published
    assert not published & set(plan.read().scales["mini"].seeds)


@pytest.mark.parametrize("name", ["cfol", "cfol-reweighted", "cfol-trades", "fol"])
def test_the_middle_step_size_of_a_bandit_is_the_automatic_one(name):
    """The mini scale has 4,000 training images, the small scale 8,000: as `eta=auto` would take it."""
    table = plan.read()
    settings = table.row(name).grid[1]
    for scale, epochs, batches, images in (("mini", 12, 32, 4000), ("small", 16, 63, 8000)):
        place = plan.Place(table, table.scales[scale], device="cpu")
        config = place.run(table.row(name), settings, 0).config
        draws = epochs * batches * config.batch_size
        automatic = (
            step_size.for_examples(draws, 0.5 / images)
            if name == "fol"
            else min(step_size.for_lead(10, draws), 0.05)
        )
        assert config.params["eta"] == pytest.approx(automatic, rel=0.01)


def test_the_papers_scale_has_the_papers_step_sizes():
    table = plan.read()
    place = plan.Place(table, table.scales["paper"], device="cpu")
    eta = {
        name: [
            place.run(table.row(name), settings, 0).config.params["eta"] for settings in table.row(name).grid
        ]
        for name in ("cfol", "cfol-trades", "fol", "group-dro")
    }
    assert eta["cfol"] == eta["cfol-trades"] == [5e-7, 2e-6, 8e-6]
    assert eta["fol"] == [2.5e-8, 1e-7, 4e-7]
    assert eta["group-dro"] == [2e-5, 8e-5, 3.2e-4]


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


def test_the_run_behind_class_levels_and_the_fit_of_offsets_are_counted():
    table = plan.read()
    place = plan.Place(table, table.scales["mini"], device="cpu")
    erm, searched = place.run(table.row("erm"), {}, 10), place.search_run(table.row("erm"), {})
    alone = plan.passes(erm.config, 4000, 1000)
    behind = plan.passes(searched.config, 4000, 1000)
    lhcvar = place.run(table.row("lhcvar"), {}, 10).config
    found = plan.passes(lhcvar, 4000, 1000, levels=True)
    for key in ("forward", "backward", "holdout"):
        assert found[key] == alone[key] + behind[key]
    # The first round has no offsets yet; each is the hold-out clean, and under an attack whose result is
    # looked at.
    assert alone["offsets"] == 21 * 1000 * (2 + 2 * erm.config.validation.steps)


def test_a_search_seed_that_the_table_uses_is_refused(tmp_path):
    path = tiny_frontier.write(tmp_path / "rows.toml", tiny_frontier.ERM, tiny_frontier.CFOL)
    path.write_text(path.read_text().replace("search_seed = 9", "search_seed = 1"))
    with pytest.raises(InputError, match="search_seed 1 is a seed of the table"):
        plan.read(path)


@pytest.mark.parametrize("seed", [9, 5])
def test_fewer_seeds_are_some_of_the_tables_and_so_not_the_searchs(tmp_path, seed):
    path = tiny_frontier.write(tmp_path / "rows.toml", tiny_frontier.ERM)
    path.write_text(path.read_text().replace("fewer_seeds = [0]", f"fewer_seeds = [{seed}]"))
    with pytest.raises(InputError, match="must be among seeds"):
        plan.read(path)


def test_step_sizes_are_scaled_for_rows_that_are_there(tmp_path):
    path = tiny_frontier.write(tmp_path / "rows.toml", tiny_frontier.ERM)
    with pytest.raises(InputError, match="eta_times names 'cfol'"):
        plan.read(path)


def test_a_folder_of_images_stands_for_cifar10(tmp_path):
    files.folder(tmp_path)
    table = plan.read()
    place = plan.Place(table, table.scales["small"], tmp_path, device="cpu")
    job = place.run(table.row("erm"), {}, 0)
    assert (job.config.data.name, job.config.data.content) == ("folder", content_of(tmp_path))
    # CIFAR-10's augmentation, not that of a folder of one's own.
    assert job.config.data.augment == "paper"
    assert "--set data.augment=paper" in plan.command(job, tmp_path)
    # Whoever repeats it with other images is told.
    assert f"--set data.content={content_of(tmp_path)}" in plan.command(job, tmp_path)


@pytest.mark.slow
def test_the_papers_scale_prints_commands_and_trains_nothing(tmp_path):
    said: list[str] = []
    with listening(said.append):
        assert reproduce_frontier("paper", tmp_path / "out", data="DIR", device="cpu") is None
    assert not (tmp_path / "out").exists()
    commands = [line for line in said if line.startswith("cfol-fast train")]
    # The run of erm that lhcvar's levels come from, the settings, and the seeds.
    assert len(commands) == 1 + 17 * 3 + 19 * 5
    assert "cfol-fast train cfol --dataset cifar10 --data DIR" in commands[1]
    assert "--set eta=5e-07" in commands[1]
    levels = [line for line in commands if "--set alpha=LEVELS" in line]
    assert len(levels) == 3 + 5
    assert len({line.split("--out ")[1] for line in levels}) == len(levels)
    tested = [line for line in said if line.startswith("cfol-fast eval")]
    assert len(tested) == 5
    assert all("--checkpoint best-average --attack autoattack --limit 1000 --json" in line for line in tested)
    assert "cfol-fast eval runs/RIVAL " in tested[-1]
    trained = {line.split("--out ")[1] for line in commands}
    assert all(line.split()[2] in trained for line in tested[:-1])


def test_the_small_scale_is_frontiers_alone(capsys):
    assert cli.main(["reproduce", "cifar10", "--scale", "small"]) == 2
    assert "belong to frontier" in capsys.readouterr().err


def test_frontier_is_carried_out_alone(capsys):
    assert cli.main(["reproduce", "frontier", "cifar10", "--scale", "mini"]) == 2
    assert "runs alone" in capsys.readouterr().err


def test_a_dry_run_shows_the_search(tmp_path, capsys):
    assert (
        cli.main(["reproduce", "frontier", "--scale", "mini", "--out", str(tmp_path / "out"), "--dry-run"])
        == 0
    )
    out = capsys.readouterr().out
    assert out.count("missing  fashion-mini-cfol-seed1000") == 3
    assert "48 runs of the search, 48 missing" in out
    assert not (tmp_path / "out").exists()


def test_a_dry_run_of_a_scale_without_a_search_says_so(tmp_path, capsys):
    out = str(tmp_path / "out")
    assert cli.main(["reproduce", "frontier", "--scale", "small", "--out", out, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "settings and rows come from the mini scale; then 27 runs" in said


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
        config = TrainConfig(train.open_settings(parser.parse_args([*words[2:], "--device", "cpu"])))
        again = planning.job(config)
        assert again.name == job.name
        assert again.config.attack == job.config.attack
