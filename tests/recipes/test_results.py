"""What is kept of a reproduction, results/README.md from it, and the results that are committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cfol_fast.errors import InputError
from cfol_fast.recipes import kept_runs, list_recipes, load_recipe, plan
from cfol_fast.recipes.reproduction import write
from tests.recipes.fake_runs import write_all
from tools.collection import KEPT_RUNS, collect, distinct, read_frontiers, read_kept, readable_json
from tools.index import UNEXPLAINED, distinct_claims, text, write_index

RESULTS = Path(__file__).parents[2] / "results"
COMMITTED = read_kept(RESULTS)


def reproduced(out: Path, *names: str) -> Path:
    """A reproduction of made-up runs."""
    for name in names:
        item = plan(load_recipe(name), "mini")
        write_all(item, out)
        write(item, out, f"cfol-fast reproduce {name} --scale mini")
    return out


def kept(tmp_path: Path, *names: str) -> Path:
    collect(reproduced(tmp_path / "reproduction", *names), tmp_path / "results")
    return tmp_path / "results"


@pytest.mark.slow
def test_a_recipe_with_the_runs_of_another_is_kept_under_its_name(tmp_path: Path) -> None:
    folder = kept(tmp_path, "cifar10", "cifar100-stl10", "seeds", "gamma")
    tables = read_kept(folder)
    assert [table["recipe"] for table in tables] == ["cifar10", "gamma"]
    assert [other["recipe"] for other in tables[0]["also"]] == ["cifar100-stl10", "seeds"]
    assert sorted(path.name for path in (folder / "mini").iterdir()) == [
        "cifar10-robust.svg",
        "cifar10.json",
        "gamma.json",
    ]


@pytest.mark.slow
def test_another_checkpoint_of_the_same_runs_is_a_comparison_of_its_own(tmp_path: Path) -> None:
    tables = read_kept(kept(tmp_path, "cifar10", "early-stopping"))
    assert [table["recipe"] for table in tables] == ["cifar10", "early-stopping"]
    assert tables[0]["runs"].keys() == tables[1]["runs"].keys()


def test_a_small_table_finds_the_first_that_contains_it() -> None:
    small, middle, large = table_of("a", "1"), table_of("b", "1", "2"), table_of("c", "1", "3", "4")
    assert distinct([small, middle, large]) == [(middle, [small]), (large, [])]
    same = table_of("d", "1", "2")
    assert distinct([middle, small, same]) == [(middle, [small, same])]


def table_of(name: str, *runs: str, attack: dict[str, Any] | None = None) -> dict[str, Any]:
    blocks = [{"entries": [{"runs": list(runs), "attack": attack}]}]
    return {"recipe": name, "scale": "mini", "checkpoint": "last", "blocks": blocks}


def test_the_runs_own_test_is_no_comparison_beside_another_attack_on_the_same_runs() -> None:
    """Imagenette's mini form: the two runs of the recipe with AutoAttack, without AutoAttack."""
    plain, attacked = table_of("a", "1", "2"), table_of("b", "1", "2", attack={"kind": "autoattack"})
    assert distinct([plain, attacked]) == [(attacked, [plain])]
    other = table_of("c", "1", "2", attack={"kind": "pgd", "eps": 0.1})
    assert distinct([attacked, other]) == [(attacked, []), (other, [])]


def test_no_committed_comparison_is_within_another() -> None:
    assert [also for _, also in distinct(COMMITTED)] == [[]] * len(COMMITTED)


def test_the_counts_of_a_run_give_its_accuracies(tmp_path: Path) -> None:
    (table,) = read_kept(kept(tmp_path, "vgg16"))
    entry = table["blocks"][0]["entries"][0]
    made = table["runs"][entry["runs"][0]]["checkpoints"]["best-average"]
    assert made["images"] == [300] * 10
    assert min(made["robust"]) / 300 == pytest.approx(entry["values"]["robust.worst"]["mean"])


