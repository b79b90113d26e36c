"""The site's page of commands, from the options that the program itself defines."""

from __future__ import annotations

import argparse
import importlib
import re
import textwrap
from collections.abc import Iterator

from cfol_fast.commands.main import COMMANDS
from cfol_fast.commands.one_line_parser import OneLineParser

HEAD = """\
# Commands

`cfol-fast COMMAND --help` prints the same text. This page is generated from the options of the program.

| command | purpose |
|---|---|
"""
STATUS = """
## Exit status

| status | meaning |
|---|---|
| 0 | the command succeeded |
| 1 | the command failed, or a `--require` or `--sanity` check of `eval` failed |
| 2 | an argument, a file or a setting is invalid; one line on stderr names it |
| 128 + n | signal n stopped the command after it saved its state (130 for Ctrl-C) |
"""
WIDTH = 84


def command_page() -> str:
    lines = [f"| [`{name}`](#{name}) | {plain(text)} |" for name, (_, text) in COMMANDS.items()]
    sections = [section(parser, title) for title, parser in parsers()]
    return HEAD + "\n".join(lines) + "\n" + STATUS + "\n" + "\n".join(sections)


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """(words after cfol-fast, its parser) of every command and every action of a command."""
    for name, (module_name, _) in COMMANDS.items():
        module = importlib.import_module(module_name)
        parser = OneLineParser(
            prog=f"cfol-fast {name}",
            description=module.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(parser)
        yield name, parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from ((f"{name} {inner}", found) for inner, found in action.choices.items())


def section(parser: argparse.ArgumentParser, title: str) -> str:
    usage = " ".join(parser.format_usage().split()).removeprefix("usage: ")
    lines = [f"## {title}", "", fenced("text", textwrap.wrap(usage, WIDTH, subsequent_indent="    ")), ""]
    lines += [description(parser.description or ""), ""]
    for group in parser._action_groups:
        rows = [row(parser, action) for action in group._group_actions if shown(action)]
        if rows:
            lines += [f"**{group.title}**", "", "| argument | meaning |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def shown(action: argparse.Action) -> bool:
    # The actions of a command have sections of their own.
    left_out = isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    return action.help is not argparse.SUPPRESS and not left_out


def row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = parser._get_formatter()
    name = formatter._format_action_invocation(action)
    text = formatter._expand_help(action) if action.help else ""
    return f"| `{name.replace('|', chr(92) + '|')}` | {plain(text)} |"


def plain(text: str) -> str:
    """Text of the help as a cell of a table: nothing in it is markup."""
    return re.sub(r"([|*_<>\[\]])", r"\\\1", " ".join(text.split()))


def description(text: str) -> str:
    """Paragraphs stay paragraphs, and indented lines are code."""
    made = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.split("\n")
        prose = [line for line in lines if not line.startswith("  ")]
        code = [line.strip() for line in lines if line.startswith("  ")]
        if prose:
            made.append(plain(" ".join(prose)))
        if code:
            made.append(fenced("text", [part for line in code for part in example(line)]))
    return "\n\n".join(made)


def example(line: str) -> list[str]:
    """A line of examples: the command, and below it what it does, if both do not fit on a line."""
    if len(line) <= WIDTH:
        return [line]
    command, _, note = line.partition("   ")
    wrapped = textwrap.wrap(command, WIDTH - 2, subsequent_indent="    ", break_on_hyphens=False)
    parts = [f"{part} \\" for part in wrapped[:-1]] + wrapped[-1:]
    return parts + textwrap.wrap(note.strip(), WIDTH, initial_indent="    ", subsequent_indent="    ")


def fenced(language: str, lines: list[str]) -> str:
    return "\n".join([f"```{language}", *lines, "```"])
