"""Every program in docs/integrations.md runs as it stands there, and its table counts right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cfol_fast import data
from tests.examples.pairs import changed_lines
from tests.training import tiny

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
TEXT = PAGE.read_text()
# By the heading above each.
BLOCKS = dict(
    re.findall(r"^## ([^\n]*)\n(?:(?!^## ).)*?```python\n(.*?)```", TEXT, flags=re.DOTALL | re.MULTILINE)
)


@pytest.mark.parametrize("heading", BLOCKS)
def test_the_program_runs(heading: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "load", tiny.few_images())
    names: dict[str, object] = {}
    exec(compile(BLOCKS[heading], str(PAGE), "exec"), names)
    if "sampler" in names:
        p = names["sampler"].p  # type: ignore[attr-defined]
        assert float(p.max()) > 1 / 3


def test_no_program_is_left_out() -> None:
    assert len(BLOCKS) == TEXT.count("```python")


def test_the_table_counts_the_changed_lines() -> None:
    rows = re.findall(r"examples/(\w+\.py)\).*examples/(\w+\.py)\) \| (\d+) \|", TEXT)
    assert len(rows) == 3
    for before, after, count in rows:
        assert len(changed_lines(before, after)) == int(count), after
