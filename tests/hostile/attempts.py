"""Runs the attempts of an area and counts them: tried, held, failed."""

from __future__ import annotations

import contextlib
import signal
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.hostile.reading import Area

# Seconds for one attempt; on a busy machine a run and its continuation take half a minute.
LONGEST = 300


class Hangs(BaseException):
    """Not an Exception, so that no reader takes it for a damaged file."""


@contextlib.contextmanager
def ended_after(seconds: int) -> Iterator[None]:
    def end(*_: object) -> None:
        raise Hangs(f"no answer after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Tally:
    """failures: the traceback of each, with the values that led to it."""

    tried: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.tried += other.tried
        self.failures += other.failures

    @property
    def held(self) -> int:
        return self.tried - len(self.failures)


def attack(area: Area, folder: Path, attempts: int, seed: int) -> Tally:
    """Makes up to `attempts` attempts; a failure ends the round, since what is left behind may not be as it
    was.
    """
    tally = Tally()
    subject = area.prepare(folder)

    @hypothesis.seed(seed)
    @settings(
        max_examples=attempts,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(draw=st.data())
    def round_of_attempts(draw: st.DataObject) -> None:
        tally.tried += 1
        with ended_after(LONGEST):
            area.attempt(subject, draw)

    try:
        round_of_attempts()
    except KeyboardInterrupt:
        raise
    except BaseException:
        tally.failures.append(f"{area.name}, seed {seed}:\n{traceback.format_exc()}")
    return tally
