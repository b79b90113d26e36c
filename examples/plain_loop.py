"""Adversarial training over an ImageFolder, as one writes it without cfol_fast: python plain_loop.py DIR
[EPOCHS]

DIR holds train/<class>/*.png and test/<class>/*.png, all of one size. plain_loop_cfol.py is the same with
CFOL.
"""

import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

EPS = 8 / 255


def attack(model, x, y):
    x_adv = (x + torch.empty_like(x).uniform_(-EPS, EPS)).clamp(0, 1).requires_grad_()
    (grad,) = torch.autograd.grad(cross_entropy(model(x_adv), y), x_adv)
    return (x + (x_adv - x + 1.25 * EPS * grad.sign()).clamp(-EPS, EPS)).clamp(0, 1).detach()


def main(folder, epochs=3):
    train = ImageFolder(f"{folder}/train", ToTensor())
    test = ImageFolder(f"{folder}/test", ToTensor())
    model = nn.Sequential(
        nn.LazyConv2d(16, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.LazyLinear(len(train.classes)),
    )
    model(train[0][0][None])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(train, batch_size=16, shuffle=True)
    for epoch in range(epochs):
        for x, y in loader:
            logits = model(attack(model, x, y))
            loss = cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    right = sum(
        (model(attack(model, x, y)).argmax(1) == y).sum().item() for x, y in DataLoader(test, batch_size=16)
    )
    print(f"robust accuracy {right / len(test):.1%}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
