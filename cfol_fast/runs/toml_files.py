"""Reading TOML files: configurations, recipes and the paper's numbers."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from cfol_fast.errors import InputError


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; a missing or broken file is named."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no file {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from None
