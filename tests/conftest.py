"""What holds for every test: two cores are shared, only GPU tests may be skipped, nothing is read from the network."""

from __future__ import annotations

import importlib.util
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: pytest runs one worker a core

import cfol_fast  # isort: skip  # before torch: it may have to tell oneDNN what this CPU cannot do

import pytest
import torch

assert cfol_fast.__version__


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu, ffcv = torch.cuda.is_available(), importlib.util.find_spec("ffcv") is not None
    for item in items:
        group = item.get_closest_marker("xdist_group")
        if not gpu and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
        elif not ffcv and group and group.args == ("ffcv",):
            item.add_marker(pytest.mark.skip(reason="needs FFCV: `make test` says which packages that takes"))


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
    """Importing FFCV, and every loader of it, changes torch's thread count: no test may leave that to the next."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