def test_readable_json_says_the_same_in_few_lines() -> None:
    value = {"a": list(range(10)), "b": {"long": "x" * 30, "list": [{"c": None}, "ä" * 20]}}
    found = readable_json(value, width=40)
    assert json.loads(found) == value
    assert '"a": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]' in found


def test_the_page_comes_from_the_kept_json_alone(tmp_path: Path) -> None:
    folder = kept(tmp_path, "seeds")
    before = text(folder)
    file = folder / "mini" / "seeds.json"
    table = json.loads(file.read_text(encoding="utf-8"))
    table["blocks"][0]["entries"][0]["values"]["robust.worst"]["mean"] = 0.9876
    file.write_text(json.dumps(table), encoding="utf-8")
    assert "98.76" in text(folder)
    assert "98.76" not in before


def test_the_page_explains_orderings_that_are_not_shown(tmp_path: Path) -> None:
    folder = kept(tmp_path, "seeds")
    assert f"ERM-AT above CFOL-AT, robust average: {UNEXPLAINED}" in text(folder)
    (folder / "notes.toml").write_text(
        'introduction = "Made on a laptop."\n["mini/seeds"]\n"erm > cfol: robust.average" = "because the runs'
        ' are made up"\n',
        encoding="utf-8",
    )
    page = write_index(folder).read_text(encoding="utf-8")
    assert "Made on a laptop." in page
    assert "robust average: because the runs are made up" in page
    assert UNEXPLAINED not in page


def test_the_page_names_recipes_that_were_not_carried_out(tmp_path: Path) -> None:
    page = text(kept(tmp_path, "cifar10", "seeds"))
    line = next(line for line in page.splitlines() if line.startswith("Not carried out yet"))
    assert "gamma" in line
    assert "seeds" not in line


@pytest.mark.slow
def test_a_recipe_of_the_same_runs_is_no_evidence_and_needs_its_data_set(tmp_path: Path) -> None:
    page = text(kept(tmp_path, "cifar10", "seeds"))
    listed = page.partition("## Needs its data set")[2]
    assert "`cfol-fast reproduce seeds --data DIR`" in listed
    assert "1 of the paper's tables and figures" in page


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=str(tmp_path)):
        write_index(tmp_path)
    with pytest.raises(InputError, match=str(tmp_path)):
        collect(tmp_path, tmp_path / "results")


def test_the_committed_page_is_up_to_date() -> None:
    assert (RESULTS / "README.md").read_text(encoding="utf-8") == text(RESULTS), (
        "run: python -m tools.index results"
    )


def test_the_committed_results_stand_for_every_recipe() -> None:
    names = [recipe["recipe"] for table in COMMITTED for recipe in (table, *table["also"])]
    assert sorted(names) == sorted(list_recipes())
    assert len(COMMITTED) >= 10


def test_the_committed_results_are_valid_and_explain_what_they_do_not_show() -> None:
    assert all((table["valid"] or {}).get("ok") is not False for table in COMMITTED)
    assert UNEXPLAINED not in (RESULTS / "README.md").read_text(encoding="utf-8")


def test_every_committed_figure_is_there_and_no_other_file() -> None:
    expected = {
        f"mini/{name}" for table in COMMITTED for name in (f"{table['recipe']}.json", *table["figures"])
    }
    found = {path.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("*") if path.is_file()}
    for facts in read_frontiers(RESULTS):
        expected |= {
            f"{facts['scale']}/{name}" for name in ("frontier.json", "frontier.svg", "predictions.json.gz")
        }
    # The runs of a fair table that is not finished; once it is, they have done their part.
    for path in (RESULTS / facts["scale"] / KEPT_RUNS for facts in read_frontiers(RESULTS)):
        assert not path.exists(), f"the table is there: remove {path}"
    going_on = [path for path in RESULTS.glob(f"*/{KEPT_RUNS}") if kept_runs.read(path)]
    expected |= {path.relative_to(RESULTS).as_posix() for path in going_on}
    # tests/tools look at the last two.
    expected |= {"README.md", "notes.toml", "own-data.json", "history.json"}
    assert found == expected


