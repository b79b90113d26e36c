"""What a better worst class costs, from confusion matrices written out."""

from cfol_fast.reporting.tables import price_cells
from cfol_fast.reporting.wording import price_sentence
from cfol_fast.runs.accuracy import Accuracy
from cfol_fast.runs.price import price

# Of the first class nothing is recognised, and no image is taken for it.
BLIND = Accuracy.from_confusion(["a", "b"], [[0, 10], [0, 10]])
SEEING = Accuracy.from_confusion(["a", "b"], [[6, 4], [2, 8]])


def test_a_class_that_no_image_is_taken_for_has_no_precision():
    found = price([BLIND], [SEEING])
    assert found["favoured"] == "a"
    assert found["precision"] == [None, 0.75]
    assert found["false_alarms"] == [0, 2]


def test_a_precision_that_is_not_defined_is_a_dash():
    found = price([BLIND], [SEEING])
    assert "precision – → 75.0 % (false alarms: 0 → 2)" in price_sentence(found)
    assert "– → 75.0" in [cell.text for cell in price_cells(found)]


def test_a_precision_is_the_mean_of_the_seeds_that_have_one():
    assert price([BLIND, SEEING], [SEEING, SEEING])["precision"] == [0.75, 0.75]
