"""One epoch of CFOL-AT end to end, on the demo's network and the embedded images: the trainer against an
expert's loop and against the usual way.

The expert: images in memory, BatchNorm folded, and one PGD step compiled as a whole or run plainly, whichever
is faster. The usual way: PIL images in a `DataLoader` with its best number of workers, `torch.multinomial`
for every batch, torchattacks' PGD.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from torchvision import transforms

from benchmarks import images as pictures
from benchmarks import peers
from benchmarks.bandits import TorchBandit
from benchmarks.pgd import FORMATS
from benchmarks.rows import Row, faster, main
from benchmarks.steps import ExpertStep, Problem, UsualStep
from benchmarks.timing import interleaved, winner
from cfol_fast import data, models
from cfol_fast.runs.config import TrainConfig
from cfol_fast.training.images import load_images
from cfol_fast.training.parts import build

EPS, BATCH = 0.1, 128


def trainer_epoch(steps: int | None) -> Callable[[], None]:
    """The loop of `cfol-fast train cfol`, without validation and checkpoints."""
    config = TrainConfig(
        method="cfol",
        epochs=1,
        batch_size=BATCH,
        steps_per_epoch=steps,
        data={"name": "fashion-mini", "holdout": "none"},
        optimizer={"lr": 0.01, "schedule": "constant"},
    )
    trainer = build(config, load_images(config))

    def epoch() -> None:
        batches = trainer.state.batches.feed(trainer.length.steps_per_epoch)
        for _ in range(trainer.length.steps_per_epoch):
            trainer.take_step(batches)

    return epoch


class MultinomialBatches(Sampler[list[int]]):
    """Batches for a DataLoader, each drawn when the loader asks for it."""

    def __init__(self, bandit: TorchBandit, steps: int) -> None:
        self.bandit, self.steps = bandit, steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.steps):
            yield self.bandit.draw(BATCH)[0].tolist()


class UsualDemo(UsualStep):
    """The usual step on the demo's problem; the loader brings the batch."""

    def __init__(self, problem: Problem, images: data.ImageSet, memory_format: torch.memory_format) -> None:
        super().__init__(problem, images.images, images.labels)
        model = models.create("demo-cnn", 10, image_size=28, in_channels=1, mean=(0.2860,), std=(0.3530,))
        self.use(model, memory_format)

    def one(self, x: Tensor, y: Tensor) -> None:
        # The p of the draw is gone when a worker's batch arrives; the present one is what such code divides
        # by.
        p = 0.5 / 10 + 0.5 * torch.softmax(self.bandit.w, 0)
        self.train(x, y, p)


def usual_epoch(steps: int, memory_format: torch.memory_format, workers: int) -> Callable[[], None]:
    images = data.load("fashion-mini").train
    problem = replace(Problem(network="demo-cnn", batch=BATCH, side=28), eps=EPS, images=len(images))
    step = UsualDemo(problem, images, memory_format)
    transform = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])
    dataset = pictures.PILImages(images, transform, mode="L")
    batches = MultinomialBatches(step.bandit, steps)

    def epoch() -> None:
        for x, y in DataLoader(dataset, batch_sampler=batches, num_workers=workers):
            step.one(x, y)

    return epoch


class ExpertDemo(ExpertStep):
    """The expert's step on the demo's problem; images are mirrored and not cropped."""

    def __init__(
        self, problem: Problem, images: data.ImageSet, compiled: bool, memory_format: torch.memory_format
    ) -> None:
        pixels = images.images.permute(0, 3, 1, 2).float() / 255
        super().__init__(problem, compiled, memory_format, pixels, images.labels)
        self.use(
            models.create("demo-cnn", 10, image_size=28, in_channels=1, mean=(0.2860,), std=(0.3530,)),
            memory_format,
        )

    def __call__(self) -> None:
        idx, p = self.bandit.draw(self.problem.batch)
        x = self.images[idx]
        x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x)
        self.train(x, self.labels[idx], p)


def expert_epochs(steps: int, tiny: bool) -> dict[str, Callable[[], None]]:
    """What the expert may choose from: compiled or not, in both layouts."""
    images = data.load("fashion-mini").train
    problem = replace(Problem(network="demo-cnn", batch=BATCH, side=28), eps=EPS, images=len(images))
    ways = {
        f"{'one compiled step' if compiled else 'a plain loop'}, {layout}": ExpertDemo(
            problem, images, compiled, FORMATS[layout]
        )
        for compiled in ((False,) if tiny else (False, True))
        for layout in FORMATS
    }

    def epoch_of(step: ExpertDemo) -> Callable[[], None]:
        def epoch() -> None:
            for _ in range(steps):
                step()

        return epoch

    return {name: epoch_of(step) for name, step in ways.items()}


def measure(tiny: bool) -> list[Row]:
    peers.require(("torchattacks",), tiny)
    steps = 2 if tiny else round(len(data.load("fashion-mini").train) / BATCH)
    ways = {
        f"{workers} workers, {layout}": (FORMATS[layout], workers)
        for workers in ((0,) if tiny else (0, 1, 2))
        for layout in FORMATS
    }
    # Whole epochs: in shorter ones the start of the workers would weigh too much.
    best = winner({name: usual_epoch(steps, *way) for name, way in ways.items()}, warm_up=0)
    experts = expert_epochs(steps, tiny)
    best_expert = winner(experts)
    calls = {
        "ours": trainer_epoch(steps),
        "usual": usual_epoch(steps, *ways[best]),
        "expert": experts[best_expert],
    }
    timings = interleaved(calls, 2 if tiny else 4)
    name = f"one epoch end to end, demo network, {steps * BATCH:,} embedded images"
    against = "the usual way: PIL `DataLoader`, `torch.multinomial` per batch, torchattacks PGD"
    note = "both without validation and checkpoints"
    return [
        faster(
            name,
            "an expert's loop: images in memory, BatchNorm folded",
            timings["ours"],
            timings["expert"],
            1.3,
            f"theirs with {best_expert}, its best; {note}",
        ),
        faster(
            name,
            against,
            timings["ours"],
            timings["usual"],
            2.2,
            f"theirs with {best}, its best; {note}",
        ),
    ]


if __name__ == "__main__":
    main(measure)
