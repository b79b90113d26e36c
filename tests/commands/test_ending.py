"""However a command ends, it is one sentence: Ctrl-C at any moment, what the system refuses, what the
environment says wrongly.
"""

import errno
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cfol_fast import data
from cfol_fast.commands import interrupts
from cfol_fast.commands import main as cli
from tests.training import tiny


def ends_with(monkeypatch, capsys, action) -> tuple[int, list[str]]:
    """Status and lines of a command that does `action`."""
    monkeypatch.setattr(cli, "_dispatch", lambda _: action())
    status = cli.main(["train"])
    return status, capsys.readouterr().err.splitlines()


REFUSED = [
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENAMETOOLONG),
    *(
        errno.ESTALE,
        errno.ENOLCK,
        errno.EIO,
        errno.ELOOP,
        errno.EBUSY,
        errno.ENODEV,
        errno.EXDEV,
        errno.EINVAL,
    ),
    *(errno.ETXTBSY, errno.ENOTEMPTY, errno.EMLINK, errno.ENXIO, errno.EACCES, errno.EHOSTUNREACH),
]


@pytest.mark.parametrize("number", REFUSED, ids=errno.errorcode.get)
def test_what_the_system_refuses_is_a_sentence_that_names_the_file(monkeypatch, capsys, number):
    def refused():
        raise OSError(number, os.strerror(number), "runs/a/last.pt")

    sentence = f"cfol-fast: error: {os.strerror(number)}: runs/a/last.pt"
    assert ends_with(monkeypatch, capsys, refused) == (2, [sentence])


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC, errno.EFBIG], ids=errno.errorcode.get)
def test_so_is_what_a_library_quotes_without_its_number(monkeypatch, capsys, number):
    def refused():
        raise RuntimeError(
            f"unable to open shared memory object </torch_1>: {os.strerror(number)} ({number})"
        )

    status, lines = ends_with(monkeypatch, capsys, refused)
    assert (status, len(lines)) == (1, 1)
    assert os.strerror(number) in lines[0]


def test_a_mistake_of_ours_stays_a_bug(monkeypatch, capsys):
    def closed():
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    for mistake in (closed, lambda: {}["key"]):
        status, lines = ends_with(monkeypatch, capsys, mistake)
        assert status == 1
        assert "this is a bug in cfol-fast" in lines[-1]


def test_a_warning_that_was_made_an_error_names_the_variable(monkeypatch, capsys):
    def warned():
        raise UserWarning("this will change")

    status, lines = ends_with(monkeypatch, capsys, warned)
    assert (status, len(lines)) == (1, 1)
    assert "PYTHONWARNINGS" in lines[0]


def test_a_misspelt_variable_of_ours_is_noted(monkeypatch, capsys):
    monkeypatch.setenv("CFOL_CHOICE", "fixed")
    monkeypatch.setenv("CFOL_OF_SOMEBODY_ELSE", "1")
    status, lines = ends_with(monkeypatch, capsys, lambda: 0)
    assert (status, len(lines)) == (0, 1)
    assert "CFOL_CHOICE " in lines[0]
    assert "did you mean CFOL_CHOICES" in lines[0]


# ---------------------------------------------------------------- Ctrl-C


class Left(BaseException):
    """In the place of the process's end."""


@pytest.fixture
def press(monkeypatch):
    def leave():
        raise Left

    monkeypatch.setattr(interrupts, "leave", leave)
    return lambda: os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_is_a_sentence(monkeypatch, capsys, press):
    assert ends_with(monkeypatch, capsys, press) == (130, ["cfol-fast: interrupted"])


@pytest.mark.parametrize(
    "error", [RuntimeError("unexpected pos 64"), SystemError("NULL without exception"), OSError(22, "x")]
)
def test_so_is_the_error_that_a_library_makes_of_it(monkeypatch, capsys, press, error):
    def pressed():
        try:
            press()
        except KeyboardInterrupt:
            raise error from None

    assert ends_with(monkeypatch, capsys, pressed) == (130, ["cfol-fast: interrupted"])


def test_a_second_ctrl_c_does_not_wait_for_what_the_first_one_waits_for(monkeypatch, capsys, press):
    def pressed():
        try:
            press()
        finally:
            press()

    with pytest.raises(Left):
        ends_with(monkeypatch, capsys, pressed)


def test_a_third_ctrl_c_in_a_run_leaves_while_the_second_unwinds(monkeypatch, capsys, press):
    from cfol_fast.training.signals import StopRequest

    def run():
        with StopRequest() as stop:
            press()
            assert stop.requested
            try:
                press()
            finally:
                press()

    with pytest.raises(Left):
        ends_with(monkeypatch, capsys, run)


