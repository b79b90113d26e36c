"""The fair table (`cfol-fast reproduce frontier`): every method on one network and schedule, with its budget.

`rows.toml` says what is compared, `plan` makes runs of it, `carrying_out` trains and tests them, `facts`
computes every number from the runs' files, and `sentences`, `text`, `drawing` and `headline` show the facts
and nothing else.
"""

from cfol_fast.recipes.frontier.carrying_out import NAME, keep_finished, reproduce_frontier

__all__ = ["NAME", "keep_finished", "reproduce_frontier"]
