"""AutoAttack, standard version, on a robust checkpoint: our evaluation against pyautoattack's own run on the
plain model.

Both get the same images in the same batches and take turns batch by batch. The flags of all images are
compared, and each that differs is listed.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.active_set import trained
from benchmarks.peers import require
from benchmarks.rows import Row, at_most, faster, main
from benchmarks.timing import THREADS, Timing, sample
from cfol_fast import data
from cfol_fast.evaluation import AutoAttack
from cfol_fast.evaluation.autoattack import STANDARD

EPS, TARGET = 0.1, 1.3
# Of a thousand images; where the arithmetic differs by rounding, an image on the edge may fall to either
# side.
DIFFERENT = 0.003
Run = Callable[[Tensor, Tensor], Tensor]


def ours(model: nn.Module, attacks: Sequence[str]) -> Run:
    def run(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            clean = model(x).argmax(1)
        return AutoAttack(model, EPS, attacks=attacks).run(x, y, clean, x.device, batch_size=len(x)) == y

    return run


def theirs(model: nn.Module, attacks: Sequence[str]) -> Run:
    """On a copy without gradients for weights; its `view` needs the contiguous layout."""
    import pyautoattack

    logging.getLogger("auto-attack").disabled = True
    plain = copy.deepcopy(model).eval().requires_grad_(False)
    adversary = pyautoattack.AutoAttack(plain, norm="Linf", eps=EPS, seed=0, version="standard", device="cpu")
    adversary.attacks_to_run = list(attacks)

    def run(x: Tensor, y: Tensor) -> Tensor:
        with torch.random.fork_rng():
            _, predicted = adversary.run_standard_evaluation(x, y, batch_size=len(x))
        return predicted == y

    return run


def measure(tiny: bool) -> list[Row]:
    require(("pyautoattack",), tiny=False)
    torch.set_num_threads(THREADS)
    count, batch, attacks = (8, 4, ("apgd-ce",)) if tiny else (1000, 250, STANDARD)
    # As many steps as the demo's twelve epochs.
    model = trained(2 if tiny else 468).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    images = data.load("fashion-mini").test
    assert isinstance(images, data.ImageSet)
    # The images stand class by class: every so many, so that all classes take part.
    chosen = torch.arange(0, len(images), len(images) // count)[:count]
    x = images.images[chosen].permute(0, 3, 1, 2).float().contiguous() / 255
    return rows(model, x, images.labels[chosen], batch, attacks)


def rows(model: nn.Module, x: Tensor, y: Tensor, batch: int, attacks: Sequence[str]) -> list[Row]:
    # Tracing, the races of the layers and oneDNN's kernels come before the timing; one of the attacks needs
    # all of them.
    for make in (ours, theirs):
        make(model, STANDARD[:1])(x[:batch], y[:batch])
    runs = {"ours": ours(model, attacks), "theirs": theirs(model, attacks)}
    sums = {name: Timing([0.0], [0.0]) for name in runs}
    flags: dict[str, list[Tensor]] = {name: [] for name in runs}
    for number, (images, labels) in enumerate(zip(x.split(batch), y.split(batch), strict=True)):
        for name in sorted(runs, reverse=bool(number % 2)):
            wall, cpu = sample(partial(attacked, runs[name], images, labels, flags[name]))
            sums[name].wall[0] += wall
            sums[name].cpu[0] += cpu
    mine, other = (torch.cat(flags[name]) for name in runs)
    name = f"AutoAttack {'standard' if attacks == STANDARD else 'in part'}, {len(x):,} images"
    note = (
        f"demo network after adversarial training, eps {EPS}; robust: ours {mine.float().mean():.1%}, theirs"
        f" {other.float().mean():.1%}"
    )
    against = "pyautoattack on the plain model"
    parts = f"in turns by batches of {batch}, the sum of all"
    return [
        faster(
            f"{name}, time per image",
            against,
            sums["ours"],
            sums["theirs"],
            TARGET,
            f"{note}; {parts}",
            per=len(x),
        ),
        at_most(
            f"{name}, flags that differ", f"{against}: the share of the images", *difference(mine, other)
        ),
    ]


def attacked(run: Run, x: Tensor, y: Tensor, flags: list[Tensor]) -> None:
    flags.append(run(x, y))


def difference(mine: Tensor, other: Tensor) -> tuple[float, float, str]:
    """(share, limit, each image whose flag differs)."""
    different = (mine != other).nonzero().squeeze(1).tolist()
    held = {True: "held", False: "broken"}
    listed = ", ".join(f"{i} (ours {held[bool(mine[i])]}, theirs {held[bool(other[i])]})" for i in different)
    return (
        len(different) / len(mine),
        DIFFERENT,
        f"{len(different)} of {len(mine):,} images{': ' * bool(listed)}{listed}",
    )


if __name__ == "__main__":
    main(measure)