def test_ctrl_c_in_a_destructor_is_not_lost(monkeypatch, press):
    left = []
    monkeypatch.setattr(interrupts, "leave", lambda: left.append(True))

    class Unlucky:
        def __del__(self):
            press()

    def drops():
        Unlucky()
        return 0

    monkeypatch.setattr(cli, "_dispatch", lambda _: drops())
    cli.main(["train"])
    assert left


def test_what_was_there_before_is_put_back(monkeypatch, capsys):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)], sys.unraisablehook
    ends_with(monkeypatch, capsys, lambda: 0)
    assert (
        [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)],
        sys.unraisablehook,
    ) == before


def test_a_command_that_ignores_ctrl_c_goes_on_ignoring_it(monkeypatch, capsys, press):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert ends_with(monkeypatch, capsys, lambda: press() or 0) == (0, [])
    finally:
        signal.signal(signal.SIGINT, before)


def test_sigusr1_before_there_is_a_run_does_nothing(monkeypatch, capsys):
    assert ends_with(monkeypatch, capsys, lambda: os.kill(os.getpid(), signal.SIGUSR1) or 0) == (0, [])


PRESSED = """
import os, signal, sys

def press(*_, **__):
    os.kill(os.getpid(), signal.SIGINT)

moment = sys.argv[1]

class AtImport:
    def find_spec(self, name, *_):
        if name == moment:
            press()

sys.meta_path.insert(0, AtImport())
if moment == "at the end":
    import atexit
    atexit.register(press)
sys.argv[1:] = ["--version"] if moment == "at the end" else ["train", "erm"]
from cfol_fast.__main__ import run
sys.exit(run())
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["argparse", "torch.functional", "at the end"])
def test_ctrl_c_while_the_program_is_loaded_or_ends_is_no_traceback(moment):
    done = subprocess.run(
        [sys.executable, "-c", PRESSED, moment], capture_output=True, text=True, check=False
    )
    expected = (0, "") if moment == "at the end" else (130, "cfol-fast: interrupted\n")
    assert (done.returncode, done.stderr) == expected


# ---------------------------------------------------------------- the surroundings


def command(*words: str | bytes | Path, **options) -> subprocess.CompletedProcess[str]:
    surroundings = {**os.environ, **options.pop("env", {})}
    options = {"capture_output": True, "text": True, "errors": "backslashreplace", **options}
    return subprocess.run(
        [sys.executable, "-m", "cfol_fast", *words], check=False, env=surroundings, **options
    )


@pytest.mark.slow
def test_a_variable_that_torch_refuses_is_named():
    done = command("doctor", env={"TORCH_LOGS": "junk"})
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "TORCH_LOGS=junk" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("how", ["full", "closed", "left"])
def test_output_that_nobody_takes_is_no_traceback(how):
    shell = {"full": "> /dev/full", "closed": ">&-", "left": "| true"}[how]
    line = f"{sys.executable} -m cfol_fast train --list-methods {shell}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert "Error" not in done.stderr
    assert ("No space left" in done.stderr) == (how == "full")


def test_output_in_ascii_is_escaped(monkeypatch, tmp_path):
    stream = io.TextIOWrapper(io.BytesIO(), "ascii", "strict")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(cli, "_dispatch", lambda _: print("20 µs \udcff") or 0)
    assert cli.main(["doctor"]) == 0
    assert stream.buffer.getvalue() == b"20 \\xb5s \\udcff\n"


@pytest.mark.slow
def test_names_that_are_not_utf_8_are_taken_by_every_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(data, "load", tiny.few_images())
    odd = os.fsdecode(b"n\xff\xe9")
    monkeypatch.chdir(tmp_path)
    tiny.run(Path(odd), "erm", epochs=1, data__holdout="none")
    commands = [
        *(["eval", odd, "--json", f"{odd}.json"], ["report", odd, "--out", f"{odd}.html", "--title", odd]),
        *(["export", odd, "--out", f"{odd}.pt"], ["train", "--resume", "--out", odd]),
        *(["report", f"{odd}.json", odd, "--separate"], ["eval", f"{odd}/checkpoints/last.pt"]),
    ]
    for words in commands:
        assert cli.main(words) == 0, (words, capsys.readouterr())
    assert "\\udcff" in Path(f"{odd}.html").read_text(encoding="utf-8")
