"""The paper's numbers are data; what the text says about them, and what accuracies can be at all, must agree
with them.
"""

from __future__ import annotations

import pytest

from cfol_fast.recipes import paper

TABLES = {name: table for name, table in paper.tables().items() if "blocks" in table}
CELLS = [
    (name, block, column)
    for name, table in TABLES.items()
    for block, columns in table["blocks"].items()
    for column in columns
]
# Test images per class; where they are equal, an accuracy is a multiple of one image. Means over seeds are
# finer.
IMAGES = {"cifar10": 1000, "cifar100": 100, "stl10": 800, "tiny-imagenet": 50, "eps-8": 1000, "eps-12": 1000}
CLASSES = {"cifar100": 100, "tiny-imagenet": 200}
OVER_SEEDS = ("gamma", "seeds")


def value(name: str, block: str, column: str, metric: str) -> float:
    found = paper.number([name], block, column, metric)
    assert found is not None
    return found.value


def percent(name: str, block: str, column: str, metric: str) -> float:
    return 100 * value(name, block, column, metric)


def test_every_result_table_of_the_paper_is_there_with_all_its_numbers() -> None:
    numbers = sum(
        len(statistics)
        for table in TABLES.values()
        for columns in table["blocks"].values()
        for cell in columns.values()
        for statistics in cell.values()
    )
    assert len(TABLES) == 15
    # The count of four-digit numbers in the tables of the paper's LaTeX source.
    assert numbers == 358


@pytest.mark.parametrize(("name", "block", "column"), CELLS, ids=" ".join)
def test_accuracies_are_ordered_and_attacks_hurt(name: str, block: str, column: str) -> None:
    cell = TABLES[name]["blocks"][block][column]
    for kind in ("clean", "robust"):
        found = [cell[kind][key] for key in ("average", "tail", "worst") if key in cell.get(kind, {})]
        assert found == sorted(found, reverse=True)
        assert all(0 <= number <= 1 for number in found)
    if "clean" in cell:
        assert all(cell["clean"][key] > cell["robust"][key] for key in cell["robust"])


