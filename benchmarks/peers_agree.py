"""Do our attacks find what others' find?

PGD against torchattacks, foolbox and ART, AutoAttack against pyautoattack's own run.

The same trained model, images, radius, step and start for all. Agreement means: the mean adversarial loss
within 0.5 %, robust accuracy within one example in two hundred, AutoAttack's flags equal. Prints a table,
writes JSON, exits with 1 on disagreement.

    .venv-bench/bin/python benchmarks/peers_agree.py [--out FILE] [--images 200] [--autoattack-images 32]
        [--small]
"""

from __future__ import annotations

import argparse
import copy
import platform
import sys
import time
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cfol_fast as cf
from cfol_fast import atomic

LOSS_LIMIT, ACCURACY_LIMIT = 0.005, 1 / 200
STEPS = 10
RADII = {"linf": 0.08, "l2": 1.0}
PEERS = ("torchattacks", "foolbox", "adversarial-robustness-toolbox")
Attack = Callable[[Tensor, Tensor], Tensor]


def train(steps: int) -> nn.Module:
    """The demo's network after some adversarial training in plain torch, so that not every attack succeeds at
    once.
    """
    torch.manual_seed(0)
    images = cf.data.load("fashion-mini").train
    x, y = images.images.permute(0, 3, 1, 2).float() / 255, images.labels
    model = cf.models.create("demo-cnn", 10, 28, 1, mean=[0.286], std=[0.353]).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        rows = torch.randint(len(x), (128,))
        batch = x[rows].requires_grad_()
        grad = torch.autograd.grad(F.cross_entropy(model(batch), y[rows]), batch)[0]
        adv = (batch.detach() + RADII["linf"] * grad.sign()).clamp(0, 1)
        optimizer.zero_grad()
        F.cross_entropy(model(adv), y[rows]).backward()
        optimizer.step()
    return model.eval()


def ours(model: nn.Module, norm: str, eps: float, step: float) -> Attack:
    return cf.PGD(model, eps, step, STEPS, random_start=False, norm=norm)


def torchattacks_pgd(model: nn.Module, norm: str, eps: float, step: float) -> Attack:
    import torchattacks

    kind = torchattacks.PGD if norm == "linf" else torchattacks.PGDL2
    return kind(model, eps=eps, alpha=step, steps=STEPS, random_start=False)


def foolbox_pgd(model: nn.Module, norm: str, eps: float, step: float) -> Attack:
    import foolbox

    name = "LinfProjectedGradientDescentAttack" if norm == "linf" else "L2ProjectedGradientDescentAttack"
    attack = getattr(foolbox.attacks, name)(abs_stepsize=step, steps=STEPS, random_start=False)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    return lambda x, y: attack.run(wrapped, x, foolbox.criteria.Misclassification(y), epsilon=eps)


def art_pgd(model: nn.Module, norm: str, eps: float, step: float) -> Attack:
    import numpy as np
    from art.attacks.evasion import ProjectedGradientDescentPyTorch
    from art.estimators.classification import PyTorchClassifier

    classifier = PyTorchClassifier(
        model,
        nn.CrossEntropyLoss(),
        input_shape=(1, 28, 28),
        nb_classes=10,
        clip_values=(0, 1),
        device_type="cpu",
    )
    attack = ProjectedGradientDescentPyTorch(
        classifier,
        norm=np.inf if norm == "linf" else 2,
        eps=eps,
        eps_step=step,
        max_iter=STEPS,
        num_random_init=0,
        batch_size=256,
        verbose=False,
    )
    return lambda x, y: torch.from_numpy(attack.generate(x.numpy(), F.one_hot(y, 10).numpy()))


THEIRS = {"torchattacks": torchattacks_pgd, "foolbox": foolbox_pgd, "adversarial-robustness-toolbox": art_pgd}


def measure(model: nn.Module, attack: Attack, x: Tensor, y: Tensor) -> tuple[float, float]:
    """(mean adversarial loss, robust accuracy), computed by the same code for every library."""
    adv = attack(x.clone(), y.clone()).detach()
    with torch.no_grad():
        logits = model(adv)
    return float(F.cross_entropy(logits, y)), float((logits.argmax(1) == y).double().mean())


