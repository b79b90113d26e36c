"""Evaluations inside a run: the hold-out after an epoch, and the final test of every kept checkpoint."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast import atomic, attacks, data, evaluation, methods, objectives, theory
from cfol_fast.attacks.frozen import evaluation_mode
from cfol_fast.data.source import Batch, PartOfSource, Source
from cfol_fast.evaluation.rows import Rows, batches_of
from cfol_fast.evaluation.sharing import RandomStates, over_batches
from cfol_fast.machine import versions
from cfol_fast.policies import EpochFacts, Need
from cfol_fast.runs import checkpoints, predictions, run_folder
from cfol_fast.runs.defaults import evaluation_step, holdout_label
from cfol_fast.runs.metrics_log import Row, read_rows
from cfol_fast.training.building import training_attack
from cfol_fast.training.images import TRAINING_FILE
from cfol_fast.training.trainer import Trainer

GALLERY_SIZE = 6
# Robust accuracy on the training images minus that under PGD on the hold-out. Overfitting alone stays far below it.
COLLAPSE_GAP = 0.3
# As many as CIFAR-10's test set has: the risk of a class of 1,000 images is then known to 3 points.
TRAINING_RISK_IMAGES = 10_000
EMA_LAST = checkpoints.EMA + checkpoints.LAST


def validate(trainer: Trainer) -> Row:
    """Clean and robust accuracy on the hold-out. The attack starts from the same noise each time: only the model changes."""
    epoch, step, split = trainer.position.epoch + 1, trainer.position.step, trainer.images.validation_split
    found = holdout_accuracies(trainer, trainer.model, "validation")
    return {"kind": "validation", "epoch": epoch, "step": step, "split": split, **found}


def average_weights(trainer: Trainer, validated: Row | None = None) -> None:
    """Lets an epoch's weights into their moving average, where a run keeps one, and adds its accuracies to the epoch's validation."""
    average = trainer.average
    if average is None:
        return
    worst = None if validated is None else trainer.judged(validated)["worst"]
    average.after_epoch(trainer.position.epoch + 1, worst)
    if validated is not None and average.updates:
        found = holdout_accuracies(trainer, average.model, "validation of the average")
        validated["ema"] = {"updates": average.updates, **found}


def holdout_accuracies(trainer: Trainer, model: nn.Module, what: str) -> dict[str, Any]:
    """The clean and the robust accuracies of the model or of the average, without the confusion between the classes."""
    config, source = trainer.config, trainer.images.validation
    assert source is not None
    steps = config.validation.steps
    attack = new_attack(trainer, steps, evaluation_step(config, steps), model)
    found = figures(evaluated(trainer, source, attack, what, model))
    for accuracy in found.values():
        del accuracy["confusion"]
    return found


def epoch_facts(trainer: Trainer, training: Row, validated: Row | None = None) -> EpochFacts:
    """What the class policy is told at the end of an epoch, from the epoch's rows of metrics.jsonl."""
    errors = torch.tensor(
        [float("nan") if e is None else e for e in training["class_error"]], dtype=torch.float64
    )
    if validated is None:
        return EpochFacts(training["epoch"], errors)
    clean, robust = (
        in_order(validated[kind]["per_class"], trainer.images.classes) for kind in ("clean", "robust")
    )
    losses = mean = None
    if Need.HOLDOUT_LOSSES in trainer.policy.needs:
        losses, mean = holdout_losses(trainer)
    return EpochFacts(training["epoch"], errors, clean, robust, losses, mean)


def facts_at_the_start(trainer: Trainer) -> EpochFacts:
    """What a class policy is told of the weights that a run starts from, before its first epoch: there is no training to speak of."""
    nothing_trained = {"epoch": 0, "class_error": [None] * len(trainer.images.classes)}
    return epoch_facts(trainer, nothing_trained, validate(trainer))


def collapse_warning(trainer: Trainer, training: Row, validated: Row | None = None) -> str | None:
    """Single-step training may collapse: the network withstands the one step it is trained with and nothing else (Wong et al. 2020)."""
    if validated is None or not attacks.KINDS[str(trainer.config.attack.kind)].single_step:
        return None
    trained, held = 1 - training["robust_error"], validated["robust"]["average"]
    if trained - held <= COLLAPSE_GAP:
        return None
    return (
        f"warning: epoch {training['epoch']}: {trained:.0%} of the training images withstand {trainer.config.attack.kind}, but only "
        f"{held:.0%} of the validation images PGD: single-step training has collapsed. Take --set attack.kind=n-fgsm, pgd or a smaller eps"
    )


