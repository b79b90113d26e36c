"""The metrics need torchmetrics, which this environment has not: how they work is tested in
tests/integrations.
"""

import sys

import pytest

import cfol_fast as cf


def test_without_torchmetrics_the_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    monkeypatch.delitem(sys.modules, "cfol_fast.evaluation.metrics", raising=False)
    with pytest.raises(ImportError, match="pip install torchmetrics"):
        _ = cf.WorstClassAccuracy


def test_what_needs_an_extra_is_listed_but_not_imported_with_everything():
    assert {"WorstClassAccuracy", "TailAccuracy"} <= set(dir(cf))
    assert not {"WorstClassAccuracy", "TailAccuracy"} & set(cf.__all__)
