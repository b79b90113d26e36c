"""The training steps that are compared: ours, the bare passes any such step must do, and the way it is
usually written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import peers
from benchmarks.bandits import TorchBandit
from cfol_fast import data, models
from cfol_fast.data.registry import paper_augment
from cfol_fast.models.spec import ModelSpec
from cfol_fast.runs.config import TrainConfig
from cfol_fast.training.images import RunImages
from cfol_fast.training.parts import build

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True)
class Problem:
    """What is trained: CIFAR's shape by default, on random images, which take the same time as real ones."""

    network: str = "resnet18"
    batch: int = 64
    classes: int = 10
    images: int = 5000
    side: int = 32
    channels: int = 3
    eps: float = 8 / 255
    steps: int = 7
    device: str = "cpu"

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        made = models.create(
            self.network,
            self.classes,
            image_size=self.side,
            in_channels=self.channels,
            mean=MEAN[: self.channels],
            std=STD[: self.channels],
        )
        return made.to(self.device)

    def image_set(self) -> data.ImageSet:
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(
            0, 256, (self.images, self.side, self.side, self.channels), dtype=torch.uint8, generator=generator
        )
        return data.ImageSet(
            images, torch.arange(self.images) % self.classes, [str(c) for c in range(self.classes)]
        )

    def batch_of(self, memory_format: torch.memory_format = torch.contiguous_format) -> tuple[Tensor, Tensor]:
        torch.manual_seed(1)
        x = torch.rand(self.batch, self.channels, self.side, self.side).contiguous(
            memory_format=memory_format
        )
        return x.to(self.device), (torch.arange(self.batch) % self.classes).to(self.device)


# The networks of the table: CIFAR's ResNet-18, and the demo as it is.
RESNET = Problem()
DEMO = Problem("demo-cnn", batch=128, side=28, channels=1, eps=0.1)


def tiny_of(problem: Problem) -> Problem:
    """The same question at the smallest size, for a smoke test."""
    network = "resnet18@0.125" if problem.network.startswith("resnet18") else problem.network
    return replace(problem, network=network, batch=4, images=100, steps=2)


def sgd(model: nn.Module) -> torch.optim.SGD:
    """As torch chooses it itself: parameter by parameter on the CPU, all at once on a GPU (and here on its
    stand-in, meta).
    """
    together = next(model.parameters()).device.type != "cpu"
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, foreach=together)


class OurStep:
    """A whole step of the trainer: draw, gather + augment, attack, objective, optimiser, feedback, tally."""

    def __init__(
        self,
        problem: Problem,
        method: str = "cfol",
        compile: bool = False,
        decay: float = 0.0,
        precision: str = "float32",
    ) -> None:
        config = TrainConfig(
            method=method,
            batch_size=problem.batch,
            compile=compile,
            precision=precision,
            ema={"decay": decay},
            data={"name": "cifar10"},
            model={"name": problem.network},
            attack={"eps": problem.eps, "steps": problem.steps},
            optimizer={"lr": 0.01, "schedule": "constant"},
        )
        made = problem.image_set()
        source = data.ResidentSource(made, augment=paper_augment(problem.side), device=problem.device)
        channels = problem.channels
        spec = ModelSpec(
            problem.network, problem.classes, problem.side, channels, MEAN[:channels], STD[:channels]
        )
        images = RunImages(made.classes, source, made.labels, None, "none", source, spec, "paper")
        # The meta device is for counting ops alone: no command takes it.
        config = config.with_settled({"device": problem.device})
        self.images = images
        self.trainer = build(config, images)
        self.batches = self.trainer.state.batches.feed(10**9)

    def __call__(self) -> None:
        self.trainer.take_step(self.batches)


def bare_passes(problem: Problem, momentum: bool = False) -> Callable[[], None]:
    """7 x (forward + input backward) + 1 x (forward + backward): eager, contiguous, on a batch that is there
    already.

    momentum: and a step of SGD, which keeps as many numbers as there are weights.
    """
    model = problem.model()
    optimizer = sgd(model) if momentum else None
    x, y = problem.batch_of()

    def passes() -> None:
        model.eval()
        for _ in range(problem.steps):
            leaf = x.detach().requires_grad_()
            torch.autograd.grad(F.cross_entropy(model(leaf), y), leaf)
        model.train()
        model.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), y).backward()
        if optimizer is not None:
            optimizer.step()

    return passes


