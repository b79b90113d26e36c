"""What holds for every test: two cores are shared, only GPU tests may be skipped, only slow ones start a
Python of their own.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import signal
import subprocess
import sys

# Before torch is loaded: pytest runs one worker per core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A race has another winner from one run to the next, and its choice another rounding; nor is the user's cache
# folder ours.
os.environ["CFOL_CHOICES"] = "fixed"

import pytest

# The markers that `make check` leaves out.
NOT_IN_CHECK = ("slow", "nvcc", "ffcv", "browser", "gpu")


def pytest_configure(config: pytest.Config) -> None:
    # Under nohup it is ignored, and so would be what the tests send.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # A background job of a script ignores Ctrl-C.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # The process that only hands out the tests runs none: it need not load torch, for which the workers would
    # wait.
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        # Before torch: it may have to tell oneDNN what this CPU cannot do.
        importlib.import_module("cfol_fast")
        import torch

        torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    missing = []
    if not torch.cuda.is_available():
        missing.append(("gpu", pytest.mark.skip(reason="needs an NVIDIA GPU")))
    if importlib.util.find_spec("ffcv") is None:
        missing.append(
            ("ffcv", pytest.mark.skip(reason="needs FFCV: `make test` says which packages that takes"))
        )
    for item in items:
        for name, skip in missing:
            if item.get_closest_marker(name):
                item.add_marker(skip)
    # With --no-loadscope-reorder the workers begin with the longest files, and none is left for the end.
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """In CI a skipped test is a test that was lost, unless it needs a GPU."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("CI") or reporter is None:
        return
    lost = [r for r in reporter.stats.get("skipped", []) if "needs an NVIDIA GPU" not in str(r.longrepr)]
    if lost:
        reporter.write_line("skipped in CI, where only GPU tests may be:", red=True)
        for report in lost:
            reporter.write_line(f"  {report.nodeid}: {report.longrepr}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def _threads_stay_as_they_were():
    """Importing FFCV, and every loader of it, changes torch's thread count: no test may leave that to the
    next.
    """
    import torch

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _logging_is_free(request: pytest.FixtureRequest):
    """A lock of logging's that a test leaves held stops every later thread that logs, forever."""
    yield
    if logging._lock._is_owned():  # type: ignore[attr-defined]
        logging._lock.release()  # type: ignore[attr-defined]
        pytest.fail(f"{request.node.nodeid} left the lock of logging held")


@pytest.fixture(autouse=True)
def _only_slow_tests_start_python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each loads torch, for seconds, and `make check` has less than a minute for thousands of tests."""
    if any(map(request.node.get_closest_marker, NOT_IN_CHECK)):
        return
    start = subprocess.Popen.__init__

    def refuse_python(process, command, *args, **options):
        if not isinstance(command, (str, bytes)) and str(next(iter(command), "")) == sys.executable:
            pytest.fail(f"only a test marked slow may start a Python of its own: {command}")
        start(process, command, *args, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse_python)
