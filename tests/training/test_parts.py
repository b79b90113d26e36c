"""The parts of a run are complete when they are made: nobody assigns into them from outside."""

from __future__ import annotations

import ast
from pathlib import Path

import cfol_fast

ROOM = Path(cfol_fast.__file__).parent / "training"
# Where the run stands: the trainer counts there, and nobody keeps a copy.
COUNTED = {"self.position.step", "self.position.seconds"}


def assigned(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Assign():
            targets = node.targets
        case ast.AugAssign() | ast.AnnAssign():
            targets = [node.target]
        case _:
            targets = []
    return [one for each in targets for one in getattr(each, "elts", [each])]


def test_no_module_of_the_room_assigns_an_attribute_of_anything_but_itself() -> None:
    files = sorted(ROOM.glob("*.py"))
    assert len(files) > 20
    found = [
        f"{file.name}:{target.lineno} {ast.unparse(target)}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        for target in assigned(node)
        if isinstance(target, ast.Attribute)
        and not (isinstance(target.value, ast.Name) and target.value.id == "self")
        and ast.unparse(target) not in COUNTED
    ]
    assert found == []


def test_the_training_loop_fits_on_a_screen() -> None:
    """What a reader sees of `Trainer` from the class to its end, without packing: at most 100 lines, none of
    whose statements takes more than five.
    """
    tree = ast.parse((ROOM / "trainer.py").read_text())
    (trainer,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    methods = [node for node in trainer.body if isinstance(node, ast.FunctionDef)]
    assert trainer.end_lineno is not None
    assert trainer.end_lineno - trainer.lineno < 100
    assert [node.name for node in methods if (node.end_lineno or 0) - node.lineno > 25] == []
