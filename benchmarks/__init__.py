"""How fast, against what, and how close to the limit: one file per question.

`python -m benchmarks` runs them all.
"""
