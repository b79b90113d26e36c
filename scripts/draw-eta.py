"""Draws docs/eta.svg: p over three runs whose step sizes are too small, right and too large.

for eta in 4e-6 auto 2e-2; do cfol-fast train cfol --set eta=$eta --out runs/eta-$eta; done
python scripts/draw-eta.py runs/eta-4e-6 runs/eta-auto runs/eta-2e-2 docs/eta.svg
"""

import sys
from pathlib import Path

from cfol_fast.reporting import picture_files
from cfol_fast.reporting.chart import Figure, LineChart, Rule, on_one_scale
from cfol_fast.reporting.training_charts import lines_of_classes
from cfol_fast.runs.records import load_run

*folders, out = sys.argv[1:]
charts = []
for name, folder in zip(("too slow", "right", "too fast"), folders, strict=True):
    run = load_run(Path(folder))
    epochs = [float(row["epoch"]) for row in run.train]
    courses = {label: (epochs, [row["p"][i] for row in run.train]) for i, label in enumerate(run.classes)}
    lines = lines_of_classes(courses, "indigo", lowest=False)
    title = f"{name}: eta {run.config['params']['eta']:.3g}"
    charts.append(LineChart(title, lines, "epoch", [Rule(1 / len(courses), "uniform", "reference")]))
picture_files.write(Figure("eta", "p of every class, in percent", "", on_one_scale(charts)), Path(out))
