"""For Lightning: a callback through which a sampler of ours learns, is saved and restored with the
checkpoints, and is logged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from cfol_fast.errors import InputError
from cfol_fast.integrations.learning import LearningSampler
from cfol_fast.sampling import IndexSampler, Ticket

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    try:
        # The same package under its older name.
        from pytorch_lightning import Callback, LightningModule, Trainer  # type: ignore[no-redef]
    except ImportError as error:
        raise ImportError("SamplerCallback needs Lightning: pip install lightning") from error


class SamplerCallback(Callback):
    """`Trainer(callbacks=[SamplerCallback(sampler)]).fit(module, cf.loader(dataset, sampler, batch_size))`.

    training_step gets `(x, y, ticket)` and returns `{"loss": loss, "wrong": wrong}`: which examples were
    wrong, (B,) bool or in [0, 1]. At the end of an epoch "worst_class", "worst_class_accuracy" and p
    ("p/NAME") of the training examples are logged. A checkpoint that was saved at the end of an epoch
    continues exactly; in the middle of one, the few batches that were drawn ahead are drawn anew.
    """

    def __init__(self, sampler: IndexSampler, class_names: Sequence[str] | None = None) -> None:
        self.learning = LearningSampler(sampler, class_names)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if trainer.world_size > 1:
            self.learning.join(trainer.global_rank, trainer.world_size)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # A training_step that returns None leaves its batch out.
        if outputs is None:
            return
        if not isinstance(outputs, Mapping) or "wrong" not in outputs:
            raise InputError(
                'training_step must say which examples were wrong: return {"loss": loss, "wrong":'
                " logits.argmax(1) != y}"
            )
        ticket = batch[-1] if isinstance(batch, (tuple, list)) else None
        if not isinstance(ticket, Ticket):
            raise InputError(
                "the batch has no ticket: train with cf.loader(dataset, sampler, batch_size) instead of a"
                " DataLoader"
            )
        self.learning.hear(labels_of(batch), outputs["wrong"], ticket)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.log_dict(self.learning.figures(), sync_dist=trainer.world_size > 1)

    def state_dict(self) -> dict[str, Any]:
        return {"sampler": self.learning.sampler.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.learning.sampler.load_state_dict(state_dict["sampler"])


def labels_of(batch: Sequence[Any]) -> Tensor:
    """Of (x, y, ticket), or of (batch, ticket) where the data set has dicts."""
    first = batch[0]
    if not isinstance(first, Mapping):
        return batch[1]
    for name in ("labels", "label"):
        if name in first:
            return first[name]
    raise InputError(f"the batch has no labels: expected 'labels' or 'label' among {', '.join(first)}")
