"""What is shown: a live bar on a terminal, plain lines elsewhere."""

import errno
import io
import logging
import subprocess
import sys
from contextlib import ExitStack

import pytest

from cfol_fast import progress as progress_module
from cfol_fast.progress import Count, Progress, Reading, bar, clock, is_heard, printed, silenced, tell, track
from tests.listening import listening

LOGGER = logging.getLogger("cfol_fast.somewhere")

ROW = {
    "epoch": 2,
    "loss": 1.25,
    "robust_error": 0.5,
    "class_error": [0.25, None, 0.75],
    "p": [0.3, 0.2, 0.5],
    "images_per_second": 1234.5,
    "seconds": 61.0,
}


class Clock:
    """Stands still until it is told to move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch):
    stopped = Clock()
    monkeypatch.setattr(progress_module, "time", stopped)
    return stopped


@pytest.fixture
def shown():
    """Makes the progress of a run, whose lines and bar go to one stream."""
    with ExitStack() as stack:

        def start(stream, **options) -> Progress:
            stack.enter_context(printed(stream=stream))
            return Progress(stream, **options)

        yield start


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_plain_line_per_epoch_with_the_time_left_when_the_output_is_no_terminal(time, shown):
    out = io.StringIO()
    progress = shown(out)
    progress.begin(2, 10, 5, 128)
    time.now += 30
    progress.step(4, 1, lambda: 1 / 0)  # must not read from the device
    progress.row(ROW, 5, ["a", "b", "c"], None)
    assert (
        out.getvalue()
        == "epoch 2/5  loss 1.250  robust error 50.0%  worst c 75.0% (p 0.50)  1,234 images/s  1:01  1:30"
        " left\n"
    )


def test_after_the_last_epoch_no_time_is_left(shown):
    out = io.StringIO()
    progress = shown(out)
    progress.begin(0, 10, 5, 128)
    progress.step(10, 4, lambda: 1 / 0)
    progress.row(ROW, 5, ["a", "b", "c"], None)
    assert out.getvalue().endswith("1,234 images/s  1:01\n")


def test_in_a_long_epoch_a_log_gets_a_line_a_minute_and_nothing_is_read_from_the_device(time, shown):
    out = io.StringIO()
    progress = shown(out)
    progress.begin(0, 100, 5, 10)
    for step in range(1, 10):
        time.now += 20
        progress.step(step, 0, lambda: 1 / 0)
    assert out.getvalue().splitlines() == [
        "epoch 1/5  3%  0 images/s  32:20 left",
        "epoch 1/5  6%  0 images/s  31:20 left",
        "epoch 1/5  9%  0 images/s  30:20 left",
    ]


def test_in_a_long_phase_a_log_gets_a_line_a_minute_with_the_time_left(time, shown):
    out = io.StringIO()
    progress = shown(out)
    for done in (0, 25, 50, 75, 100):
        progress.busy("testing", done, 100)
        time.now += 40
    assert out.getvalue().splitlines() == [
        "testing: 50 of 100 images, 1:20 left",
        "testing: 100 of 100 images, 0:00 left",
    ]


def test_a_phase_on_a_terminal_is_a_live_line(time, shown):
    out = Terminal()
    progress = shown(out, redraw_seconds=0.0)
    progress.busy("testing", 10, 100)
    assert out.getvalue().startswith("\rtesting: 10 of 100 images")


def test_the_validation_stands_in_the_line(shown):
    out = io.StringIO()
    validation = {"split": "holdout", "robust": {"average": 0.6, "worst": 0.1, "worst_class": "c"}}
    shown(out).row(ROW, 5, ["a", "b", "c"], validation)
    assert "holdout: robust 60.0%, worst c 10.0%" in out.getvalue()


@pytest.mark.parametrize("columns", [200, 110])
def test_the_bar_shows_epoch_speed_time_left_error_worst_class_and_its_p(columns, monkeypatch, shown):
    monkeypatch.setenv("COLUMNS", str(columns))
    out = Terminal()
    progress = shown(out, redraw_seconds=0.0)
    progress.begin(0, 100, 5, 128)
    progress.step(50, 2, lambda: Reading(0.25, "Shirt", 0.5))
    text = out.getvalue()
    for part in ("epoch 3/5", "50%", "images/s", "left", "robust error 25.0%", "worst Shirt (p 0.50)"):
        assert part in text
    assert len(text) <= columns


def test_the_bar_never_wraps(monkeypatch, shown):
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    progress = shown(out, redraw_seconds=0.0)
    progress.begin(0, 100, 5, 128)
    progress.step(50, 2, lambda: Reading(0.25, "Shirt", 0.5))
    assert len(out.getvalue()) <= 40


def test_the_bar_asks_the_device_only_when_it_is_due(shown):
    asked = []
    progress = shown(Terminal(), redraw_seconds=1e9)
    progress.begin(0, 100, 5, 128)

    def read() -> Reading:
        asked.append(1)
        return Reading(0.5)

    for step in range(1, 50):
        progress.step(step, 0, read)
    assert not asked


def test_quiet_says_nothing(time):
    out = Terminal()
    with printed(stream=out), printed(quiet=True) as prints:
        assert not prints
        progress = Progress(out, quiet=True, redraw_seconds=0.0)
        time.now += 1e6
        progress.busy("testing", 10, 100)
        progress.step(1, 0, lambda: 1 / 0)
        progress.row(ROW, 5, ["a", "b", "c"], None)
        LOGGER.warning("doubt")
        assert not is_heard()
    assert out.getvalue() == ""


def test_a_line_that_stays_clears_the_bar_first(shown):
    out = Terminal()
    progress = shown(out, redraw_seconds=0.0)
    progress.begin(0, 100, 5, 128)
    progress.step(50, 2, lambda: Reading(0.25))
    drawn = len(out.getvalue()) - 1
    LOGGER.info("from another module")
    LOGGER.warning("doubt")
    assert out.getvalue()[drawn + 1 :] == "\r" + " " * drawn + "\rfrom another module\nwarning: doubt\n"


def test_lines_are_printed_to_the_standard_output_of_the_moment_while_they_are_asked_for(capsys):
    LOGGER.warning("before")
    with printed() as prints:
        assert prints
        assert is_heard()
        LOGGER.debug("detail")
        tell(LOGGER, "what a run says")
        tell(LOGGER, "warning: doubt")
        with printed(quiet=True):
            LOGGER.warning("not this")
        with silenced():
            LOGGER.critical("nor this")
    LOGGER.warning("after")
    assert capsys.readouterr() == ("what a run says\nwarning: doubt\n", "")


def test_a_closed_standard_output_takes_no_line(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    with printed():
        Progress().row(ROW, 5, ["a", "b", "c"], None)


def test_afterwards_the_log_is_as_it_was():
    log = logging.getLogger("cfol_fast")
    before = (log.level, log.propagate, list(log.handlers))
    with pytest.raises(KeyError), printed(), printed(quiet=True), silenced():
        raise KeyError
    assert (log.level, log.propagate, log.handlers) == before


# pytest's own handlers are at the root, as those of some notebooks' hosts.
@pytest.mark.parametrize(
    ("level", "of", "heard"),
    [
        (logging.WARNING, None, None),
        (logging.INFO, None, ["a line", "doubt"]),
        (logging.INFO, "cfol_fast", ["a line", "doubt"]),
        (logging.WARNING, "cfol_fast", ["doubt"]),
    ],
)
def test_a_user_who_set_up_logging_hears_the_lines_there_and_nothing_is_printed(
    level, of, heard, caplog, capsys
):
    caplog.set_level(level, of)
    with printed() as prints:
        LOGGER.info("a line")
        LOGGER.warning("doubt")
    assert prints == (heard is None)
    assert caplog.messages == (heard or [])
    assert capsys.readouterr().out == ("a line\nwarning: doubt\n" if heard is None else "")


def test_a_handler_of_the_users_own_hears_quiet_runs_too_and_takes_the_place_of_printing(capsys):
    for quiet in (False, True):
        heard: list[str] = []
        with listening(heard.append), printed(quiet) as prints:
            assert is_heard()
            LOGGER.info("a line")
        assert (prints, heard) == (False, ["a line"])
    with listening(heard.append), printed(always=True):
        LOGGER.info("of a command")
    assert capsys.readouterr() == ("of a command\n", "")


@pytest.mark.slow
def test_the_library_alone_shows_nothing():
    """Not even warnings, which Python shows on stderr where nobody handles them."""
    script = "import logging, cfol_fast; logging.getLogger('cfol_fast.training').warning('doubt')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_bars_have_eighths():
    assert bar(0.5, 4) == "██  "
    assert bar(0.0, 2) == "  "
    assert bar(1.0, 2) == "██"
    assert bar(1 / 16, 2) == "▏ "


def test_clocks():
    assert [clock(5), clock(65), clock(3661)] == ["0:05", "1:05", "1:01:01"]


def test_counted_work_is_a_line_that_goes_when_the_work_is_done():
    out = Terminal()
    count = Count("testing", out, redraw_seconds=0.0)
    count(50, 100)
    assert "testing" in out.getvalue()
    assert "50 of 100" in out.getvalue()
    drawn = len(out.getvalue()) - 1
    count(100, 100)
    assert out.getvalue().endswith("\r" + " " * drawn + "\r")


def test_counted_work_in_a_log_file_is_a_line_now_and_then_and_one_at_the_end(time):
    out = io.StringIO()
    seldom, always = Count("a", out, log_seconds=1e9), Count("b", out, log_seconds=0.0)
    for count in (seldom, always):
        time.now += 5
        count(1, 3)
        count(3, 3)
    assert out.getvalue() == "a: 3 of 3\nb: 1 of 3, 0:20 left\nb: 3 of 3\n"


def test_tracking_passes_the_items_on():
    out = io.StringIO()
    assert list(track("abc", 3, "letters", stream=out)) == ["a", "b", "c"]
    assert out.getvalue() == "letters: 3 of 3\n"
    assert list(track("abc", 3, "letters", show=False, stream=out)) == ["a", "b", "c"]
    assert out.getvalue().count("\n") == 1


class ClosedTerminal(Terminal):
    def write(self, text):
        raise OSError(errno.EIO, "Input/output error")


def test_a_closed_terminal_does_not_end_the_run(shown):
    progress = shown(ClosedTerminal(), redraw_seconds=0.0)
    progress.begin(0, 10, 1, 1)
    progress.step(1, 0, lambda: Reading(0.5))
    LOGGER.info("a line")
    progress.clear()


def test_another_failure_of_the_output_is_not_hidden():
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    with printed(stream=Full()), pytest.raises(OSError, match="No space"):
        LOGGER.info("a line")


def test_the_bar_says_beforehand_that_it_wants_figures(time) -> None:
    """Of many ranks the others must know, since they add up the figures together."""
    shown = Progress(Terminal(), redraw_seconds=1)
    shown.begin(0, 10, 1, 8)
    read = []
    for now in (0.0, 0.5, 1.2):
        time.now = 1010 + now
        wanted = shown.wants_reading()
        shown.step(1, 0, lambda: read.append(1) or Reading(0.5))
        assert wanted == (now != 0.5)
    assert len(read) == 2
    assert not Progress(io.StringIO()).wants_reading()
