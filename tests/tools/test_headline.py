"""The README's results say what the facts say: verdicts, offsets, few images; nothing that is not in them."""

from __future__ import annotations

import pytest

from cfol_fast.errors import InputError
from tests.recipes import fake_frontier
from tools import headline

OTHERS = {"erm": 70, "cfol": 65, "lcvar": 60}
WORST = {"erm": [8, 12, 5, 10, 9], "cfol": [40, 43, 38, 41, 42], "lcvar": [9, 11, 6, 10, 30]}


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    return fake_frontier.make(tmp_path_factory.mktemp("facts"), WORST, OTHERS, {"lcvar": 0.2})


def test_the_table_has_erm_cfol_and_the_competitor_with_worst_class_and_average(facts):
    lines = headline.table([facts]).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| ERM-AT", "| CFOL-AT", "| LCVaR-AT"]
    robust = headline.row_of(facts, "cfol")["rules"]["best-average"]["robust"]
    worst, average = (100 * robust[name]["mean"] for name in ("worst", "average"))
    assert f"| CFOL-AT | {worst:.1f} / {average:.1f} |" in lines[3]


def test_every_declared_comparison_with_cfol_stands_with_its_verdict(facts):
    lines = headline.declared(facts)
    mine = [item for item in facts["declared"] if "cfol" in (item["better"], item["than"])]
    assert len(lines) == len(mine)
    for line, item in zip(lines, mine, strict=True):
        assert line.endswith(f"Holm-adjusted p = {item['adjusted']:.2g}): {item['verdict']}.")


def test_one_seed_has_no_interval(tmp_path):
    alone = fake_frontier.make(tmp_path, {"erm": [5], "cfol": [60]}, {"erm": 70, "cfol": 65})
    assert headline.declared(alone)[0].endswith("(one seed): not shown.")


@pytest.mark.parametrize(
    ("gain", "words"), [(0.0, "not different from it"), (0.2, "above it"), (-0.2, "below")]
)
def test_a_gain_after_offsets_is_stated_only_where_its_interval_leaves_0_out(facts, gain, words):
    changed = {**facts, "rows": [dict(row) for row in facts["rows"]]}
    values = [0.3, 0.31, 0.29, 0.3, 0.32]
    for row in changed["rows"]:
        more = [v + gain * (row["name"] == "cfol") for v in values]
        more[0] += 0.01 * (row["name"] == "cfol")
        row["rules"] = {**row["rules"], "offsets": {"robust": {"worst": {"values": more, "mean": 0.3}}}}
    assert words in headline.gain_after_offsets([changed])


def test_real_images_come_before_the_embedded_ones(facts):
    real = {**facts, "dataset": "folder", "setting": f"photographs, {facts['model']}, 3 epochs"}
    head = headline.markdown([facts, real]).splitlines()[0]
    assert head.index("photographs") < head.index("Fashion-MNIST")


def test_the_block_goes_between_its_marks():
    page = f"before\n{headline.BEGIN}\nold\n{headline.END}\nafter"
    assert headline.put_into(page, "new\n", "x") == f"before\n{headline.BEGIN}\nnew\n{headline.END}\nafter"
    with pytest.raises(InputError, match="README"):
        headline.put_into("nothing", "new", "README.md")
