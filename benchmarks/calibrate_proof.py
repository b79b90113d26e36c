"""`python -m benchmarks.calibrate_proof [NETWORK ...] [--images N]`: how far apart right networks are, which
sets the limits of `frozen.proof`.

For every network: the largest relative errors over the images, of logits and of input gradients, fast against
plain, and the share of the images whose gradient is off by more than the limit. Weights are fresh ones with
BatchNorm statistics as after training, or those of a checkpoint; images are uniform noise and smooth
patterns, in [0, 1]. No question of the table: nothing here is timed.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from torch import Tensor, nn

from cfol_fast import load, models
from cfol_fast.frozen import evaluation_mode, proof
from cfol_fast.frozen.autotune import deciding_nothing
from cfol_fast.frozen.tracing import record_for

NETWORKS = (
    "demo-cnn",
    "resnet18",
    "preact-resnet18",
    "wrn-28-10@0.25",
    "torchvision:resnet18",
    "timm:resnet18",
)
BATCH = 50


def images(count: int, seed: int) -> Tensor:
    """Half noise, half smooth patterns with a little noise."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(count // 2, 3, 32, 32, generator=generator)
    coarse = torch.rand(count - count // 2, 3, 5, 5, generator=generator)
    smooth = nn.functional.interpolate(coarse, size=32, mode="bicubic").clamp(0, 1)
    return torch.cat((noise, (smooth + 0.02 * torch.randn(smooth.shape, generator=generator)).clamp(0, 1)))


def awake(model: nn.Module) -> nn.Module:
    """Fresh statistics hide nothing, and hardly any unit is near its kink."""
    model.train()
    with torch.no_grad():
        for seed in range(8):
            model(images(BATCH, 1000 + seed))
    return model.eval()


def errors_of(model: nn.Module, count: int) -> tuple[Tensor, Tensor]:
    """(count,) relative errors of logits, and of gradients."""
    found: list[tuple[Tensor, Tensor]] = []
    with evaluation_mode(model), torch.no_grad(), deciding_nothing():
        record = record_for(model)
        if record.plan is None:
            raise SystemExit(f"this network does not run fast: {record.reason}")
        for seed in range(-(-count // BATCH)):
            x = images(BATCH, seed)
            plain = proof.logits_and_gradient(lambda x: model(x.clone()), x)
            with record.plan.frozen(model, None) as layers:
                forward = partial(record.plan.forward, model, layers)
                fast = proof.logits_and_gradient(forward, x.contiguous(memory_format=torch.channels_last))
            assert plain is not None
            assert fast is not None
            found.append((proof.errors(fast[0], plain[0]).cpu(), proof.errors(fast[1], plain[1]).cpu()))
    return torch.cat([one for one, _ in found]), torch.cat([one for _, one in found])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=NETWORKS, help="names of models, or checkpoints")
    parser.add_argument("--images", type=int, default=1000)
    arguments = parser.parse_args()
    for name in arguments.networks:
        torch.manual_seed(0)
        is_file = name.endswith(".pt")
        model = load(name) if is_file else awake(models.create(name, 10))
        logits, gradient = errors_of(model.eval(), arguments.images)
        limit = proof.GRADIENT[torch.float32]
        batches = (gradient[: len(gradient) // 8 * 8].view(-1, 8) > limit).sum(1)
        print(
            f"{name}: {len(logits)} images; logits {float(logits.max()):.1e}; gradient: largest"
            f" {float(gradient.max()):.1e}, median {float(gradient.median()):.1e}, 99 %"
            f" {float(gradient.quantile(0.99)):.1e}, {int((gradient > limit).sum())} above {limit:g}, at most"
            f" {int(batches.max())} of 8 at once",
            flush=True,
        )


if __name__ == "__main__":
    main()
