"""The fair table, carried out: settings chosen on the hold-out of their own seed, seeds trained, every figure
from files.
"""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from cfol_fast import data
from cfol_fast.errors import InputError
from cfol_fast.recipes import kept_predictions, kept_runs, runner
from cfol_fast.recipes.frontier import facts, keep_finished, plan, reproduce_frontier
from cfol_fast.runs import predictions
from tests.listening import listening
from tests.recipes import fake_frontier, tiny_frontier
from tests.recipes.test_frontier_facts import same_as_the_images
from tests.training.tiny import few_images
from tools.collection import collect, read_frontiers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def carried_out(tmp_path_factory):
    """Two rows, two seeds, one epoch; with offsets."""
    patch = pytest.MonkeyPatch()
    patch.setattr(data, "load", few_images())
    patch.setattr("cfol_fast.recipes.reproduction.load_data", few_images())
    folder = tmp_path_factory.mktemp("frontier")
    rows = tiny_frontier.write(folder / "rows.toml", tiny_frontier.ERM, tiny_frontier.CFOL)
    said: list[str] = []
    with listening(said.append):
        reproduce_frontier("mini", folder / "mini", quiet=True, device="cpu", rows=rows)
    yield folder, rows, said
    patch.undo()


@pytest.fixture
def made(carried_out):
    return json.loads((carried_out[0] / "mini/frontier/frontier.json").read_text())


def test_the_setting_is_the_best_on_the_hold_out_of_a_seed_of_its_own(made):
    tried = [item for item in made["search"] if item["row"] == "cfol"]
    assert [item["settings"] for item in tried] == [{"eta": 1e-4}, {"eta": 2e-4}]
    assert all("seed9" in item["run"] for item in tried)
    best = max(tried, key=lambda item: (item["holdout"]["worst"], item["holdout"]["average"]))
    assert [item for item in tried if item["chosen"]] == [best]
    cfol = next(row for row in made["rows"] if row["name"] == "cfol")
    assert cfol["settings"] == best["settings"]
    assert cfol["seeds"] == [0, 1]


def test_the_search_sees_no_test_image_under_a_real_attack(carried_out, made):
    config = json.loads((carried_out[0] / "mini/runs" / made["search"][0]["run"] / "config.json").read_text())
    assert (config["test"]["steps"], config["ema"]["decay"]) == (1, 0.0)


def test_every_row_has_every_rule_the_average_of_the_weights_and_offsets(made):
    for row in made["rows"]:
        assert row["rules"].keys() >= {"last", "best-average", "best-worst", "offsets", "ema-best-average"}
        assert row["rules"]["best-average"]["robust"].keys() == facts.METRICS.keys()


def test_the_figures_are_those_of_the_predicted_classes(carried_out, made):
    runs = carried_out[0] / "mini/runs"
    for row in made["rows"]:
        for rule in ("last", "best-average"):
            worst = []
            for name in row["runs"]:
                result = json.loads((runs / name / "result.json").read_text())
                labels, kept = predictions.read(runs / name, result)
                worst.append(predictions.accuracy(labels, kept[rule]["robust"], result["classes"]).worst)
            assert row["rules"][rule]["robust"]["worst"]["values"] == pytest.approx(worst, abs=1e-6)


def test_the_comparison_of_cfol_and_erm_is_declared(made):
    assert [(item["better"], item["than"]) for item in made["declared"]] == [("cfol", "erm")]
    assert made["rival"] is None


def test_autoattack_is_left_to_the_rows_that_are_named(made):
    assert not any("autoattack" in row for row in made["rows"])


def test_the_page_and_the_table_are_written(carried_out):
    folder = carried_out[0] / "mini/frontier"
    table = (folder / "table.md").read_text()
    assert "**The declared comparisons.**" in table
    assert "**The settings that were tried.**" in table
    assert (folder / "frontier.svg").exists()
    assert "The price of each method" in (folder / "report.html").read_text()