def compare_pgd(model: nn.Module, x: Tensor, y: Tensor) -> list[dict[str, Any]]:
    rows = []
    for norm, eps in RADII.items():
        step = eps / 4
        loss, accuracy = measure(model, ours(model, norm, eps, step), x, y)
        for peer, make in THEIRS.items():
            their_loss, their_accuracy = measure(model, make(copy.deepcopy(model), norm, eps, step), x, y)
            loss_difference = abs(loss - their_loss) / their_loss
            accuracy_difference = abs(accuracy - their_accuracy)
            rows.append(
                {
                    "name": f"PGD-{STEPS}, {norm}, eps {eps}, {len(x)} images",
                    "against": peer,
                    "ours": {"loss": loss, "robust_accuracy": accuracy},
                    "theirs": {"loss": their_loss, "robust_accuracy": their_accuracy},
                    "loss_difference": loss_difference,
                    "accuracy_difference": accuracy_difference,
                    "agrees": loss_difference <= LOSS_LIMIT and accuracy_difference <= ACCURACY_LIMIT + 1e-9,
                }
            )
    return rows


def compare_autoattack(model: nn.Module, x: Tensor, y: Tensor, batch_size: int) -> dict[str, Any]:
    """The standard version at full length, ours through `evaluate`, theirs in one call."""
    import pyautoattack

    eps = RADII["linf"]
    report = cf.evaluate(model, x, y, attack={"kind": "autoattack", "eps": eps}, batch_size=batch_size)
    adversary = pyautoattack.AutoAttack(
        copy.deepcopy(model), norm="Linf", eps=eps, seed=0, version="standard", device="cpu"
    )
    _, predicted = adversary.run_standard_evaluation(x, y, batch_size=batch_size)
    assert report.robust is not None
    flags, theirs = report.robust.correct, predicted == y
    return {
        "name": f"AutoAttack standard, linf, eps {eps}, {len(x)} images: flags that differ",
        "against": "pyautoattack",
        "ours": {"robust_accuracy": float(flags.double().mean())},
        "theirs": {"robust_accuracy": float(theirs.double().mean())},
        "flags_that_differ": int((flags != theirs).sum()),
        "agrees": bool(torch.equal(flags, theirs)),
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'question':58} {'against':32} {'loss':>8} {'accuracy':>9}  agrees"]
    for row in rows:
        loss = f"{row['loss_difference']:.3%}" if "loss_difference" in row else ""
        accuracy = row.get("accuracy_difference", row.get("flags_that_differ"))
        shown = f"{accuracy:.3f}" if isinstance(accuracy, float) else str(accuracy)
        lines.append(
            f"{row['name']:58} {row['against']:32} {loss:>8} {shown:>9}  {'yes' if row['agrees'] else 'NO'}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "peers_agree.json")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--autoattack-images", type=int, default=32)
    parser.add_argument(
        "--small", action="store_true", help="a few steps and images, to see that the script runs"
    )
    args = parser.parse_args()
    if args.small:
        args.images, args.autoattack_images = 16, 0
    missing = [name for name in ("torchattacks", "foolbox", "art", "pyautoattack") if find_spec(name) is None]
    if missing:
        sys.exit(f"these peers are not installed: {', '.join(missing)}; run: make bench-setup")
    begin = time.perf_counter()
    model = train(5 if args.small else 150)
    test = cf.data.load("fashion-mini").test
    x, y = test.images.permute(0, 3, 1, 2).float().contiguous() / 255, test.labels
    rows = compare_pgd(model, x[: args.images], y[: args.images])
    if args.autoattack_images:
        rows.append(compare_autoattack(model, x[: args.autoattack_images], y[: args.autoattack_images], 16))
    print(table(rows))
    result = {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
        },
        "versions": {name: metadata.version(name) for name in ("torch", "pyautoattack", *PEERS)},
        "limits": {"loss": LOSS_LIMIT, "accuracy": ACCURACY_LIMIT},
        "seconds": round(time.perf_counter() - begin, 1),
        "questions": rows,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_json(args.out, result)
    return 0 if all(row["agrees"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
