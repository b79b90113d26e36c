"""A checkpoint that Lightning itself wrote, evaluated: with plain hyperparameters it is read, otherwise it
says how to convert it.
"""

from __future__ import annotations

import lightning
import pytest
import torch
import torchvision

from cfol_fast.errors import InputError
from cfol_fast.evaluation.foreign_weights import load_weights


class Classifier(lightning.LightningModule):
    def __init__(self, lr: float = 0.1, extra: object = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = torchvision.models.squeezenet1_1(num_classes=3)
        self.weights = torch.nn.CrossEntropyLoss(weight=torch.ones(3))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return self.weights(self.model(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])


def saved(module: Classifier) -> None:
    images = torch.utils.data.TensorDataset(torch.rand(4, 3, 32, 32), torch.tensor([0, 1, 2, 0]))
    trainer = lightning.Trainer(
        max_steps=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu"
    )
    trainer.fit(module, torch.utils.data.DataLoader(images, batch_size=4))
    trainer.save_checkpoint("last.ckpt")


def test_lightnings_own_file_is_read() -> None:
    module = Classifier(lr=0.01)
    saved(module)
    model = load_weights(
        "last.ckpt", "torchvision:squeezenet1_1", num_classes=3, mean=[0.0] * 3, std=[1.0] * 3
    )
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(x), module.model.eval()(x))


class Setting:
    pass


def test_objects_among_the_hyperparameters_are_refused_with_how_to_convert_the_file() -> None:
    saved(Classifier(extra=Setting()))
    with pytest.raises(InputError, match=r"holds Python objects .* convert it once: .*weights_only=False"):
        load_weights("last.ckpt", num_classes=3)
