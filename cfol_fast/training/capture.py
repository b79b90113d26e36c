"""The whole training step as one CUDA graph (`--graph on`): recorded once, then started by a single call.

Everything that changes from step to step is in device memory: the learning rate, the step's number, the place in the shuffle, the
bandit, the random states. What a recording would miss, the host does before each step: it sets the rate and keeps members of the
ensemble.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import torch

from cfol_fast.attacks.fingerprint import Named, fingerprint, named
from cfol_fast.attacks.proof import paused
from cfol_fast.errors import InputError, one_line
from cfol_fast.runs.config import TrainConfig

if TYPE_CHECKING:
    from cfol_fast.training.trainer import Trainer

# Steps that are taken without the graph first: they allocate what stays, and let cuDNN choose its algorithms.
WARM_UP = 3


def why_no_graph(config: TrainConfig) -> str | None:
    """Why the steps of this run cannot be captured, or None."""
    device = torch.device(config.device).type
    if device != "cuda":
        return f"a CUDA graph needs a GPU, and the run is on {device}"
    if torch.distributed.is_available() and torch.distributed.is_torchelastic_launched():
        return "a step of several processes is not captured"
    if (config.shards or 1) > 1:
        return f"a step of {config.shards} shards is not captured"
    if config.data.source == "ffcv" or config.data.name == "beton":
        return "FFCV's batches come from the host"
    if config.compile:
        return "--compile brings CUDA graphs of its own"
    return None


class StepGraph:
    """Takes the steps of a trainer: a few without the graph, then by replaying it.

    A graph holds the addresses of what it was recorded with, and what the model's Python code decided. So it is recorded after the trainer
    has been restored, and again when the shape of a batch or the model's fingerprint changes. In the steps before a capture the fast network
    of the attack is proven; a recording holds no proof.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        with torch.cuda.device(trainer.device):
            self._stream = torch.cuda.Stream(trainer.device)
        self.forget()

    def forget(self) -> None:
        """The tensors of the step have been replaced: what was recorded is of no use any more."""
        self._graph: Any = None
        self._shape: Any = None
        self._state: Any = None
        self._functions = Named()
        self._warm_up = WARM_UP

    def __call__(self) -> None:
        """One step on the device: draw, gather, attack, objective, optimiser, feedback."""
        with torch.cuda.device(self.trainer.device):
            if self._shape != self.trainer.batches.shape or (self._graph and self._state != self._now()):
                self.forget()
                self._shape = self.trainer.batches.shape
            if self._warm_up > 0:
                self._warm_up -= 1
                self._take_eagerly()
                return
            if self._graph is None:
                self._graph = self._captured()
                self._functions = named(self.trainer.model)
                self._state = self._now()
            self._graph.replay()

    def _now(self) -> Any:
        """What a recording holds for good of the model's Python state."""
        return fingerprint(self.trainer.model, self._functions)

    def _take_eagerly(self) -> None:
        """On the stream of the capture, as torch asks for: autograd remembers the stream a parameter was first used on."""
        now = torch.cuda.current_stream(self.trainer.device)
        self._stream.wait_stream(now)
        with torch.cuda.stream(self._stream):
            self._draw_and_compute()
        now.wait_stream(self._stream)

    def _captured(self) -> Any:
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads (a logger, a data set's reader) may use the GPU meanwhile.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"), paused():
                self._draw_and_compute()
        except RuntimeError as error:
            raise InputError(
                f"the training step could not be captured ({one_line(error)}); use --graph off"
            ) from error
        return graph

    def _draw_and_compute(self) -> None:
        with closing(self.trainer.batches.feed(1)) as batches:
            self.trainer.compute(next(batches))
