"""Where a package is missing, what needs it says which one to install."""

from __future__ import annotations

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "missing", "remedy"),
    [
        ("integrations.lightning", ("lightning.pytorch", "pytorch_lightning"), "pip install lightning"),
        ("integrations.hugging_face", ("transformers",), "pip install transformers accelerate"),
        ("evaluation.metrics", ("torchmetrics",), "pip install torchmetrics"),
    ],
)
def test_the_package_to_install_is_named(
    module: str, missing: tuple[str, ...], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"cfol_fast.{module}", raising=False)
    with pytest.raises(ImportError, match=remedy):
        importlib.import_module(f"cfol_fast.{module}")
