"""Which of several ways to compute a layer is the fastest on this machine: found by a short race, then kept.

The ways differ in speed and in rounding, in nothing else while all numbers are finite. A choice holds for the
process, is kept beyond it in a cache file of this machine, and is stored in a run's checkpoint, so that a
resumed run computes the same bits. Of many ranks the first one races for all.
"""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import json
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from cfol_fast import atomic
from cfol_fast._version import __version__
from cfol_fast.cpu_features import processor
from cfol_fast.errors import InputError
from cfol_fast.ranks import Ranks, group_size

# "race", "fixed" (what was fastest on the processor of the first measurements, without a race), or a file of
# choices.
SETTING = "CFOL_CHOICES"
# 2: races with few images had been won by whoever lays out the weights once, wherever they outweigh the
# images. 3: Winograd races.
FORMAT = 3
# A race has at most so many timed rounds. What is to replace the usual way must lead for some of them, in
# which nobody may have disturbed the usual way; with slow layers, whose rounds take this many seconds, no
# more than these.
ROUNDS, ROUNDS_TO_WIN, SECONDS = 3, 2, 0.03
# What takes this many times as long as the best is not tried again: in the run that makes the kernels, and
# after each round.
FAR_BEHIND, HOPELESS = 2.0, (1.25, 1.1, 1.0)
# What is to replace the fixed way must be clearly faster: the clocks of shared machines are noisy.
CLEARLY = 0.97
# Seconds that one process spends on races; what is left over is raced by the next one.
BUDGET = 3.0
# Floating-point operations of a thread in one run of a race: a millisecond or two.
RACE_WORK = 1.5e8
T = TypeVar("T")


def seconds() -> float:
    """What a race is timed by.

    With one thread its own time, of which whoever else is busy on the machine takes nothing away.
    """
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


def fastest(names: Sequence[str], run: Callable[[str], object], clock: Callable[[], float]) -> str:
    """The fastest of the ways, in turns; the first one unless another is clearly faster.

    A way that cannot run here is left out.
    """
    usual, making = names[0], dict[str, float]()
    for name in names:
        with contextlib.suppress(*((RuntimeError,) if name != usual else ())):
            begin = clock()
            run(name)
            making[name] = clock() - begin

    def without_hopeless(names: Iterable[str], times: Mapping[str, float], factor: float) -> list[str]:
        # The usual way always stays: one disturbance of a busy machine would be enough to lose it.
        limit = factor * min(times.values())
        return [name for name in names if name == usual or times[name] <= limit]

    left = without_hopeless(making, making, FAR_BEHIND)
    best = dict.fromkeys(making, math.inf)
    start, rounds, leader = clock(), 0, usual
    while rounds < ROUNDS and left != [usual]:
        for name in left:
            begin = clock()
            run(name)
            best[name] = min(best[name], clock() - begin)
        left = without_hopeless(left, best, HOPELESS[rounds])
        leader = min(left, key=best.__getitem__)
        rounds += 1
        needed = 1 if leader == usual else ROUNDS_TO_WIN
        if rounds > needed or (rounds == needed and clock() - start >= needed * SECONDS):
            break
    return leader if best[leader] < CLEARLY * best[usual] else usual


