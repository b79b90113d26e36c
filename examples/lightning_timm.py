"""Adversarial training of a timm model with Lightning, as one writes it without cfol_fast: python
lightning_timm.py DIR [EPOCHS]

DIR holds train/<class>/*.png and test/<class>/*.png, all of one size. lightning_timm_cfol.py is the same with
CFOL.
"""

import sys

import lightning as L
import timm
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

EPS = 8 / 255


def attack(model, x, y):
    x_adv = (x + torch.empty_like(x).uniform_(-EPS, EPS)).clamp(0, 1).requires_grad_()
    (grad,) = torch.autograd.grad(cross_entropy(model(x_adv), y), x_adv)
    return (x + (x_adv - x + 1.25 * EPS * grad.sign()).clamp(-EPS, EPS)).clamp(0, 1).detach()


class Classifier(L.LightningModule):
    def __init__(self, num_classes):
        super().__init__()
        self.model = timm.create_model("resnet18", num_classes=num_classes)

    def training_step(self, batch, _):
        x, y = batch
        logits = self.model(attack(self.model, x, y))
        loss = cross_entropy(logits, y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main(folder, epochs=3):
    train = ImageFolder(f"{folder}/train", ToTensor())
    test = ImageFolder(f"{folder}/test", ToTensor())
    module = Classifier(len(train.classes))
    trainer = L.Trainer(max_epochs=epochs)
    trainer.fit(module, DataLoader(train, batch_size=16, shuffle=True))
    model = module.model.eval()
    right = sum(
        (model(attack(model, x, y)).argmax(1) == y).sum().item() for x, y in DataLoader(test, batch_size=16)
    )
    print(f"robust accuracy {right / len(test):.1%}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
