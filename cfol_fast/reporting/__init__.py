"""Reports about runs, made from their files alone: a page, pictures, tables, text for terminals, TensorBoard events.

runs.py reads and checks the files, groups.py joins seeds and chooses the baseline; figures.py and tables.py say what is shown,
svg.py, png.py, page.py and terminal.py how.
"""

from cfol_fast.reporting.report import picture, read_comparisons, write_report
from cfol_fast.reporting.tables import Cell, Row, Table
from cfol_fast.reporting.terminal import comparison_table, terminal_bars

__all__ = [
    "Cell",
    "Row",
    "Table",
    "comparison_table",
    "picture",
    "read_comparisons",
    "terminal_bars",
    "write_report",
]