class Choices:
    """What was chosen in this process, by the description of the layer.

    setting: as in the environment variable. file: where choices are kept beyond the process, or None.
    """

    def __init__(
        self, setting: str = "race", file: Path | None = None, clock: Callable[[], float] = seconds
    ) -> None:
        self.setting, self.file, self.used = setting, file, dict[str, str]()
        self._clock, self._spent = clock, 0.0
        self._pinned: dict[str, str] = {}
        self._kept: dict[str, str] | None = None
        self._raced: dict[str, str] = {}
        self._for_all = False
        self._lock = threading.RLock()

    def choose(
        self, layer: str, names: Sequence[str], run: Callable[[str], object], others: Iterable[str] = ()
    ) -> str:
        """One of the ways, of which the first is the fixed one; `run` computes the layer that way.

        others: ways that never win and therefore do not race, but can be pinned.
        """
        found = self.used.get(layer)
        if found is None:
            with self._lock:
                found = self.known(layer)
                if found is None or found not in (*names, *others):
                    found = self._race(layer, names, run) if self.may_race else names[0]
                if not _deciding_nothing.get():
                    self.used[layer] = found
        return found

    def known(self, layer: str) -> str | None:
        """What is chosen already, here, in the checkpoint that is continued, or in the file."""
        return self.used.get(layer) or self._pinned.get(layer) or self._in_file().get(layer)

    def check(self) -> None:
        """Refuses a setting that names no file of choices, before anything is computed or written."""
        self._in_file()

    @property
    def chosen(self) -> dict[str, str]:
        """What a checkpoint holds."""
        return {**self._pinned, **self.used}

    def settle(self, layer: str, way: str) -> None:
        """Notes what follows from another choice."""
        if _deciding_nothing.get():
            return
        with self._lock:
            self.used[layer] = way
            if self.may_race:
                self._raced[layer] = way

    def pin(self, chosen: Mapping[str, str] | None) -> None:
        """From now on what a checkpoint holds, whatever was chosen before.

        None: of a version that had only the fixed ways.
        """
        if chosen is not None and not _are_choices(chosen):
            raise ValueError("these are no choices")
        with self._lock:
            if chosen is None:
                self.setting, self.used = "fixed", {}
            self._pinned = dict(chosen or {})
            for layer in self._pinned:
                self.used.pop(layer, None)

    def share(self, ranks: Ranks, rehearse: Callable[[], object]) -> None:
        """Of many ranks the first one races, while it rehearses, and all take its choices."""

        def on_first() -> dict[str, str]:
            self._for_all = True
            try:
                rehearse()
                return {**self._in_file(), **self.chosen}
            finally:
                self._for_all = False

        self.pin(ranks.from_first(on_first))

    def keep(self) -> None:
        """Writes what was raced into the file, unless it says something there already.

        What cannot be written is raced again.
        """
        if not self._raced or self.file is None:
            return
        with self._lock:
            # Whoever was first is right: processes that come later compute what it computed.
            kept = {**self._raced, **read(self.file, machine())}
            with contextlib.suppress(OSError):
                self.file.parent.mkdir(parents=True, exist_ok=True)
                atomic.write_json(self.file, {"format": FORMAT, "machine": machine(), "choices": kept})
            self._raced = {}

    def summary(self) -> dict[str, Any]:
        """For `doctor`: what is known of this machine, layer by layer, and where from."""
        known = {**self._in_file(), **self.used}
        file = self.setting if self.setting not in ("race", "fixed") else self.file and str(self.file)
        return {"setting": self.setting, "file": file, "layers": dict(sorted(known.items()))}

    @property
    def _together(self) -> bool:
        """Whether others must compute the same bits, and were not told yet."""
        return group_size() > 1 and not self._for_all

    @property
    def may_race(self) -> bool:
        """Whether a layer that nobody has decided would be raced."""
        free = not self._together and not _deciding_nothing.get()
        return self.setting == "race" and free and self._spent < BUDGET

    def _race(self, layer: str, names: Sequence[str], run: Callable[[str], object]) -> str:
        if len(names) == 1:
            return names[0]
        start = self._clock()
        self._raced[layer] = found = fastest(names, run, self._clock)
        self._spent += self._clock() - start
        return found

    def _in_file(self) -> dict[str, str]:
        if self.setting == "fixed" or (self.setting == "race" and self._together):
            return {}
        if self._kept is None:
            self._kept = self._read_file()
        return self._kept

    def _read_file(self) -> dict[str, str]:
        if self.setting == "race":
            return {} if self.file is None else read(self.file, machine())
        try:
            return _choices_in(self.setting)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{SETTING} must be race, fixed or a file of choices (cfol-fast doctor names this machine's);"
                f" {self.setting!r} is none: {error}"
            ) from None


