"""A library says nothing on its own: printing is for the command line, under it there are results, warnings and progress."""

import ast
from pathlib import Path

import pytest

import cfol_fast

PACKAGE = Path(cfol_fast.__file__).parent
# The command line and its progress lines; a script that is run by hand; the worker of a reproduction, whose stderr is its log.
MAY_PRINT = ("commands/", "progress.py", "data/embedded/make.py", "recipes/runner.py")
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def prints(source: str) -> list[int]:
    """The lines on which `print` is called."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


@pytest.mark.parametrize("module", [name for name in MODULES if not name.startswith(MAY_PRINT)])
def test_no_module_of_the_library_prints(module):
    assert not prints((PACKAGE / module).read_text())


def test_a_call_of_print_is_found():
    assert prints("x = 1\nif x:\n    print(x)\n") == [3]
