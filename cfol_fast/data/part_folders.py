"""Which folder of a data set is which part: train/, test/, and val/ or validation/."""

from __future__ import annotations

from pathlib import Path

from cfol_fast.errors import InputError

TRAIN, TEST = "train", "test"
# Of these the first that is there; any other is not used.
VALIDATION = ("val", "validation")
NAMES = (TRAIN, TEST, *VALIDATION)
# `--holdout val`: the folder of `VALIDATION` beside test/.
VAL = "val"


def _validation(root: Path) -> str | None:
    return next((name for name in VALIDATION if (root / name).is_dir()), None)


def test_folder(root: Path) -> str | None:
    """test/, or val/ where it is alone."""
    return TEST if (root / TEST).is_dir() else _validation(root)


def holdout_folder(root: Path) -> str | None:
    """val/ where there is test/ too."""
    return _validation(root) if (root / TEST).is_dir() else None


def chosen_holdout(root: Path, holdout: str) -> tuple[Path, str]:
    """(the folder above it, its name) of a hold-out that the user brings. holdout: `VAL`, or its path."""
    if holdout != VAL:
        folder = Path(holdout).expanduser().resolve()
        if not folder.is_dir():
            raise InputError(f"--holdout {holdout} is not a folder. Give one with a folder for each class")
        for part in (TRAIN, test_folder(root)):
            if part is not None and (root / part).resolve() == folder:
                raise InputError(
                    f"--holdout {holdout} is {part}/ of the data set itself. Give another folder, or a share"
                    " of the training images such as 0.2"
                )
        return folder.parent, folder.name
    name = holdout_folder(root)
    if name is not None:
        return root.resolve(), name
    alone = _validation(root)
    raise InputError(
        f"--holdout val: {root} has no {' and no '.join(f'{name}/' for name in VALIDATION)}. Give a share of"
        " the training images such as 0.2"
        if alone is None
        else f"--holdout val: {alone}/ is the test part of {root}, as there is no test/. Give a share of the"
        " training images such as 0.2, or add test/"
    )
