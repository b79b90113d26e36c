"""The attack libraries behind one interface, each at its best: batched, no gradients of weights, without its
own checks.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Attack = Callable[[Tensor, Tensor], object]
EAGER = "plain eager PyTorch"


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def require(packages: tuple[str, ...], tiny: bool) -> list[str]:
    """Those of `packages` that are installed.

    A real measurement needs all of them; a smoke test takes those that are there.
    """
    missing = [package for package in packages if not installed(package)]
    if missing and not tiny:
        sys.exit(f"these peers are not installed: {', '.join(missing)}; run: make bench-setup")
    return [package for package in packages if package not in missing]


def plain_pgd(model: nn.Module, eps: float, step: float, steps: int) -> Attack:
    """PGD as it is usually written; the loop of torchattacks, without its wrapper."""

    def attack(x: Tensor, y: Tensor) -> Tensor:
        adv = (x + torch.empty_like(x).uniform_(-eps, eps)).clamp(0, 1)
        for _ in range(steps):
            adv.requires_grad_()
            grad = torch.autograd.grad(F.cross_entropy(model(adv), y), adv)[0]
            adv = adv.detach() + step * grad.sign()
            adv = (x + (adv - x).clamp(-eps, eps)).clamp(0, 1)
        return adv

    return attack


def torchattacks_pgd(model: nn.Module, eps: float, step: float, steps: int) -> Attack:
    import torchattacks

    return torchattacks.PGD(model, eps=eps, alpha=step, steps=steps)


def foolbox_pgd(model: nn.Module, eps: float, step: float, steps: int) -> Attack:
    """`run` instead of the call, which would add a forward pass to see which examples were fooled."""
    import foolbox

    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1))
    attack = foolbox.attacks.LinfPGD(abs_stepsize=step, steps=steps)
    return lambda x, y: attack.run(wrapped, x, foolbox.Misclassification(y), epsilon=eps)


def art_pgd(
    model: nn.Module, eps: float, step: float, steps: int, shape: tuple[int, ...], classes: int
) -> Attack:
    """ART takes and returns numpy arrays; they share the tensors' memory."""
    from art.attacks.evasion import ProjectedGradientDescentPyTorch
    from art.estimators.classification import PyTorchClassifier

    logging.getLogger("art").setLevel(logging.ERROR)
    wrapped = PyTorchClassifier(
        model,
        nn.CrossEntropyLoss(),
        input_shape=shape,
        nb_classes=classes,
        clip_values=(0.0, 1.0),
        device_type="cpu",
    )
    options = {"eps": eps, "eps_step": step, "max_iter": steps, "num_random_init": 1, "verbose": False}
    attack = ProjectedGradientDescentPyTorch(wrapped, batch_size=1024, **options)
    return lambda x, y: attack.generate(x.numpy(), y.numpy())


def cleverhans_pgd(model: nn.Module, eps: float, step: float, steps: int) -> Attack:
    import numpy as np
    from cleverhans.torch.attacks.projected_gradient_descent import projected_gradient_descent

    return lambda x, y: projected_gradient_descent(
        model, x, eps, step, steps, np.inf, 0.0, 1.0, y, rand_init=True, sanity_checks=False
    )


def apgd(model: nn.Module, eps: float, steps: int) -> Attack:
    """AutoAttack's APGD: another attack, here with the same number of passes forward and backward."""
    from pyautoattack.autopgd_base import APGDAttack

    attack = APGDAttack(
        model, n_iter=max(1, steps - 1), norm="Linf", eps=eps, loss="ce", device="cpu", verbose=False
    )
    attack.init_hyperparam(torch.zeros(1, 1, 1, 1))

    def run(x: Tensor, y: Tensor) -> object:
        attack.init_hyperparam(x)
        return attack.attack_single_run(x, y)

    return run


PACKAGES = ("torchattacks", "foolbox", "art", "cleverhans", "pyautoattack")


def pgd_attacks(
    model: nn.Module, eps: float, step: float, steps: int, shape: tuple[int, ...], classes: int, tiny: bool
) -> dict[str, Attack]:
    """Every peer's attack on `model`, which is set to eval mode without gradients for its weights."""
    model = model.eval().requires_grad_(False)
    makers: dict[str, Callable[[], Attack]] = {
        "torchattacks": lambda: torchattacks_pgd(model, eps, step, steps),
        "foolbox": lambda: foolbox_pgd(model, eps, step, steps),
        "art": lambda: art_pgd(model, eps, step, steps, shape, classes),
        "cleverhans": lambda: cleverhans_pgd(model, eps, step, steps),
        "pyautoattack": lambda: apgd(model, eps, steps),
    }
    shown = {"pyautoattack": "pyautoattack's APGD with as many passes"}
    found = {shown.get(name, name): makers[name]() for name in require(PACKAGES, tiny)}
    return {EAGER: plain_pgd(model, eps, step, steps), **found}
