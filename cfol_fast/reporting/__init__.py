"""Reports about runs, made from their files alone: a page, pictures, tables, text for terminals.

groups.py joins the seeds and chooses the baseline. charts.py and tables.py say what is shown; chart.py and
table.py are what they fill; svg.py, picture_files.py, page.py and terminal.py say how it looks, with the
colours of theme.py and the words of wording.py.
"""

from cfol_fast.reporting.report import picture, read_comparisons, write_report
from cfol_fast.reporting.table import Cell, Row, Table
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
