"""Where the time of a training step goes, before (the usual way) and after (ours), by torch's profiler."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.bfloat16 import usual_step, why_not
from benchmarks.steps import DEMO, RESNET, OurStep, Problem, UsualStep, tiny_of
from benchmarks.timing import THREADS

# Group: how the names of its ops begin; an op belongs to the first group that fits.
GROUPS: dict[str, tuple[str, ...]] = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "mkldnn::_linear"),
    "convolutions, backward": ("aten::convolution_backward", "aten::mkldnn_convolution_backward"),
    "convolutions, forward": (
        "aten::mkldnn_convolution",
        "mkldnn::",
        "aten::_slow_conv",
        "aten::thnn_conv",
        "aten::convolution",
    ),
    "BatchNorm": ("aten::native_batch_norm", "aten::batch_norm", "aten::_batch_norm", "aten::cudnn_batch"),
    "ReLU and its backward": ("aten::relu", "aten::clamp_min", "aten::threshold"),
    "our ops: PGD step and start": ("cfol_fast::pgd",),
    "our ops: gather + augment": ("cfol_fast::gather",),
    "our ops: 3x3 convolutions and their gradients by Winograd": ("cfol_fast::winograd",),
    "our ops: input gradient of the first layer": ("cfol_fast::input_gradient",),
    "our ops: bandit and tally": ("cfol_fast::",),
    "optimiser": ("aten::_fused_sgd", "Optimizer"),
    "copies, casts and changes of layout": (
        "aten::copy_",
        "aten::clone",
        "aten::contiguous",
        "aten::_to_copy",
        "aten::cat",
    ),
    "additions": ("aten::add", "aten::sum"),
}
OTHER = "everything else (elementwise, views, Python)"


def groups_of(step: Callable[[], object], repetitions: int) -> dict[str, float]:
    """Milliseconds of a step by group; the key "" is the whole step."""
    step()
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for _ in range(repetitions):
            step()
    found = dict.fromkeys([*GROUPS, OTHER], 0.0)
    for event in recorded.key_averages():
        found[group_of(event.key)] += event.self_cpu_time_total / 1000 / repetitions
    return found


def group_of(op: str) -> str:
    return next((name for name, starts in GROUPS.items() if op.startswith(starts)), OTHER)


def profiles(tiny: bool) -> str:
    """Of the networks that the table's targets are about, and in bfloat16 of the one that misses its target,
    where it is asked.
    """
    large, small = (tiny_of(RESNET), tiny_of(DEMO)) if tiny else (RESNET, DEMO)
    why = why_not()
    lower = f"In bfloat16 nothing was profiled: {why}." if why else table(large, 1, "bfloat16")
    return "\n\n".join((table(large, 1), table(small, 1 if tiny else 10), lower))


def table(problem: Problem, repetitions: int, precision: str = "float32") -> str:
    usual = usual_step(problem)[1] if precision == "bfloat16" else UsualStep(problem)
    before = groups_of(usual, repetitions)
    after = groups_of(OurStep(problem, precision=precision), repetitions)
    whole = sum(before.values()), sum(after.values())
    images = f"{problem.channels}x{problem.side}x{problem.side}"
    lines = [
        (
            f"{problem.network}, {images} images, {precision}, batch {problem.batch}, PGD-{problem.steps},"
            f" {THREADS} threads; milliseconds of the main thread per step:"
        ),
        "",
        "| where | before (the usual way) | share | after (ours) | share |",
        "|---|---|---|---|---|",
    ]
    for group in found_order(before, after):
        cells = (before[group], 100 * before[group] / whole[0], after[group], 100 * after[group] / whole[1])
        lines.append("| {} | {:.1f} | {:.1f} % | {:.1f} | {:.1f} % |".format(group, *cells))
    lines.append(f"| **together** | {whole[0]:.1f} | | {whole[1]:.1f} | |")
    return "\n".join(lines)


def found_order(before: dict[str, float], after: dict[str, float]) -> list[str]:
    return sorted(
        (name for name in before if before[name] + after[name] > 0.0),
        key=lambda name: -before[name] - after[name],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes, to see that it runs")
    parser.add_argument("--out", type=Path, help="also write it here")
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    text = profiles(args.tiny)
    print(text)
    if args.out:
        args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