class UsualStep:
    """CFOL-AT as it is usually put together: torch.multinomial for the draw, torchattacks for the attack,
    eager torch otherwise.

    `images`: float (N, C, H, W), of which the batch is taken by indexing; a loader's work is not part of this
    step.
    """

    def __init__(self, problem: Problem, images: Tensor | None = None, labels: Tensor | None = None) -> None:
        self.problem = problem
        if images is None or labels is None:
            made = problem.image_set()
            images, labels = made.images.permute(0, 3, 1, 2).float() / 255, made.labels
        self.images, self.labels = images.to(problem.device), labels.to(problem.device)
        self.bandit = TorchBandit(labels, problem.classes, problem.device)
        self.use(problem.model())

    def use(self, model: nn.Module, memory_format: torch.memory_format | None = None) -> None:
        """memory_format: of the weights and of each batch; without it both are taken as they come."""
        if memory_format is not None:
            model = model.to(memory_format=memory_format)  # type: ignore[call-overload]
        self.memory_format, problem = memory_format, self.problem
        self.model, self.optimizer = model.train(), sgd(model)
        make = peers.torchattacks_pgd if peers.installed("torchattacks") else in_eval_mode
        self.attack = make(model, problem.eps, problem.eps / 4, problem.steps)

    def __call__(self) -> None:
        idx, p = self.bandit.draw(self.problem.batch)
        x, y = flip_and_crop(self.images[idx]), self.labels[idx]
        self.train(x, y, p)

    def train(self, x: Tensor, y: Tensor, p: Tensor) -> None:
        if self.memory_format is not None:
            x = x.contiguous(memory_format=self.memory_format)
        x_adv = self.attack(x, y)
        assert isinstance(x_adv, Tensor)
        self.model.train()
        logits = self.model(x_adv)
        loss = F.cross_entropy(logits, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.bandit.update(y, (logits.detach().argmax(1) != y).float(), p)


class ExpertStep(UsualStep):
    """CFOL-AT as an expert would write it without this package: images in memory, and BatchNorm folded for
    the attack, which runs plainly or, `compiled`, as one compiled step.
    """

    def __init__(
        self,
        problem: Problem,
        compiled: bool = False,
        memory_format: torch.memory_format = torch.channels_last,
        images: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> None:
        self.compiled, self.expert_format = compiled, memory_format
        super().__init__(problem, images, labels)

    def use(self, model: nn.Module, memory_format: torch.memory_format | None = None) -> None:
        problem, self.memory_format = self.problem, memory_format or self.expert_format
        self.model = model.to(memory_format=self.memory_format).train()  # type: ignore[call-overload]
        self.optimizer = sgd(self.model)
        self.folded = peers.Folded(self.model)
        make = peers.compiled_pgd if self.compiled else peers.plain_pgd
        self.pgd = make(self.folded.network, problem.eps, problem.eps / 4, problem.steps)

    def attack(self, x: Tensor, y: Tensor) -> object:
        self.folded.refresh()
        return self.pgd(x, y)


def in_eval_mode(model: nn.Module, eps: float, step: float, steps: int) -> peers.Attack:
    """torchattacks' loop where torchattacks is not installed (the smoke test)."""
    attack = peers.plain_pgd(model, eps, step, steps)

    def run(x: Tensor, y: Tensor) -> object:
        model.eval()
        adv = attack(x, y)
        model.train()
        return adv

    return run


def flip_and_crop(x: Tensor, pad: int = 4) -> Tensor:
    """x: (B, C, H, W) -> the same, each image mirrored or not and cropped after padding, through `unfold`."""
    batch, _, height, width = x.shape
    windows = F.pad(x, (pad,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    each = torch.arange(batch, device=x.device)
    top, left = torch.randint(0, 2 * pad + 1, (2, batch), device=x.device)
    x = windows[each, :, top, left]
    return torch.where((torch.rand(batch, 1, 1, 1, device=x.device) < 0.5), x.flip(3), x)


def bandit_only(step: OurStep, batch: int) -> Callable[[], None]:
    """The sampler's part of a step: the draw and the feedback."""
    sampler, labels = step.trainer.step.sampler, step.images.train.labels
    wrong = (torch.arange(batch, device=labels.device) % 2).float()
    y = labels[:batch]

    def draw_and_observe() -> None:
        idx = sampler.draw(batch)
        sampler.observe(idx, y, wrong, sampler.ticket())

    return draw_and_observe
