"""The attack libraries behind one interface, each at its best: batched, no gradients of weights, without its
own checks.
"""

from __future__ import annotations

import copy
import importlib.util
import logging
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.experimental import optimization
from torch.nn.utils.fusion import fuse_conv_bn_weights

from benchmarks.rows import FOLDED

Attack = Callable[[Tensor, Tensor], object]
EAGER = "plain eager PyTorch"
COMPILED = "one compiled step, BatchNorm folded"
# What an expert writes without an attack library; all other peers are libraries.
EXPERTS = (EAGER, FOLDED, COMPILED)


class InBfloat16(nn.Module):
    """The model under autocast, as users of these libraries give it to them: pixels and logits stay
    float32.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            logits: Tensor = self.model(x)
        return logits.float()


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


class Folded:
    """The model in eval mode with each BatchNorm folded into its convolution, by torch's own fx pass.

    Training changes the weights, so `refresh` folds them again, in place: a compiled step keeps its code.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        before = fx.symbolic_trace(model)
        self.network = optimization.fuse(copy.deepcopy(model).eval()).requires_grad_(False)
        modules = dict(model.named_modules())
        self.pairs = [
            (str(node.args[0].target), str(node.target))
            for node in before.graph.nodes
            if node.op == "call_module"
            and isinstance(modules[str(node.target)], nn.BatchNorm2d)
            and isinstance(node.args[0], fx.Node)
            and isinstance(modules.get(str(node.args[0].target)), nn.Conv2d)
            and len(node.args[0].users) == 1
        ]

    @torch.no_grad()
    def refresh(self) -> None:
        """Takes the model's present weights and BatchNorm statistics."""
        folded = {f"{conv}.{kind}" for conv, _ in self.pairs for kind in ("weight", "bias")}
        ours = {**dict(self.network.named_parameters()), **dict(self.network.named_buffers())}
        theirs = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        for name, tensor in ours.items():
            if name not in folded:
                tensor.copy_(theirs[name])
        for conv, norm in self.pairs:
            c, n = self.model.get_submodule(conv), self.model.get_submodule(norm)
            assert isinstance(c, nn.Conv2d)
            assert isinstance(n, nn.BatchNorm2d)
            assert n.running_mean is not None
            assert n.running_var is not None
            weight, bias = fuse_conv_bn_weights(
                c.weight, c.bias, n.running_mean, n.running_var, n.eps, n.weight, n.bias
            )
            ours[f"{conv}.weight"].copy_(weight)
            ours[f"{conv}.bias"].copy_(bias)


def compiled_pgd(
    network: nn.Module, eps: float, step: float, steps: int, backend: str = "inductor"
) -> Attack:
    """PGD of which one step, gradient and projection together, is compiled as a whole."""

    @torch.compile(backend=backend)
    def one_step(x: Tensor, adv: Tensor, y: Tensor) -> Tensor:
        grad = torch.func.grad(lambda images: F.cross_entropy(network(images), y))(adv)
        adv = adv + step * grad.sign()
        return (x + (adv - x).clamp(-eps, eps)).clamp(0, 1)

    def attack(x: Tensor, y: Tensor) -> Tensor:
        adv = (x + torch.empty_like(x).uniform_(-eps, eps)).clamp(0, 1)
        with torch.no_grad():
            for _ in range(steps):
                adv = one_step(x, adv, y)
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
    experts = {EAGER: plain_pgd(model, eps, step, steps)}
    if isinstance(model, InBfloat16):
        network: nn.Module = InBfloat16(Folded(model.model).network)
    else:
        network = Folded(model).network
    experts[FOLDED] = plain_pgd(network, eps, step, steps)
    if not tiny:
        # Compiling takes longer than a smoke test may.
        experts[COMPILED] = compiled_pgd(network, eps, step, steps)
    return {**experts, **found}
