"""Reading TOML on every supported Python (the standard library has a reader from 3.11 on)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from cfol_fast.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; a missing or broken file is named."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no file {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from None