class Deciding:
    """A layer for the time of one attack: to ask for its ways once is enough."""

    __slots__ = ("_decided",)

    def __init__(self) -> None:
        self._decided: dict[Hashable, Any] = {}

    def decided(self, case: Hashable, decide: Callable[[], T]) -> T:
        """What was decided in this case, or is now."""
        key = choices(), case
        found = self._decided.get(key)
        if found is None:
            found = self._decided[key] = decide()
        return found  # type: ignore[no-any-return]


def read(file: Path, of: Mapping[str, Any]) -> dict[str, str]:
    """What is kept for the machine `of`; a file that is missing, damaged or of another machine holds
    nothing.
    """
    try:
        return _choices_in(file, of)
    except (OSError, ValueError):
        return {}


def _choices_in(file: str | Path, of: Mapping[str, Any] | None = None) -> dict[str, str]:
    # A pipe of that name would wait forever, and some devices never end.
    if not stat.S_ISREG(os.stat(file).st_mode):
        raise ValueError("it is no file")
    try:
        stored = json.loads(Path(file).read_text(encoding="utf-8"))
    # A file can be nested deeper than Python goes.
    except RecursionError:
        raise ValueError("it is no file of choices") from None
    # Another format means that there is more to choose from: what was chosen then can still be asked for.
    formats = (FORMAT,) if of is not None else (2, FORMAT)
    chosen = stored.get("choices") if isinstance(stored, dict) and stored.get("format") in formats else None
    if chosen is None or not _are_choices(chosen):
        raise ValueError(f"it is no file of choices in format {FORMAT}")
    if of is not None and stored.get("machine") != of:
        raise ValueError("it is of another machine")
    return chosen


def _are_choices(found: Any) -> bool:
    return isinstance(found, dict) and all(isinstance(text, str) for pair in found.items() for text in pair)


def machine() -> dict[str, str]:
    """What the speed of a way depends on; the number of threads stands with every layer."""
    from cfol_fast import _host

    return {
        "processor": processor(),
        "torch": torch.__version__,
        "cfol_fast": __version__,
        "torch_instructions": torch.backends.cpu.get_cpu_capability(),
        "onednn_limit": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
        "our_instructions": _host.instruction_set,
    }


def cache_file() -> Path | None:
    """This machine's, in the user's cache folder; None for a user without a home."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # The standard wants a relative path ignored.
        root = Path(folder) if os.path.isabs(folder) else Path.home() / ".cache"
    except RuntimeError:
        return None
    # A relative home is none: the file would lie in whatever folder a command is called from.
    if not root.is_absolute():
        return None
    name = hashlib.sha256(json.dumps(machine(), sort_keys=True).encode()).hexdigest()[:16]
    return root / "cfol_fast" / f"choices-{name}.json"


_deciding_nothing = contextvars.ContextVar("deciding_nothing", default=False)


@contextlib.contextmanager
def deciding_nothing() -> Iterator[None]:
    """For a pass whose speed does not matter, such as a proof: it takes what was chosen, or the fixed ways,
    and leaves no choice behind.
    """
    token = _deciding_nothing.set(True)
    try:
        yield
    finally:
        _deciding_nothing.reset(token)


_of_process: Choices | None = None
_making = threading.Lock()


def choices() -> Choices:
    """Those of this process."""
    global _of_process
    if _of_process is None:
        with _making:
            _of_process = _of_process or Choices(os.environ.get(SETTING) or "race", cache_file())
    return _of_process


@contextlib.contextmanager
def using(other: Choices) -> Iterator[Choices]:
    """Other choices than the process's own inside the block."""
    global _of_process
    before, _of_process = _of_process, other
    try:
        yield other
    finally:
        _of_process = before