@pytest.mark.slow
def test_an_unfinished_fair_table_says_how_it_goes_on(tmp_path: Path) -> None:
    folder = kept(tmp_path, "cifar10")
    assert KEPT_RUNS not in text(folder)
    kept_runs.write(folder / "mini" / KEPT_RUNS, {"a": {"config.json": b"{}", "result.json": b"{}"}})
    page = text(folder)
    assert f"`cfol-fast reproduce frontier --scale mini --take results/mini/{KEPT_RUNS} --parallel`" in page
    # CIFAR-10 is not inside the package.
    (folder / "small").mkdir()
    kept_runs.write(folder / "small" / KEPT_RUNS, {"a": {"config.json": b"{}", "result.json": b"{}"}})
    assert f"--scale small --data DIR --take results/small/{KEPT_RUNS} --parallel`" in text(folder)
    # What the others refer to comes first.
    assert page.index("## The fair table") < page.index("## The mini scale")


@pytest.mark.parametrize("table", COMMITTED, ids=[table["recipe"] for table in COMMITTED])
def test_the_committed_tables_are_what_the_committed_counts_say(table: dict[str, Any]) -> None:
    for block in table["blocks"]:
        for entry in block["entries"]:
            for kind in ("clean", "robust"):
                if f"{kind}.average" not in entry["values"] or not entry["runs"]:
                    continue
                counts = [counts_of(table, name, entry["attack"]) for name in entry["runs"]]
                averages = [sum(c[kind]) / sum(c["images"]) for c in counts]
                assert entry["values"][f"{kind}.average"]["values"] == pytest.approx(averages)
                worst = [min(r / n for r, n in zip(c[kind], c["images"], strict=True)) for c in counts]
                assert entry["values"][f"{kind}.worst"]["values"] == pytest.approx(worst)


def counts_of(table: dict[str, Any], name: str, attack: dict[str, Any] | None) -> dict[str, Any]:
    """The counts behind one run of a table: of its checkpoint, or of its evaluation with the table's own
    attack.
    """
    run = table["runs"][name]
    if attack is None:
        return dict(run["checkpoints"][table["checkpoint"]])
    (found,) = [made for made in run["evaluations"] if attack.items() <= made["attack"].items()]
    return dict(found)


def test_four_methods_are_compared_over_three_seeds_in_the_committed_results() -> None:
    (table,) = [table for table in COMMITTED if table["recipe"] == "cifar10"]
    assert [(entry["method"], entry["seeds"]) for entry in table["blocks"][0]["entries"]] == [
        (method, [0, 1, 2]) for method in ("erm", "cfol", "lcvar", "fol")
    ]


def test_the_same_comparison_beside_two_tables_of_the_paper_counts_once(tmp_path: Path) -> None:
    folder = kept(tmp_path, "cifar100-stl10")
    (table,) = read_kept(folder)
    half = len(table["claims"]) // 2
    page = text(folder)
    assert f"{half} distinct comparisons" in page
    shown = next(line for line in page.splitlines() if line.startswith("| [cifar100-stl10]"))
    assert f" of {half} |" in shown


def claim(
    better: str, than: str, seeds: int, metric: str = "robust.worst", attack: str | None = None
) -> dict[str, Any]:
    compared = [[[f"{name}-{seed}" for seed in range(seeds)], attack] for name in (better, than)]
    return {"metric": metric, "compared": compared, "ours": 0.1, "seeds": seeds, "verdict": "not shown"}


def test_a_comparison_of_some_of_anothers_runs_is_not_distinct() -> None:
    few, many = claim("cfol", "erm", 1), claim("cfol", "erm", 3)
    others = [
        claim("cfol", "erm", 1, "robust.tail"),
        claim("cfol", "fol", 1),
        claim("cfol", "erm", 1, attack="autoattack"),
    ]
    tables = [
        {"checkpoint": "best-average", "claims": [few]},
        {"checkpoint": "best-average", "claims": [many, *others]},
    ]
    assert distinct_claims(tables) == [many, *others]
    assert distinct_claims([{"checkpoint": "last", "claims": [few]}, tables[1]]) == [many, few, *others]