@pytest.mark.parametrize(("name", "block", "column"), CELLS, ids=" ".join)
def test_accuracies_are_whole_numbers_of_images(name: str, block: str, column: str) -> None:
    if block not in IMAGES or name in OVER_SEEDS:
        return
    for kind, statistics in TABLES[name]["blocks"][block][column].items():
        images, classes = IMAGES[block], CLASSES.get(block, 10)
        units = {"worst": images, "tail": images * classes // 5, "average": images * classes}
        for key, number in statistics.items():
            off = abs(number * units[key] - round(number * units[key])) / units[key]
            # Printed with four digits.
            assert off <= 5.1e-5, (kind, key, number)


def test_the_abstract_and_the_introduction_agree_with_table_1() -> None:
    worst = paper.text("cifar10", "abstract_worst_class_percent")
    average = paper.text("cifar10", "introduction_average_percent")
    assert int(percent("cifar10", "cifar10", "erm", "robust.worst")) == worst["erm"] == 23
    assert round(percent("cifar10", "cifar10", "cfol", "robust.worst")) == worst["cfol"] == 32
    assert round(percent("cifar10", "cifar10", "erm", "robust.average")) == average["erm"] == 51


@pytest.mark.parametrize(
    ("name", "block", "column", "metric", "said"),
    [
        ("cifar10", "cifar10", "erm", "robust.tail", 24.0),
        ("cifar10", "cifar10", "lcvar", "robust.tail", 26.75),
        ("cifar10", "cifar10", "cfol", "robust.tail", 33.0),
        ("cifar100-stl10", "stl10", "erm", "robust.worst", 5.9),
        ("cifar100-stl10", "stl10", "erm", "robust.average", 36.9),
        ("cifar100-stl10", "stl10", "cfol", "robust.worst", 12.3),
        ("cifar100-stl10", "stl10", "cfol", "robust.average", 37.6),
        ("cifar100-stl10", "cifar100", "cfol", "robust.worst", 4.0),
        ("cifar100-stl10", "cifar100", "fol", "robust.worst", 0.0),
        ("cifar100-stl10", "cifar100", "erm", "robust.average", 28.2),
        ("autoattack", "cifar10", "erm", "robust.worst", 12.6),
        ("autoattack", "cifar10", "cfol", "robust.worst", 20.7),
        ("radius", "eps-12", "erm", "robust.worst", 9.3),
        ("radius", "eps-12", "cfol", "robust.worst", 17.0),
        ("larger-models", "cifar10", "erm", "robust.tail", 30.65),
        ("larger-models", "cifar10", "cfol", "robust.tail", 35.75),
        ("gamma", "cifar10", "gamma-07", "robust.worst", 29.65),
        ("gamma", "cifar10", "gamma-09", "robust.average", 51.1),
    ],
)
def test_the_text_quotes_the_tables(name: str, block: str, column: str, metric: str, said: float) -> None:
    assert percent(name, block, column, metric) == pytest.approx(said, abs=0.051)


SIX = tuple(f"{kind}.{key}" for kind in ("clean", "robust") for key in ("average", "tail", "worst"))


@pytest.mark.parametrize(
    ("first", "second", "metrics"),
    [
        (("radius", "eps-8", "erm"), ("cifar10", "cifar10", "erm"), SIX),
        (("radius", "eps-8", "cfol"), ("cifar10", "cifar10", "cfol"), SIX),
        (("gamma", "cifar10", "gamma-05"), ("seeds", "cifar10", "cfol"), SIX[3:]),
        (("autoattack", "cifar10", "erm"), ("cifar10", "cifar10", "erm"), SIX[:3]),
        (("autoattack", "imagenette", "erm"), ("imagenette", "imagenette", "erm"), SIX[:3]),
        (("autoattack", "imagenette", "cfol"), ("imagenette", "imagenette", "cfol"), SIX[:3]),
        (
            ("exploration", "cifar10", "cfol-2e-6"),
            ("cifar10", "cifar10", "cfol"),
            (SIX[0], SIX[2], SIX[3], SIX[5]),
        ),
        (
            ("exploration", "cifar10", "lcvar-08"),
            ("cifar10", "cifar10", "lcvar"),
            (SIX[0], SIX[2], SIX[3], SIX[5]),
        ),
        (
            ("exploration", "cifar10", "fol-1e-7"),
            ("cifar10", "cifar10", "fol"),
            (SIX[0], SIX[2], SIX[3], SIX[5]),
        ),
        # AutoAttack's CFOL column is the run with eta 5e-6, not the one of the main table.
        (("autoattack", "cifar10", "cfol"), ("exploration", "cifar10", "cfol-5e-6"), (SIX[0], SIX[2])),
    ],
)
def test_runs_that_appear_in_two_tables_have_the_same_numbers(
    first: tuple[str, str, str], second: tuple[str, str, str], metrics: tuple[str, ...]
) -> None:
    for metric in metrics:
        assert value(*first, metric) == value(*second, metric)


def test_relative_gains_of_the_text() -> None:
    tail = value("cifar10", "cifar10", "cfol", "robust.tail") / value(
        "cifar10", "cifar10", "erm", "robust.tail"
    )
    attacked = value("autoattack", "cifar10", "cfol", "robust.worst") / value(
        "autoattack", "cifar10", "erm", "robust.worst"
    )
    # "approximately a 40 % increase", "by more than 60 %"
    assert 1.35 < tail < 1.45
    assert attacked > 1.6


def test_deviations_stand_where_the_paper_prints_them() -> None:
    with_deviation = {name for name, table in TABLES.items() if "_deviation" in str(table["blocks"])}
    assert with_deviation == {"gamma", "seeds"}
    assert paper.number(["seeds"], "cifar10", "cfol", "robust.worst") == paper.Number(0.3083, 0.0515)


def test_a_number_the_paper_does_not_print_is_none() -> None:
    assert paper.number(["exploration"], "cifar10", "cfol-2e-6", "robust.tail") is None
    assert paper.number(["nothing"], "cifar10", "erm", "robust.tail") is None
    assert paper.number(["cifar10"], "mars", "erm", "robust.tail") is None
