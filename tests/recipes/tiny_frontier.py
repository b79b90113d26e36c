"""A fair table small enough to be carried out in a test: few embedded images, a quarter of the demo's
network, one epoch.
"""

from __future__ import annotations

from pathlib import Path

SHORT = (
    "epochs = 1, steps_per_epoch = 2, batch_size = 16, "
    '"attack.steps" = 1, "validation.steps" = 1, "test.steps" = 2'
)
ROWS = """
title = "A tiny table"
search_seed = 9
run = { "data.name" = "fashion-mini", "model.name" = "demo-cnn@0.25", SHORT, "ema.decay" = 0.5 }

[scales.mini]
title = "a few embedded images"
seeds = [0, 1]

[scales.small]
title = "a few images of a folder"
run = { "data.name" = "cifar10", "data.images" = 100 }
seeds = [0, 1]
fewer_seeds = [0]
more_rows = 1
settings_from = "mini"
eta_times = { cfol = 0.5 }

[scales.paper]
title = "for a GPU"
run = { "data.name" = "cifar10" }
seeds = [0]
""".replace("SHORT", SHORT)

ROW = """
[[rows]]
name = "{name}"
base = "{base}"
rival = {rival}
grid = {grid}
"""
ERM = ("erm", "AT", "false", "[{}]")
CFOL = ("cfol", "AT", "false", "[{ eta = 1e-4 }, { eta = 2e-4 }]")
LHCVAR = ("lhcvar", "AT", "true", "[{ alpha_by_erm = [0.2, 0.8] }]")
LCVAR = ("lcvar", "AT", "true", "[{ alpha = 0.5 }]")
TRADES = ("trades", "TRADES", "false", "[{}]")


def write(path: Path, *rows: tuple[str, str, str, str]) -> Path:
    parts = [ROW.format(name=n, base=b, rival=r, grid=g) for n, b, r, g in rows]
    path.write_text(ROWS + "".join(parts))
    return path