def test_what_is_kept_of_real_runs_gives_every_figure_and_choice_again(carried_out, tmp_path):
    collect(carried_out[0] / "mini", tmp_path)
    (kept,) = read_frontiers(tmp_path)
    assert "price" in kept["rows"][1]
    same_as_the_images(kept, kept_predictions.read(tmp_path / "mini"))


def test_the_same_command_again_trains_nothing(carried_out, monkeypatch):
    folder, rows, _ = carried_out
    monkeypatch.setattr(runner, "carry_out", lambda *_: pytest.fail("trained again"))
    said: list[str] = []
    with listening(said.append):
        reproduce_frontier("mini", folder / "mini", quiet=True, device="cpu", rows=rows)
    assert any("4 runs, 4 of them there already" in line for line in said)


def test_another_machine_goes_on_with_the_runs_of_a_kept_file(carried_out, tmp_path, monkeypatch):
    """One run is missing in the file: it alone is trained, and the table is the same in all that the runs
    say.
    """
    folder, rows, _ = carried_out
    file = tmp_path / "runs.tar.xz"
    keep_finished("mini", file, folder / "mini", rows=rows)
    kept = kept_runs.read(file)
    before = json.loads((folder / "mini/frontier/frontier.json").read_text())
    missing = before["rows"][1]["runs"][1]
    kept_runs.write(file, {name: held for name, held in kept.items() if name != missing})
    trained, carry_out = [], runner.carry_out

    def noted(job, *more):
        trained.append(job.name)
        carry_out(job, *more)

    monkeypatch.setattr(runner, "carry_out", noted)
    out, said = tmp_path / "elsewhere", []
    with listening(said.append):
        reproduce_frontier("mini", out, quiet=True, device="cpu", rows=rows, take=file)
    assert trained == [missing]
    assert f"{file}: {len(kept) - 1} finished runs taken" in said
    now = json.loads((out / "frontier/frontier.json").read_text())
    assert {key for key in before if before[key] != now[key]} <= {"command", "seconds"}


def test_settings_of_the_small_scale_come_from_the_mini_scale(tmp_path, monkeypatch):
    # Away from the repository, which has them in results/.
    monkeypatch.chdir(tmp_path)
    rows = tiny_frontier.write(tmp_path / "rows.toml", tiny_frontier.ERM, tiny_frontier.CFOL)
    with pytest.raises(InputError, match="settings come from the mini scale"):
        reproduce_frontier("small", tmp_path / "small", rows=rows)


def test_the_small_scale_says_which_data_it_needs(carried_out, tmp_path):
    folder, rows, _ = carried_out
    taken = folder / "mini/frontier/frontier.json"
    with pytest.raises(InputError, match="frontier needs the data set cifar10"):
        reproduce_frontier("small", tmp_path / "x", settings=taken, device="cpu", rows=rows)


def test_an_interrupted_table_goes_on_where_it_stopped(carried_out, monkeypatch):
    """A run whose offsets are missing is not trained again, but its offsets are fitted."""
    folder, rows, _ = carried_out
    name = json.loads((folder / "mini/frontier/frontier.json").read_text())["rows"][0]["runs"][0]
    file = folder / "mini/runs" / name / "offsets.json"
    before = file.read_bytes()
    file.unlink()
    monkeypatch.setattr(runner, "train", lambda *_, **__: None)
    reproduce_frontier("mini", folder / "mini", quiet=True, device="cpu", rows=rows)
    assert json.loads(file.read_text())["offsets"] == json.loads(before)["offsets"]


def test_a_missing_autoattack_is_found_before_hours_of_training(tmp_path, monkeypatch):
    rows = tiny_frontier.write(tmp_path / "rows.toml", tiny_frontier.ERM)
    rows.write_text(
        rows.read_text()
        .replace("search_seed = 9", 'search_seed = 9\nautoattack = ["erm"]')
        .replace("eta_times = { cfol = 0.5 }", "")
    )
    monkeypatch.setattr(runner, "carry_out", lambda *_: pytest.fail("trained"))
    monkeypatch.setattr("cfol_fast.recipes.evaluating.has_autoattack", lambda: False)
    with pytest.raises(InputError, match="frontier needs AutoAttack: pip install pyautoattack"):
        reproduce_frontier("mini", tmp_path / "mini", device="cpu", rows=rows)


