"""How fast, against what, and how close to the limit: one file a question. `python -m benchmarks` asks them all."""
