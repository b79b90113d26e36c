"""argparse, but a mistake is one line, which suggests the word that was meant and names the help to read."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from cfol_fast import processes

# Words of other programs, which no comparison of spelling leads to ours.
SYNONYMS = {
    "--arch": "--model",
    "--checkpoint-dir": "--out",
    "--data-dir": "--data",
    "--epsilon": "--eps",
    "--learning-rate": "--lr",
    "--name": "--out",
    "--network": "--model",
    "--num-epochs": "--epochs",
    "--output": "--out",
    "--output-dir": "--out",
    "--root": "--data",
    "diff": "compare",
    "evaluate": "eval",
    "fit": "train",
    "list": "methods",
    "ls": "methods",
    "predict": "eval",
    "run": "train",
    "test": "eval",
    "val": "eval",
    "validate": "eval",
}


class OneLineParser(argparse.ArgumentParser):
    """A parser without abbreviations; its subcommands' parsers are of this class too."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        # "argument --threads: must be ..." reads better without argparse's first word.
        message = message.removeprefix("argument ").replace(": must be", " must be", 1)
        # Every process of a job reads the same options.
        if processes.rank_and_size()[0] == 0:
            message = " ".join(f"{message} (see {self.prog} --help)".split())
            shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in message)
            print(f"{self.prog}: error: {shown}", file=sys.stderr)
        raise SystemExit(2)

    # The parser of a subcommand is called here by its parent, so it refuses what it does not know itself.
    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        words = list(sys.argv[1:] if args is None else args)
        self._refuse_unknown_options(words)
        found, left = super().parse_known_args(words, namespace)
        if left:
            if left[0].startswith("-"):
                self._refuse_option(left[0])
            self.error(f"unexpected argument {left[0]!r}")
        return found, left

    def _refuse_unknown_options(self, words: Sequence[str]) -> None:
        """Before argparse, which would complain first of what a misspelt option leaves missing."""
        for word in words:
            if word == "--" or (self._subparsers is not None and not word.startswith("-")):
                return
            if word.startswith("--") and " " not in word.partition("=")[0]:
                known = self._option_string_actions
                if word not in known and word.partition("=")[0] not in known:
                    self._refuse_option(word)

    def _refuse_option(self, word: str) -> NoReturn:
        name = word.partition("=")[0]
        known = [option for option in self._option_string_actions if "=" not in option]
        self.error(f"unknown option {name!r}{suggestion(name, known)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        meant = suggestion(str(value), known) or f"; known are {', '.join(known)}"
        if isinstance(action, argparse._SubParsersAction):
            raise argparse.ArgumentError(None, f"unknown {str(action.metavar).lower()} {value!r}{meant}")
        raise argparse.ArgumentError(action, f"must be one of {', '.join(known)}, got {value!r}")


def suggestion(word: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown word: the known one that it most likely stands for, or nothing."""
    names = {name.lstrip("-"): name for name in known}
    if (synonym := SYNONYMS.get(word)) in names.values():
        return f"; did you mean {synonym!r}?"
    # Their dashes would make all options alike.
    close = difflib.get_close_matches(word.lstrip("-").lower(), list(names), n=1)
    return f"; did you mean {names[close[0]]!r}?" if close else ""
