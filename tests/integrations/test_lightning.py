"""SamplerCallback in Lightning's own Trainer: the sampler learns as in a plain loop, survives a checkpoint,
and is logged.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cfol_fast as cf
from cfol_fast.errors import InputError
from cfol_fast.integrations.lightning import SamplerCallback

LABELS = torch.arange(60) % 3
IMAGES = torch.rand(60, 1, 4, 4, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(IMAGES, LABELS)
NAMES = ["cat", "dog", "stop/sign"]


@pytest.fixture(autouse=True)
def _lightning_is_quiet() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")


class Classifier(L.LightningModule):
    """Class 2 counts as wrong whatever the model says, so that it is known what the sampler learns."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))

    def training_step(self, batch: Any, _: int) -> Any:
        x, y, _ = batch
        return {"loss": nn.functional.cross_entropy(self.model(x), y), "wrong": y == 2}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def new_sampler() -> cf.ClassSampler:
    return cf.ClassSampler(LABELS, eta=0.01)


def fit(
    epochs: int, sampler: Any, module: Any = None, data: Any = None, checkpoint: Any = None, **options: Any
) -> L.Trainer:
    callback = SamplerCallback(sampler, NAMES)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = L.Trainer(max_epochs=epochs, callbacks=[callback], logger=False, **{**quiet, **options})
    data = cf.loader(DATA, sampler, batch_size=8) if data is None else data
    trainer.fit(Classifier() if module is None else module, data, ckpt_path=checkpoint)
    return trainer


def test_the_sampler_learns_as_in_a_plain_loop() -> None:
    plain, inside = new_sampler(), new_sampler()
    for _ in range(2):
        for _, y, ticket in cf.loader(DATA, plain, batch_size=8):
            plain.update(y, y == 2, p=ticket)
    fit(2, inside)
    assert inside.fingerprint() == plain.fingerprint()
    assert inside.p.argmax() == 2


def test_the_worst_class_and_p_are_logged() -> None:
    sampler = new_sampler()
    logged = fit(1, sampler).callback_metrics
    assert (logged["worst_class"], logged["worst_class_accuracy"]) == (2, 0)
    shares = [logged[f"p/{name}"].item() for name in ("cat", "dog", "stop-sign")]
    assert shares == pytest.approx(sampler.p.tolist())
    assert logged["p/largest"].item() == pytest.approx(shares[2])


def test_a_run_that_continues_from_a_checkpoint_ends_as_one_that_was_not_interrupted(tmp_path: Path) -> None:
    whole, first, second = new_sampler(), new_sampler(), new_sampler()
    modules = Classifier(), Classifier(), Classifier()
    fit(3, whole, modules[0])
    fit(1, first, modules[1]).save_checkpoint(tmp_path / "one.ckpt")
    fit(3, second, modules[2], checkpoint=tmp_path / "one.ckpt")
    assert second.fingerprint() == whole.fingerprint() != first.fingerprint()
    assert torch.equal(modules[2].model[1].weight, modules[0].model[1].weight)


def test_a_training_step_that_does_not_say_what_was_wrong_is_told_how() -> None:
    class Silent(Classifier):
        def training_step(self, batch: Any, number: int) -> Any:
            return super().training_step(batch, number)["loss"]

    with pytest.raises(InputError, match=r'return \{"loss": loss, "wrong": logits.argmax\(1\) != y\}'):
        fit(1, new_sampler(), Silent())


def test_a_batch_without_a_ticket_is_told_where_to_get_one() -> None:
    class Plain(Classifier):
        def training_step(self, batch: Any, number: int) -> Any:
            return super().training_step((*batch, None), number)

    with pytest.raises(InputError, match=r"train with cf.loader\(dataset, sampler, batch_size\)"):
        fit(1, new_sampler(), Plain(), DataLoader(DATA, batch_size=8))


class CheckRanks(Classifier):
    """Rank 0 writes down what the sampler has become, once all ranks agree on it."""

    def __init__(self, sampler: cf.ClassSampler, folder: Path) -> None:
        super().__init__()
        self.sampler, self.folder = sampler, folder

    def on_train_end(self) -> None:
        self.sampler.check_ranks()
        if self.global_rank == 0:
            (self.folder / "found").write_text(f"{self.trainer.world_size} {self.sampler.fingerprint()}")


def test_two_processes_learn_together_what_one_learns_from_twice_the_batch(tmp_path: Path) -> None:
    alone, together = new_sampler(), new_sampler()
    fit(1, alone, data=cf.loader(DATA, alone, batch_size=10))
    module, data = CheckRanks(together, tmp_path), cf.loader(DATA, together, batch_size=5)
    fit(1, together, module, data, devices=2, strategy="ddp_fork")
    assert (tmp_path / "found").read_text() == f"2 {alone.fingerprint()}"