def folder_of_images(top):
    """A copy of CIFAR-10 as a reader may have it: a folder of images, train/<class>/ and test/<class>/."""
    noise = np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 3)):
        for c in range(10):
            folder = top / part / f"class {c}"
            folder.mkdir(parents=True)
            for i in range(count):
                Image.fromarray(noise.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    return top


def test_the_small_scale_takes_settings_and_rival_from_the_mini_scale_and_any_copy_of_the_data(
    carried_out, tmp_path, monkeypatch
):
    rows = tiny_frontier.write(
        tmp_path / "rows.toml", tiny_frontier.ERM, tiny_frontier.CFOL, tiny_frontier.LCVAR
    )
    rows.write_text(rows.read_text().replace("search_seed = 9", 'search_seed = 9\nautoattack = ["erm"]'))
    mini = json.loads((carried_out[0] / "mini/frontier/frontier.json").read_text())
    mini["search"].append(
        {"row": "lcvar", "settings": {"alpha": 0.5}, "chosen": True, "holdout": mini["search"][0]["holdout"]}
    )
    (tmp_path / "mini.json").write_text(json.dumps(mini))
    attacks = []

    def attacked(file, model, bundle, config, attack, device):
        attacks.append((config.method, attack["kind"], attack["images_per_class"]))
        file.write_text(json.dumps({kind: fake_frontier.figures([30] * 10) for kind in ("clean", "robust")}))

    monkeypatch.setattr("cfol_fast.recipes.evaluating._write", attacked)
    folder = reproduce_frontier(
        "small",
        tmp_path / "small",
        folder_of_images(tmp_path / "images"),
        settings=tmp_path / "mini.json",
        quiet=True,
        device="cpu",
        rows=rows,
    )
    made = json.loads((folder / "frontier.json").read_text())
    assert (made["dataset"], made["rival"]) == ("folder", "lcvar")
    assert [item["name"] for item in made["rivals"]] == ["lcvar"]
    assert {row["name"]: row["seeds"] for row in made["rows"]} == {
        "erm": [0, 1],
        "cfol": [0, 1],
        "lcvar": [0, 1],
    }
    config = json.loads((tmp_path / "small/runs" / made["rows"][1]["runs"][0] / "config.json").read_text())
    chosen = next(
        item["settings"]["eta"] for item in mini["search"] if item["row"] == "cfol" and item["chosen"]
    )
    assert config["params"]["eta"] == pytest.approx(0.5 * chosen)
    assert len(made["declared"]) == 3
    assert attacks == [("erm", "autoattack", 100), ("lcvar", "autoattack", 100)]

    # The images lie elsewhere, on another machine: the runs are the same ones, and what is kept of them tells
    # no path.
    keep_finished(
        "small",
        tmp_path / "kept.tar.xz",
        tmp_path / "small",
        tmp_path / "images",
        settings=tmp_path / "mini.json",
        rows=rows,
    )
    kept = kept_runs.read(tmp_path / "kept.tar.xz")
    assert kept.keys() == {run for row in made["rows"] for run in row["runs"]}
    for files in kept.values():
        assert not [name for name, held in files.items() if str(tmp_path).encode() in held]
    (tmp_path / "images").rename(tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "small")
    monkeypatch.setattr(runner, "carry_out", lambda *_: pytest.fail("trained"))
    folder = reproduce_frontier(
        "small",
        tmp_path / "again",
        tmp_path / "elsewhere",
        settings=tmp_path / "mini.json",
        quiet=True,
        device="cpu",
        rows=rows,
        take=tmp_path / "kept.tar.xz",
    )
    assert json.loads((folder / "frontier.json").read_text())["rows"] == made["rows"]
    # Other images are other runs.
    next((tmp_path / "elsewhere/test").rglob("2.png")).unlink()
    plan._content_of.cache_clear()
    place = plan.Place(plan.read(rows), plan.read(rows).scales["small"], tmp_path / "elsewhere", "cpu")
    assert place.run(place.table.row("erm"), {}, 0).name not in kept
