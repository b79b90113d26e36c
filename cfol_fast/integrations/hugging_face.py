"""For Hugging Face's Trainer: `SamplerTrainer`, in which a sampler of ours draws, learns, is saved and
restored, and is logged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cfol_fast.data.ticket_loader import LAG, TicketLoader, loader
from cfol_fast.errors import InputError
from cfol_fast.integrations.learning import LearningSampler
from cfol_fast.runs import checkpoints
from cfol_fast.runs.json_files import made_from
from cfol_fast.sampling import IndexSampler, Ticket

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint
except ImportError as error:
    raise ImportError(
        "SamplerTrainer needs Hugging Face's packages: pip install transformers accelerate"
    ) from error

FILE = "sampler.pt"
# The name under which a batch carries its ticket.
TICKET = "ticket"


class SamplerTrainer(Trainer):
    """A Trainer for image classifiers whose examples `sampler` draws; everything else is Hugging Face's.

    It learns from the logits that `compute_loss` sees: attack the images in a `compute_loss` of yours, and
    call this one with them. Every log of the training loss has "worst_class", "worst_class_accuracy" and p
    ("p/NAME"). The sampler's state is in each checkpoint as sampler.pt; one of an epoch's end
    (save_strategy="epoch") continues exactly, in the middle of an epoch the few batches that were drawn ahead
    are drawn anew.
    """

    def __init__(self, *args: Any, sampler: IndexSampler, **options: Any) -> None:
        super().__init__(*args, **options)
        names = getattr(getattr(self.model, "config", None), "id2label", None) or {}
        known = list(names.values()) if len(names) == getattr(sampler, "k", None) else None
        self.learning = LearningSampler(sampler, known)
        if self.args.world_size > 1:
            self.learning.join(self.args.process_index, self.args.world_size)
        # The sampler's state says what comes next: there is nothing to go past in a resumed epoch.
        self.args.ignore_data_skip = True
        self.add_callback(_SaveSampler(sampler))

    def get_train_dataloader(self) -> Any:
        dataset, collator = self.train_dataset, self.data_collator
        if hasattr(dataset, "column_names"):
            dataset = self._remove_unused_columns(dataset, description="training")
        else:
            collator = self._get_collator_with_removed_columns(collator, description="training")
        workers = self.args.dataloader_num_workers
        options = {"collate_fn": collator, "pin_memory": self.args.dataloader_pin_memory}
        options["drop_last"] = self.args.dataloader_drop_last
        size, sampler = self._train_batch_size, self.learning.sampler
        return _WithTickets(loader(dataset, sampler, size, workers, max(LAG, workers), **options))

    def training_step(self, *args: Any, **options: Any) -> Any:
        before = self.learning.heard
        loss = super().training_step(*args, **options)
        if self.learning.heard == before:
            raise InputError(
                "the sampler was not told what was wrong: a compute_loss of yours must return"
                " super().compute_loss(model, inputs, ...), with the inputs that it was given (changed in"
                " place: they carry the batch's ticket)"
            )
        return loss

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, *args: Any, **options: Any
    ) -> Any:
        # An evaluation's batches have none.
        ticket, labels = inputs.pop(TICKET, None), inputs.get("labels")
        loss, outputs = super().compute_loss(model, inputs, True, *args, **options)
        if ticket is not None:
            if labels is None:
                raise InputError(f"the batch has no labels: expected 'labels' among {', '.join(inputs)}")
            logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[1]
            self.learning.hear(labels, logits.argmax(dim=-1) != labels, Ticket(**ticket))
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        super().log({**logs, **self.learning.figures()} if "loss" in logs else logs, *args, **options)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **options: Any) -> Any:
        found = resume_from_checkpoint
        if found is True:
            found = get_last_checkpoint(self.args.output_dir)
        if found:
            file = Path(found) / FILE
            if not file.exists():
                raise InputError(
                    f"{found} has no {FILE}: it was saved without the sampler; resume from another checkpoint"
                )
            state = checkpoints.read_state(file)
            with made_from(file):
                self.learning.sampler.load_state_dict(state)
        return super().train(resume_from_checkpoint, *args, **options)


class _SaveSampler(TrainerCallback):
    def __init__(self, sampler: IndexSampler) -> None:
        self.sampler = sampler

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            checkpoints.write(folder / FILE, self.sampler.state_dict())


class _WithTickets:
    """A loader's batches of dicts, each with its ticket inside, as a Trainer takes them."""

    def __init__(self, batches: TicketLoader) -> None:
        self.batches, self.dataset = batches, batches.dataset

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch, ticket in self.batches:
            # A named tuple would not survive the way to the device.
            yield {**batch, TICKET: ticket._asdict()}
