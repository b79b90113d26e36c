"""The whole training step as one CUDA graph (`--graph on`): recorded once, then started by a single call.

Everything that changes from step to step is in device memory: the learning rate, the step's number, the place
in the shuffle, the bandit, the random states. What a recording would miss, the host does before each step: it
sets the rate and keeps members of the ensemble.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from cfol_fast import data
from cfol_fast.errors import InputError, one_line
from cfol_fast.frozen import Named, fingerprint, named, paused
from cfol_fast.runs.config import TrainConfig
from cfol_fast.training.batches import TrainingBatch, TrainingBatches
from cfol_fast.training.step import Step

# Steps that are taken without the graph first: they allocate what stays, and let cuDNN choose its algorithms.
WARM_UP = 3


def why_no_graph(config: TrainConfig) -> str | None:
    """Why the steps of this run cannot be captured, or None."""
    device = torch.device(config.device).type
    if device != "cuda":
        return f"a CUDA graph needs a GPU, and the run is on {device}"
    if torch.distributed.is_available() and torch.distributed.is_torchelastic_launched():
        return "a step of several processes is not captured"
    if config.shards > 1:
        return f"a step of {config.shards} shards is not captured"
    if config.data.name == "beton":
        return "FFCV's batches come from the host"
    # What "auto" will choose is not known yet, and such a step would be recorded with one batch for ever.
    if config.data.source != "resident" and data.reads_files(config.data.name):
        return "a stream's batches come from the host (--source resident keeps all images on the GPU)"
    if config.compile:
        return "--compile brings CUDA graphs of its own"
    return None


class CapturedStep:
    """Takes the steps of a run: a few without the graph, then by replaying it.

    A graph holds the addresses of what it was recorded with, and what the model's Python code decided. So it
    is recorded after the trainer has been restored, and again when the shape of a batch or the model's
    fingerprint changes. In the steps before a capture the fast network of the attack is proven; a recording
    holds no proof.
    """

    def __init__(self, step: Step, batches: TrainingBatches) -> None:
        self.step, self.batches, self.device = step, batches, step.device
        with torch.cuda.device(self.device):
            self._stream = torch.cuda.Stream(self.device)
        self.forget()

    def forget(self) -> None:
        """The tensors of the step have been replaced: what was recorded is of no use any more."""
        self._graph: Any = None
        self._shape: Any = None
        self._state: Any = None
        self._functions = Named()
        self._warm_up = WARM_UP

    def __call__(self, batches: Iterator[TrainingBatch]) -> None:
        """One step on the device. A replay draws too: nothing is taken from the iterator then."""
        with torch.cuda.device(self.device):
            if self._shape != self.batches.shape or (self._graph and self._state != self._now()):
                self.forget()
                self._shape = self.batches.shape
            if self._warm_up > 0:
                self._warm_up -= 1
                self._take_eagerly(batches)
                return
            if self._graph is None:
                self._graph = self._captured(batches)
                self._functions = named(self.step.model)
                self._state = self._now()
            self._graph.replay()

    def _now(self) -> Any:
        """What a recording holds for good of the model's Python state."""
        return fingerprint(self.step.model, self._functions)

    def _take_eagerly(self, batches: Iterator[TrainingBatch]) -> None:
        """On the stream of the capture, as torch asks for: autograd remembers the stream a parameter was
        first used on.
        """
        now = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(now)
        with torch.cuda.stream(self._stream):
            self.step(batches)
        now.wait_stream(self._stream)

    def _captured(self, batches: Iterator[TrainingBatch]) -> Any:
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads (a logger, a data set's reader) may use the GPU meanwhile.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"), paused():
                self.step(batches)
        except RuntimeError as error:
            raise InputError(
                f"the training step could not be captured ({one_line(error)}); use --graph off"
            ) from error
        return graph
