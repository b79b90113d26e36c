"""The paper's tables and figures as recipes: `cfol-fast reproduce NAME` trains what is missing and writes the
table.

A recipe is a file in `files/`, the paper's numbers are `paper.toml`, and what changes at the mini scale is
`scales.toml`.
"""

from cfol_fast.recipes.planning import Job, Plan, plan
from cfol_fast.recipes.recipe import Recipe, list_recipes, load_recipe
from cfol_fast.recipes.reproduction import reproduce

__all__ = ["Job", "Plan", "Recipe", "list_recipes", "load_recipe", "plan", "reproduce"]