def holdout_losses(trainer: Trainer) -> tuple[Tensor, float]:
    """The objective's loss on the hold-out under the training attack, without class factors: (k,) class means, and over all images.

    The attack starts from the same noise each time, and the radius is that of the configuration.
    """
    source, objective, k = trainer.images.validation, trainer.objective, len(trainer.images.classes)
    assert source is not None
    assert isinstance(objective, objectives.Trades)
    attack = training_attack(trainer.model, trainer.config)
    labels, losses = source.labels.cpu(), Rows(len(source), torch.float64)

    def one_batch(number: int, batch: Batch, _: RandomStates) -> int:
        idx, x, y = batch
        found, _logits = objective.losses(trainer.model, objectives.Batch(x, attack(x, y), y))
        losses.fill(idx, found, number)
        return len(idx)

    shared = (trainer.ranks, source, trainer.config.test.batch_size, [attack])
    with evaluation_mode(trainer.model), torch.no_grad():
        for _ in over_batches(*shared, one_batch, between=trainer.heed_signals):
            pass
    # They are added up in the images' order, whoever computed them.
    of_all = losses.whole(trainer.ranks, "the hold-out", batches_of(source, trainer.config.test.batch_size))
    sums = torch.zeros(k, dtype=torch.float64).index_add_(0, labels, of_all)
    counts = torch.bincount(labels, minlength=k)
    # 0/0 is NaN: a class without images.
    return sums / counts, float(sums.sum() / counts.sum())


def final_test(trainer: Trainer) -> dict[str, Any]:
    """Tests the last and the best checkpoints, and those of the average, with the strong attack; writes gallery.json and result.json.

    `test` is the checkpoint with the best average robust accuracy (the paper's rule; without an attack in training the best clean
    one), or the last one without a hold-out.
    """
    config, model = trainer.config, trainer.model
    epochs = {checkpoints.LAST: trainer.epochs}
    epochs |= {name: int(kept["epoch"]) for name, kept in trainer.position.best.items()}
    if trainer.average is not None and trainer.average.updates:
        epochs[EMA_LAST] = trainer.epochs
        trainer.store.save_best(EMA_LAST, trainer.weights(trainer.epochs, trainer.average.model))
    chosen = checkpoints.BEST_AVERAGE if checkpoints.BEST_AVERAGE in epochs else checkpoints.LAST
    # The rules often keep the same epoch: whose weights, the model's or the average's, and of which epoch.
    kept = {name: (name.startswith(checkpoints.EMA), epoch) for name, epoch in epochs.items()}
    tested: dict[tuple[bool, int], dict[str, Any]] = {}
    predicted: dict[tuple[bool, int], dict[str, Tensor]] = {}
    final = {key: value.clone() for key, value in model.state_dict().items()}
    try:
        for name, epoch in epochs.items():
            if kept[name] in tested:
                continue
            if name != checkpoints.LAST:
                model.load_state_dict(kept_weights(trainer, name))
            report = evaluated(trainer, trainer.images.test, strong_attack(trainer), f"test of {name}")
            found = figures(report)
            predicted[kept[name]] = report.predictions
            tested[kept[name]] = {"epoch": epoch, **found}
            if kept[name] == kept[chosen]:
                trainer.ranks.from_first(partial(write_gallery, trainer, found["robust"]["worst_class"]))
        ensemble = {} if trainer.ensemble is None else {"ensemble": ensemble_risk(trainer, trainer.ensemble)}
    finally:
        model.load_state_dict(final)

    method = methods.get(config.method)
    clean, robust = (tested[kept[chosen]][kind] for kind in ("clean", "robust"))
    result: dict[str, Any] = {
        "format": 1,
        "method": method.name,
        "title": method.title,
        "dataset": config.data.name,
        "classes": trainer.images.classes,
        "model": config.model.name,
        "seed": config.seed,
        "holdout": holdout_label(config.data.holdout),
        "augmentation": trainer.images.augmentation,
        # Of images with more than 8 bits.
        **({} if trainer.images.white is None else {"white": trainer.images.white}),
        "finished": True,
        "test": {"clean": clean, "robust": robust},
        "checkpoints": {name: tested[weights] for name, weights in kept.items()},
        "attack": strong_attack(trainer).describe(),
        "versions": versions(),
        "seconds": trainer.position.seconds,
        **({} if trainer.init is None else {"init": trainer.init}),
        # The file of data.source=ffcv holds images of "train" once more.
        "data": {
            part: held for part, held in (trainer.images.content or {}).items() if part != TRAINING_FILE
        },
        **(
            {"copies": {part: [*counts] for part, counts in trainer.images.copies.items()}}
            if trainer.images.copies
            else {}
        ),
        **({"changed_data": trainer.changed_data} if trainer.changed_data else {}),
        **ensemble,
        "gallery": run_folder.GALLERY,
    }
    by_name = {name: predicted[weights] for name, weights in kept.items()}
    result = trainer.ranks.from_first(lambda: write_result(trainer, result, by_name))
    for name in (chosen, checkpoints.EMA + chosen):
        if name in kept:
            trainer.progress.say(f"test ({name}): {in_words(tested[kept[name]])}")
    return result


def write_result(
    trainer: Trainer, result: dict[str, Any], predicted: dict[str, dict[str, Tensor]]
) -> dict[str, Any]:
    """Writes result.json, and before it what it names. predicted: by checkpoint."""
    labels = trainer.images.test.labels.cpu()
    result = {**result, "predictions": predictions.write(trainer.folder, labels, predicted)}
    atomic.write_json(trainer.folder / run_folder.RESULT, result)
    return result


