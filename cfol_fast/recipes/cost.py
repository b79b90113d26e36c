"""What a recipe costs, roughly: counted arithmetic at the paper's scale, the cap of a mini run otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfol_fast.recipes.planning import Plan, scale_rules, scales

if TYPE_CHECKING:
    from cfol_fast.runs.config import TrainConfig

# In multiply-adds of one forward pass: a pass forward is 1, backward to the pixels 1, to the weights as well 2.
ATTACK_STEP, TRAINING_STEP = 2.0, 3.0


def hours(config: TrainConfig) -> float:
    """GPU hours of one run at the assumed speed (`scales.toml`: [cost]); an order of magnitude, not a measurement."""
    cost = scales()["cost"]
    area = (cost["side"].get(config.data.name, 32) / 32) ** 2
    macs = cost["giga_macs"].get(config.model.name, cost["giga_macs"]["resnet18"]) * 1e9 * area
    images = cost["images"].get(config.data.name, 50000)
    held = 0.0 if config.data.holdout in ("test", "none") else float(config.data.holdout)
    training = (
        images
        * (1 - held)
        * (TRAINING_STEP + ATTACK_STEP * config.attack.steps * (config.attack.kind != "none"))
    )
    validating = (
        max(images * held, 1000) * (1 + ATTACK_STEP * config.validation.steps) / config.validation.every
    )
    stages = 2 if config.method == "two-run" else 1
    return stages * (config.epochs or 0) * (training + validating) * macs * 2 / (cost["tflops"] * 1e12) / 3600


def estimate(plan: Plan) -> str:
    """ "4 runs" in words of time."""
    jobs = plan.jobs()
    if plan.scale == "mini":
        minutes = scale_rules("mini", plan.root)["minutes_a_run"] * sum(
            2 if j.config.method == "two-run" else 1 for j in jobs
        )
        return f"about {minutes:.0f} min on two cores"
    total = sum(hours(job.config) for job in jobs)
    return f"about {total:.0f} GPU hours" if total >= 10 else f"about {total:.1f} GPU hours"
