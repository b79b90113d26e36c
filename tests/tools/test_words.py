"""The checker of words finds an expression wherever a reader meets it, and nowhere else."""

from __future__ import annotations

from tools import words

MODULE = '''"""The rival of a docstring is for maintainers."""
NAME = "rival"


def message(label):
    """A rival again."""
    # rivals in a comment
    return (
        f"{label} beats"
        " its rival"
    )
'''


def test_an_expression_is_found_over_the_end_of_a_line_and_in_capitals():
    assert words.in_text("plain\nOf it\nalone, and a Rival\n") == [
        (2, "Of it alone", "unadjusted"),
        (3, "Rival", "competitor, or baseline"),
    ]


def test_parts_of_longer_words_are_no_expression():
    assert words.in_text("an arrival, a trivial trace, no-rival-here and accumulated") == []


def test_in_a_module_only_messages_are_read():
    (found,) = words.in_strings(MODULE)
    assert found[1:] == ("rival", "competitor, or baseline")
    assert 'f"{label} beats"' in MODULE.splitlines()[found[0] - 1]


def test_findings_name_the_page_and_leave_the_old_releases_and_the_recipes_out(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "cfol_fast" / "recipes").mkdir(parents=True)
    (tmp_path / "CHANGELOG.md").write_text("## 0.2.0\nthe fair table\n## 0.1.0\nthe fair table\n")
    (tmp_path / "docs" / "page.md").write_text("fine\n")
    for place in ("cfol_fast/recipes/a.py", "cfol_fast/b.py"):
        (tmp_path / place).write_text('TEXT = "the best rival"\n')
    assert list(words.findings(tmp_path)) == [
        "CHANGELOG.md:2: 'fair table': write 'comparison of all methods'",
        "cfol_fast/b.py:1: 'rival': write 'competitor, or baseline'",
    ]
