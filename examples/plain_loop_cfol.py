"""The same loop with CFOL: python plain_loop_cfol.py DIR [EPOCHS]

What changed against plain_loop.py: a sampler and our loader, one line that tells the sampler what was wrong,
and the evaluation.
"""

import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

import cfol_fast as cf

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
    sampler = cf.ClassSampler(train, draws=epochs * len(train))
    loader = cf.loader(train, sampler, batch_size=16)
    for epoch in range(epochs):
        for x, y, ticket in loader:
            logits = model(attack(model, x, y))
            loss = cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sampler.update(y, logits.argmax(1) != y, p=ticket)
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    result = cf.evaluate(model, test, attack={"eps": EPS, "steps": 20})
    print(result.table())


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
