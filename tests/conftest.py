"""What holds for every test: two cores are shared, only GPU tests may be skipped, nothing is read from the network."""

from __future__ import annotations

import importlib.util
import os

# Before torch is loaded: pytest runs one worker per core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import cfol_fast  # isort: skip  # before torch: it may have to tell oneDNN what this CPU cannot do

import pytest
import torch

assert cfol_fast.__version__


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
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
    """Importing FFCV, and every loader of it, changes torch's thread count: no test may leave that to the next."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
