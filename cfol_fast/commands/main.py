"""The command `cfol-fast`: collects the subcommands, and turns what goes wrong into a message and an exit
status.

0: done. 2: bad input, one line on stderr. 1: a failure, one line; or a bug of ours, with its traceback.
128 + n: stopped by signal n, after saving. A subcommand is imported only when it is asked for, and so is
what few commands need: `--help` answers at once.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import sys
import warnings
from collections.abc import Sequence

from cfol_fast import out_of_memory, processes
from cfol_fast._version import __version__
from cfol_fast.commands.interrupts import SENTENCE, STATUS, Interrupts
from cfol_fast.commands.one_line_parser import OneLineParser
from cfol_fast.errors import InputError, Stopped, TrainingFailed, one_line
from cfol_fast.plugins import load_plugins

DESCRIPTION = """\
Trains image classifiers that hold up under attack in every class, and shows how each class does.

first steps:
  cfol-fast demo                                        the effect on embedded images, with a report page
  cfol-fast train cfol --dataset cifar10 --data DIR     the paper's method with the paper's recipe
  cfol-fast report runs/* --out report.html             compare runs
  cfol-fast COMMAND --help                              what a command does, with examples and defaults
"""

# name -> (module, its line in --help). The line stands here so that --help imports nothing.
COMMANDS = {
    "doctor": ("cfol_fast.commands.doctor", "what was built, what is installed, what this machine can do"),
    "demo": ("cfol_fast.commands.demo", "ERM-AT against CFOL-AT on the embedded images, with a report page"),
    "train": ("cfol_fast.commands.train", "train a robust classifier with one of the paper's methods"),
    "eval": ("cfol_fast.commands.eval", "clean and robust accuracy in every class, of a run or a checkpoint"),
    "export": (
        "cfol_fast.commands.export",
        (
            "write a run's weights for use elsewhere: as torch, safetensors or ONNX, with the code that loads"
            " them"
        ),
    ),
    "offsets": (
        "cfol_fast.commands.offsets",
        "fit class logit offsets on a run's hold-out: the baseline without training",
    ),
    "report": ("cfol_fast.commands.report", "write a page that compares runs: tables, charts, gallery"),
    "compare": (
        "cfol_fast.commands.compare",
        "list what differs between two runs or two checkpoints, and by how much",
    ),
    "reproduce": (
        "cfol_fast.commands.reproduce",
        (
            "train and test what one of the paper's tables or figures needs, and write it beside the paper's"
            " numbers"
        ),
    ),
    "methods": ("cfol_fast.commands.methods", "list the training methods"),
    "models": ("cfol_fast.commands.models", "list the networks"),
    "datasets": ("cfol_fast.commands.datasets", "list the data sets"),
    "data": (
        "cfol_fast.commands.data",
        "write a data set to an FFCV file, for data that does not fit on the device",
    ),
}

# What several processes, as torchrun starts them, would each do again.
ONE_PROCESS = ("compare", "data", "datasets", "demo", "methods", "models", "offsets", "reproduce")

# What the operating system answers to a mistake in a program. All else that it refuses is about files, limits
# or the network.
BUGS_OF_OURS = {errno.EBADF, errno.EFAULT, errno.ECHILD, errno.ESPIPE, errno.ENOTTY, errno.ESRCH}
# What runs out, in the words of a library that passes no number on.
EXHAUSTED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.EROFS)
# An import that fails in one of them is not our mistake: a variable, a limit or the installation is wrong.
LIBRARIES = ("torch", "torchvision", "numpy", "PIL")
LIBRARY_VARIABLES = ("TORCH", "PYTORCH", "MKL_", "OMP_", "KMP_", "OPENBLAS_", "LD_")
# The variables that mean something to cfol_fast, its build and its tests.
VARIABLES = {
    *("CFOL_CHOICES", "CFOL_FAST_TRACEBACK", "CFOL_MAX_CPU_ISA"),
    *("CFOL_CUDA", "CFOL_CUDA_ARCHITECTURES", "CFOL_CUDA_COMPILER", "CFOL_NO_APT", "CFOL_NO_NVCC_WHEEL"),
    *("CFOL_WITH_CUDA", "CFOL_NATIVE_SIDE", "CFOL_TEST_CACHE", "CFOL_TEST_MARKER"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # A name whose bytes are not UTF-8 is shown with escapes, instead of ending the command.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    # Pillow's, of images that are refused with their name.
    warnings.filterwarnings("ignore", message="Image size .* decompression bomb")
    warnings.formatwarning = lambda message, *_, **__: f"cfol-fast: note: {message}\n"
    with Interrupts() as interrupts:
        try:
            if processes.rank_and_size()[0] > 0:
                warnings.simplefilter("ignore")
            _check_environment()
            try:
                status = _dispatch(arguments)
            except SystemExit as leave:
                # argparse's own: after --help, and after a mistake in the options.
                status = int(leave.code or 0)
            _flush_output()
            return status
        except BrokenPipeError:
            # The reader of our output left: `cfol-fast ... | head`.
            _drop_output()
            return 1
        except (KeyboardInterrupt, Exception) as error:
            if interrupts.asked or isinstance(error, KeyboardInterrupt):
                print(SENTENCE, file=sys.stderr)
                return STATUS
            return _report(error, next((word for word in arguments if word in COMMANDS), None))


def _flush_output() -> None:
    """At the interpreter's end it would be too late to say that the disk is full."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _drop_output()
        raise


def _drop_output() -> None:
    """What is still in the buffer of the standard output goes nowhere, instead of failing again at the
    interpreter's end.
    """
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check_environment() -> None:
    """Notes a variable of ours that is misspelt, which nothing would read."""
    for name in sorted(os.environ.keys() - VARIABLES):
        if name.startswith("CFOL"):
            from difflib import get_close_matches

            for meant in get_close_matches(name, VARIABLES, 1, 0.8):
                # No warning: PYTHONWARNINGS could make it an error.
                text = f"the environment variable {name} has no meaning; did you mean {meant}?"
                print(f"cfol-fast: note: {text}", file=sys.stderr)


def _report(error: Exception, command: str | None = None) -> int:
    """Says what went wrong, and returns the exit status that belongs to it.

    Of several processes one says it.
    """
    lack = out_of_memory.sentence(error, command)
    if lack is not None and not os.environ.get("CFOL_FAST_TRACEBACK"):
        # What the failed functions hold is needed to say anything.
        error.__traceback__ = error.__cause__ = error.__context__ = None
        if processes.speaks_first():
            print(f"cfol-fast: failed: {lack}", file=sys.stderr)
        return 1
    import traceback

    if not processes.speaks_first():
        return 2 if is_input_error(error) else 128 + error.signal_number if isinstance(error, Stopped) else 1
    if is_input_error(error):
        if os.environ.get("CFOL_FAST_TRACEBACK"):
            traceback.print_exc()
        print(f"cfol-fast: error: {one_line(error)}", file=sys.stderr)
        return 2
    if isinstance(error, Stopped):
        print(f"cfol-fast: {error}", file=sys.stderr)
        return 128 + error.signal_number
    if isinstance(error, TrainingFailed):
        print(f"cfol-fast: failed: {one_line(error)}", file=sys.stderr)
        return 1
    if (reason := lack or outside_reason(error)) is not None:
        if os.environ.get("CFOL_FAST_TRACEBACK"):
            traceback.print_exc()
        print(f"cfol-fast: failed: {reason}", file=sys.stderr)
        return 1
    traceback.print_exc()
    print(
        f"cfol-fast {__version__}: this is a bug in cfol-fast, not in what you typed: "
        "please report it with the lines above and the output of cfol-fast doctor",
        file=sys.stderr,
    )
    return 1


def is_input_error(error: Exception) -> bool:
    """Whether the user can mend it: a bad value, or what the operating system says about a file or the
    network.
    """
    if isinstance(error, OSError):
        from urllib.error import URLError

        named = error.errno is not None and error.errno not in BUGS_OF_OURS
        return named or isinstance(error, (ConnectionError, TimeoutError, URLError))
    return isinstance(error, InputError)


def outside_reason(error: Exception) -> str | None:
    """What went wrong outside cfol_fast, as a sentence; None where nothing says so and the mistake is
    ours.
    """
    if isinstance(error, Warning):
        return f"{one_line(error)}. PYTHONWARNINGS or -W makes this warning an error: unset it"
    if (library := _library_that_did_not_load(error)) is not None:
        text = one_line(error)
        read = [
            (name, value) for name, value in sorted(os.environ.items()) if name.startswith(LIBRARY_VARIABLES)
        ]
        named = [f"{name}={value}" for name, value in read if name in text]
        hint = f"The environment variable {named[0]} may be wrong. " if named else ""
        return f"{library} cannot be loaded. {hint}{type(error).__name__}: {_shortened(text)}"
    # Libraries in C++ quote what the operating system says.
    if any(os.strerror(number) in str(error) for number in EXHAUSTED):
        return _shortened(one_line(error))
    return None


def _shortened(text: str, most: int = 300) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def _library_that_did_not_load(error: BaseException) -> str | None:
    """The library during whose import the error was raised."""
    import traceback

    for frame, _ in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in LIBRARIES and frame.f_code.co_name == "<module>":
            return package
    return None


def _dispatch(arguments: list[str]) -> int:
    parser = OneLineParser(
        prog="cfol-fast", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"cfol-fast {__version__}")
    for value in [part for word in arguments for part in (word, word.rpartition("=")[2])]:
        if value.startswith("~"):
            from cfol_fast.user_input import check_home_folder

            check_home_folder(value)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    wanted = next((word for word in arguments if not word.startswith("-")), None)
    for name, (module_name, text) in COMMANDS.items():
        # Only the command that was asked for is imported; of the others the name and the line are enough.
        module = importlib.import_module(module_name) if name == wanted else None
        command = commands.add_parser(
            name,
            help=text,
            description=module.DESCRIPTION if module else text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if module is not None:
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    args = parser.parse_args(arguments)
    if args.command is None:
        parser.print_help()
        return 0
    if args.command in ONE_PROCESS:
        rank, size = processes.rank_and_size()
        # One sentence from one process is enough.
        if size > 1 and rank > 0:
            return 2
        processes.refuse_many(f"cfol-fast {args.command}")
    # It imports logging, which --help does without.
    from cfol_fast.progress import printed

    with printed(always=True):
        load_plugins()
        return int(args.run(args) or 0)
