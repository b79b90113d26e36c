"""Reading TOML files: configurations, recipes and the paper's numbers."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from cfol_fast.errors import InputError, one_line
from cfol_fast.runs.json_files import MOST_DEPTH, check_tree


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; a missing or broken file is named."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no file {path}") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder, not a TOML file") from None
    except RecursionError:
        raise InputError(f"{path}: nested more than {MOST_DEPTH} levels deep") from None
    # TOMLDecodeError and UnicodeDecodeError, and Python's limit on the digits of a whole number.
    except ValueError as error:
        raise InputError(f"{path} is not TOML: {one_line(error)}") from None
    check_tree(tables, str(path))
    return tables
