"""The same training with CFOL: python lightning_timm_cfol.py DIR [EPOCHS]

What changed against lightning_timm.py: a sampler, its callback and our loader, what training_step takes and
returns, and the evaluation.
"""

import sys

import lightning as L
import timm
import torch
from torch.nn.functional import cross_entropy
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

import cfol_fast as cf
from cfol_fast.integrations.lightning import SamplerCallback

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
        x, y, _ = batch
        logits = self.model(attack(self.model, x, y))
        loss = cross_entropy(logits, y)
        self.log("loss", loss, prog_bar=True)
        return {"loss": loss, "wrong": logits.argmax(1) != y}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main(folder, epochs=3):
    train = ImageFolder(f"{folder}/train", ToTensor())
    test = ImageFolder(f"{folder}/test", ToTensor())
    module = Classifier(len(train.classes))
    sampler = cf.ClassSampler(train, draws=epochs * len(train))
    callback = SamplerCallback(sampler, train.classes)
    trainer = L.Trainer(max_epochs=epochs, callbacks=[callback])
    trainer.fit(module, cf.loader(train, sampler, batch_size=16))
    print(cf.evaluate(module.model, test, attack={"eps": EPS, "steps": 20}).table())


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