def kept_weights(trainer: Trainer, name: str) -> dict[str, Tensor]:
    """Of a checkpoint that the run kept; on many ranks the first reads it for all, from its disk."""
    on = trainer.device if trainer.ranks.size == 1 else torch.device("cpu")
    return trainer.ranks.from_first(lambda: checkpoints.read(trainer.store.path(name), on)["model"])


def in_words(found: dict[str, Any]) -> str:
    clean, robust = found["clean"], found["robust"]
    return (
        f"clean {clean['average']:.1%}, robust {robust['average']:.1%}, 20 % tail {robust['tail']:.1%}, "
        f"worst class {robust['worst_class']} {robust['worst']:.1%}"
    )


def ensemble_risk(trainer: Trainer, members: theory.IterateReservoir) -> dict[str, Any]:
    """The left-hand side of Theorem 1: every member attacked on its own, the class risks averaged over the members.

    It is the risk on the training images (here without augmentation), so that is where it is measured: on all of them or, where
    they are many, on a seeded part with its share of every class. About test images the theorem says nothing.
    """
    classes, images = trainer.images.classes, trainer.images.train
    rows = data.stratified(trainer.images.labels, min(len(images), TRAINING_RISK_IMAGES))
    part = PartOfSource(images, rows)

    def robust_accuracies(_: nn.Module) -> Tensor:
        found = accuracies(trainer, part, strong_attack(trainer), "ensemble")
        return in_order(found["robust"]["per_class"], classes)

    risk = theory.ensemble_risk(members.models(trainer.model), robust_accuracies)
    kept = {"format": 1, "spec": trainer.images.spec.to_dict(), "classes": classes, **members.state_dict()}
    trainer.store.save_best(checkpoints.ENSEMBLE, kept)
    return {
        "members": members.n,
        "split": "train",
        "images": len(part),
        "images_in_all": len(images),
        "steps": list(members.steps),
        "robust_risk": dict(zip(classes, risk.per_class.tolist(), strict=True)),
        "worst_risk": risk.worst,
        "worst_class": classes[risk.worst_class],
    }


def robust_class_accuracies(folder: Path, result: dict[str, Any]) -> Tensor:
    """(k,) of a finished stage, for the next: on its hold-out; without one, on its training examples at the end.

    The paper takes the test set, which is what `--holdout test` does; otherwise the test set stays unseen.
    """
    rows = read_rows(folder)
    validations = {row["epoch"]: row for row in rows if row["kind"] == "validation"}
    if validations:
        best = result["checkpoints"].get(checkpoints.BEST_AVERAGE, {"epoch": max(validations)})["epoch"]
        return in_order(validations[best]["robust"]["per_class"], result["classes"])
    errors = [row for row in rows if row["kind"] == "train"][-1]["class_error"]
    return torch.tensor([1.0 if error is None else 1.0 - error for error in errors], dtype=torch.float64)


def in_order(per_class: dict[str, float], classes: list[str]) -> Tensor:
    """(k,) float64, in the order of the classes; NaN for one without images."""
    found = [per_class[name] for name in classes]
    return torch.tensor([float("nan") if a is None else a for a in found], dtype=torch.float64)


def strong_attack(trainer: Trainer) -> attacks.Attack:
    return new_attack(trainer, trainer.config.test.steps, trainer.config.test.step)


def new_attack(
    trainer: Trainer, steps: int, step: float | None, model: nn.Module | None = None
) -> attacks.Attack:
    """PGD with a fresh random state, so that an evaluation does not depend on those before it."""
    config = trainer.config
    options = {"eps": config.test.eps, "norm": config.attack.norm, "seed": config.seed}
    return attacks.create("pgd", model or trainer.model, steps=steps, step=step, **options)


def accuracies(trainer: Trainer, source: Source, attack: attacks.Attack, what: str) -> dict[str, Any]:
    """The clean and the robust accuracies of the model as it is, for JSON."""
    return figures(evaluated(trainer, source, attack, what))


def figures(report: evaluation.Evaluation) -> dict[str, Any]:
    assert report.robust is not None
    return {"clean": report.clean.to_json(), "robust": report.robust.to_json()}


def evaluated(
    trainer: Trainer, source: Source, attack: attacks.Attack, what: str, model: nn.Module | None = None
) -> evaluation.Evaluation:
    """The model as it is, or the one given, clean and under the attack."""

    def between_batches(done: int, total: int) -> None:
        trainer.heed_signals()
        trainer.progress.busy(what, done, total)

    return evaluation.evaluate(
        model or trainer.model,
        source,
        attack=attack,
        num_classes=len(trainer.images.classes),
        class_names=trainer.images.classes,
        batch_size=trainer.config.test.batch_size,
        device=trainer.device,
        progress=between_batches,
        ranks=trainer.ranks,
    )


def write_gallery(trainer: Trainer, worst_class: str) -> None:
    """Images of the worst class before and after the attack, for the report."""
    index = trainer.images.classes.index(worst_class)
    attack = strong_attack(trainer)
    pictures = evaluation.gallery(trainer.model, trainer.images.test, attack, index, n=GALLERY_SIZE)
    atomic.write_json(trainer.folder / run_folder.GALLERY, pictures)
