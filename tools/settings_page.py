"""Writes docs/configuration.md, the table of all settings of a run, from what their fields say.

python -m tools.settings_page
"""

from __future__ import annotations

from pathlib import Path

from cfol_fast import atomic
from cfol_fast.runs.config import TrainConfig, settings
from cfol_fast.runs.identity import NAMING
from cfol_fast.runs.spec import Parameters, Setting, groups_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
HEAD = """\
# Settings

Every setting of a run, with its place in `config.json`. Python, a TOML or JSON file (`--config FILE`), the
options of `cfol-fast train` and `--set KEY=VALUE` set the same values; the later of these wins.
`--print-config` shows the complete configuration. Numbers may be fractions such as `8/255`. A setting
without a default follows the data set or the method, or is unused: its meaning states which.

The name of a run that a recipe trains, and what `--resume` compares, are made from the settings that
change the result. Those with "no" in the column *named* only change where or how the run executes.

```python
import cfol_fast as cf

attack = {"steps": 1, "eps": "8/255"}
config = cf.TrainConfig(method="erm", attack=attack, out="runs/first")
# The step size of the attack and the radius of the test follow eps.
larger = config.replace(attack={"eps": "12/255"})
# A mapping comes from a file. Keywords take precedence over it.
cf.TrainConfig({"attack.eps": 0.1, "epochs": 3}, seed=1)
```

A `TrainConfig` is complete and immutable. Values that depend on the data, such as the step size for
`eta=auto`, are written to `config.json` when a run begins.

`tools/settings_page.py` writes this page from `cfol_fast/runs/config.py` and
`cfol_fast/runs/setting_groups.py`.
"""
KINDS = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Parameters: "table",
    tuple[int, ...]: "list of whole numbers",
}
COLUMNS = ("setting", "type", "default", "may be", "option", "named", "meaning")


def page() -> str:
    found = settings()
    lines = [HEAD, *_table([setting for key, setting in found.items() if "." not in key])]
    for group, kind in groups_of(TrainConfig).items():
        lines += ["", f"## {group}", "", str(kind.__doc__), ""]
        lines += _table([setting for key, setting in found.items() if key.startswith(f"{group}.")])
    return "\n".join(lines) + "\n"


def _table(rows: list[Setting]) -> list[str]:
    return [_row(*COLUMNS), _row(*["---"] * len(COLUMNS)), *(_row(*_cells(setting)) for setting in rows)]


def _cells(setting: Setting) -> tuple[str, ...]:
    default = "" if setting.default in (None, {}) else _in_words(setting.default)
    named = "no" if setting.incidental else "always" if setting.key in NAMING else "yes"
    option = f"`{setting.option}`" if setting.option else ""
    return f"`{setting.key}`", KINDS[setting.kind], default, _allowed(setting), option, named, setting.help


def _in_words(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _allowed(setting: Setting) -> str:
    if setting.limits is None:
        return ", ".join(setting.words)
    return setting.limits.in_words()


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    atomic.write_text(PAGE, page())
