"""Running out of memory, in one sentence with the ways out, whoever says it and in whatever words.

torch, numpy, Pillow, cuDNN, the C++ library and the operating system each have an exception of their own for
it.
"""

from __future__ import annotations

import errno
import re
import resource
from collections.abc import Iterator

from cfol_fast.errors import TrainingFailed

# In the text of an exception whose type does not say it, in lower case.
SAYINGS = (
    "out of memory",
    "out_of_memory",
    "out of shared memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "std::bad_alloc",
    "alloc_failed",
    "errormemoryallocation",
    "can't start new thread",
    "failed to map segment",
    # The system kills who takes most.
    "killed by signal: killed",
)
OF_THE_GPU = ("cuda", "cudnn", "cublas", "cufft", "nccl")
AMOUNT = re.compile(r"allocate ([\d.,]+ ?(?:[KMGT]i?B|bytes))", re.IGNORECASE)
WAYS_OUT = {
    "train": (
        "take a smaller --batch-size, --set test.batch_size or --set data.size, more --shards, --precision"
        " bfloat16, or stream the images (cfol-fast data to-ffcv, then --dataset beton)"
    ),
    "eval": "take a smaller --batch-size",
    "offsets": (
        "the run's test.batch_size is used: train with a smaller one, or take a machine with more memory"
    ),
    "data": "take a smaller --size, or a machine with more memory",
    "reproduce": "take fewer runs at a time (--parallel 1)",
    "report": "compare fewer runs",
    "compare": "compare shorter runs",
}
OTHERWISE = "end other programs, or take a machine with more memory"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this exception says that memory ran out."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    if not isinstance(error, (RuntimeError, OSError, ImportError)) or isinstance(error, TrainingFailed):
        return False
    said = str(error).lower()
    return type(error).__name__ == "OutOfMemoryError" or any(saying in said for saying in SAYINGS)


def sentence(error: BaseException, command: str | None = None) -> str | None:
    """What ran out and what helps, if it was memory that ended a command; None for every other reason."""
    cause = next((one for one in _chain(error) if is_out_of_memory(one)), None)
    if cause is None:
        return None
    said = str(cause)
    gpu = any(word in f"{type(cause).__module__} {said}".lower() for word in OF_THE_GPU)
    amount = AMOUNT.search(said)
    wanted = f" ({amount[1]} wanted)" if amount else ""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    limited = (
        f"; ulimit -v allows {limit // 1024:,} KiB" if limit != resource.RLIM_INFINITY and not gpu else ""
    )
    ways = WAYS_OUT.get(command or "", OTHERWISE)
    return f"out of memory{' on the GPU' if gpu else ''}{wanted}{limited}: {ways}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, and those that it came from: a reader may take lack of memory for a damaged file."""
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen:
        seen.add(id(now))
        yield now
        now = now.__cause__ or now.__context__
