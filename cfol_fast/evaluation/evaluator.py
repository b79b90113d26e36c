"""`evaluate`: clean and robust accuracy of a model, class by class, under one attack or the worst case of
several.

Every figure comes from the predictions of the model itself on the final images, never from the folded network
an attack uses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cfol_fast import attacks as attack_kinds
from cfol_fast import ops
from cfol_fast.attacks.active_set import attack_survivors
from cfol_fast.attacks.pixels import check_pixels
from cfol_fast.data.classes import InModelOrder, places
from cfol_fast.data.source import Batch
from cfol_fast.errors import InputError
from cfol_fast.evaluation.attack_models import is_for_another
from cfol_fast.evaluation.attack_names import named_attacks
from cfol_fast.evaluation.autoattack import AutoAttack
from cfol_fast.evaluation.class_accuracy import ClassAccuracy
from cfol_fast.evaluation.doubts import (
    OTHER,
    RAISED,
    Counts,
    judge,
    raised_by_one_step,
    watched,
)
from cfol_fast.evaluation.inputs import (
    Source,
    as_source,
    check_labels,
    check_size,
    class_names,
    logits_of,
    model_classes,
)
from cfol_fast.evaluation.readers import LoaderSource
from cfol_fast.evaluation.result import Evaluation
from cfol_fast.evaluation.rows import Rows, batches_of, check_complete
from cfol_fast.evaluation.sharing import RandomStates, check_same_work, one_round, over_batches
from cfol_fast.frozen import choices, evaluation_mode
from cfol_fast.ranks import Ranks
from cfol_fast.runs.metrics import FLOOR

# Steps of PGD when an attack is given as a dict without them; the step size is 2.5 eps / steps.
STEPS = 20
Progress = Callable[[int, int], Any]
# An Attack, any callable (x, y) -> x_adv, or a dict such as {"kind": "pgd", "eps": 8 / 255}.
AttackLike = Any
BY_POSITION = "Rename the classes, or take them by position (classes_by_position=True; --classes-by-position)"
TAKEN_BY_POSITION = (
    "the classes of the model have other names than those of the data: they were taken by position"
)
MATCHED = "the model has the classes in another order than the data: they were matched by name"
ACTIVE_SET_NOTE = (
    "with the active set an example counts as fooled at the first iterate that fools it, the clean image"
    " included; robust accuracy is therefore never higher than at the last iterate"
)


def evaluate(
    model: nn.Module,
    x_or_source: Any,
    y: Tensor | None = None,
    attack: AttackLike | Sequence[AttackLike] | None = None,
    num_classes: int | None = None,
    class_names: Sequence[str] | None = None,
    batch_size: int = 256,
    device: torch.device | str | None = None,
    active_set: bool = False,
    progress: Progress | None = None,
    ranks: Ranks | None = None,
    classes_by_position: bool = False,
    floor: float = FLOOR,
    eps: float | str | None = None,
) -> Evaluation:
    """Clean accuracy, and robust accuracy where there is an attack.

    model: returns logits, or an object with `.logits`, a dict with "logits", or a tuple that begins with
    them.
    x_or_source: (N, C, H, W) in [0, 1] with y (N,); a DataLoader or a map-style data set of (image, label) or
        dicts; or a source such as `data.ResidentSource`.
    attack: an attack, a dict of its parameters ("kind" is "pgd" by default; "autoattack" is AutoAttack,
        standard version), or several of them: then an example is robust when it withstands each. Attacks of
        other libraries are called as (x, y) -> x_adv. A name, such as "pgd", needs `eps`.
    eps: the radius of the attacks that are given by their names, such as 8 / 255.
    batch_size: of the passes; a DataLoader keeps its own.
    active_set: examples already fooled leave the batch (PGD only); the worst iterate counts instead of the
    last.
    floor: an accuracy below which a class counts as failing.
    progress: called with (images done, images in all), an image counting once for each attack.
    ranks: `Ranks(process_group=...)` on every process of a group: they share the batches, and each returns
    the whole result, which
        is that of one process. Give all of them the same model and the same images.
    classes_by_position: do not compare the names of the classes. Otherwise, where the model has `classes`, as
    `load` sets them, and
        those of the data are known, the same names in another order are matched, and other names are refused.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    if not 0 <= floor <= 1:
        raise InputError(f"floor is an accuracy from 0 to 1, got {floor}")
    attack = named_attacks(attack, eps)
    source = as_source(x_or_source, y)
    of_model, of_data = model_classes(model), list(class_names if class_names is not None else source.classes)
    if of_model and of_data and not classes_by_position:
        matched = places(of_model, of_data, "the model", BY_POSITION)
        if matched is not None:
            ordered = InModelOrder(source, matched, of_model)
            options: dict[str, Any] = {"num_classes": num_classes, "class_names": of_model, "device": device}
            options |= {"active_set": active_set, "progress": progress, "ranks": ranks, "floor": floor}
            report = evaluate(model, ordered, None, attack, batch_size=batch_size, **options)
            return _in_order_of_data(report, matched, of_data, source)
    chosen = [make_attack(one, model) for one in _as_list(attack)]
    if active_set and not any(isinstance(one, attack_kinds.PGD) for one in chosen):
        raise InputError("the active set needs PGD: give attack={'eps': ...}")
    ranks = ranks or Ranks(world_size=1)
    check_same_work(ranks, model, source)
    if ranks.size > 1:
        # So that the figures are those of one process, on the machine of the first rank.
        choices().share(ranks, lambda: None)
    with evaluation_mode(model), torch.no_grad():
        found = _Predictions(
            model, source, _device_of(model, device), (class_names, num_classes), batch_size, progress, ranks
        )
        found.clean_and_batched(chosen, active_set)
        found.whole_set(chosen)
    with one_round(ranks):
        for one in chosen:
            _check_fault(one)
    labels = found.labels

    def accuracy(predictions: Tensor) -> ClassAccuracy:
        return ClassAccuracy(labels, predictions, found.names, floor)

    attacked = [found.attacked[number] for number in range(len(chosen))]
    described, accuracies = [_describe(one) for one in chosen], [accuracy(part) for part in attacked]
    clean, counts = accuracy(found.clean), found.counts.of_all(ranks)
    warnings, notes = judge(counts, [str(what["kind"]) for what in described], clean, accuracies)
    settings = {"active_set": active_set, "batch_size": batch_size, "device": str(found.device)}
    return Evaluation(
        clean=clean,
        robust=accuracy(_worst_case(labels, attacked)) if attacked else None,
        attacks=list(zip(described, accuracies, strict=True)),
        settings=settings,
        notes=[
            *(source.notes if isinstance(source, LoaderSource) else []),
            *([TAKEN_BY_POSITION] if of_model and of_data and of_model != of_data else []),
            *notes,
            *([ACTIVE_SET_NOTE] if active_set else []),
            *(one.note for one in chosen if isinstance(one, AutoAttack) and one.note),
        ],
        warnings=warnings,
        loss_raised=[count[RAISED] for count in counts[1:]],
    )


def _in_order_of_data(
    report: Evaluation, matched: Sequence[int], names: Sequence[str], source: Source
) -> Evaluation:
    """The report in the order of the data's classes."""
    back = torch.tensor(matched).argsort()

    def ordered(found: ClassAccuracy) -> ClassAccuracy:
        return ClassAccuracy(back[found.labels], back[found.predictions], names, found.floor)

    return dataclasses.replace(
        report,
        clean=ordered(report.clean),
        robust=None if report.robust is None else ordered(report.robust),
        attacks=[(what, ordered(found)) for what, found in report.attacks],
        notes=[*(source.notes if isinstance(source, LoaderSource) else []), *report.notes, MATCHED],
    )


class _FilledIn(NamedTuple):
    """What the batches fill in. attacked: by the attack's number."""

    labels: Rows
    clean: Rows
    attacked: dict[int, Rows]


class _Predictions:
    """What the model says to every example, without an attack and under each, filled in batch by batch.

    labels, clean: (N,) int64. attacked: the same for each attack, by its number. names: of the classes, known
    with the first batch; what
    was given for them: the names themselves, and how many.
    """

    def __init__(
        self,
        model: nn.Module,
        source: Source,
        device: torch.device | None,
        given: tuple[Sequence[str] | None, int | None],
        batch_size: int,
        progress: Progress | None,
        ranks: Ranks,
    ) -> None:
        self.model, self.source, self.batch_size = model, source, batch_size
        self.progress, self.ranks = progress, ranks
        self.device = device or source.labels.device
        self.counts = Counts(0, self.device)
        self.labels = self.clean = torch.empty(0, dtype=torch.int64)
        self.attacked: dict[int, Tensor] = {}
        self.names: list[str] = []
        self._given = given
        self.done = self.told = self.total = 0

    def clean_and_batched(self, chosen: list[Any], active_set: bool) -> None:
        """The clean images, and every attack that works batch by batch."""
        self.counts = Counts(len(chosen), self.device)
        batched = {number: one for number, one in enumerate(chosen) if not isinstance(one, AutoAttack)}
        self._all = dict(enumerate(chosen))
        images = len(self.source)
        rows = _FilledIn(Rows(images), Rows(images), {number: Rows(images) for number in batched})
        self.total = len(self.source) * max(1, len(chosen))

        def work(number: int, batch: Batch, states: RandomStates) -> tuple[int, int]:
            return len(batch[0]), self._one_batch(number, batch, rows, batched, active_set, states)

        attacks = list(batched.values())
        for found in over_batches(
            self.ranks, self.source, self.batch_size, attacks, work, between=self._tell
        ):
            if not self.names:
                # A rank may have had no batch.
                self.names = class_names(self.source, *self._given, found[0][1])
            self.done += sum(images for images, _ in found) * (len(attacks) if chosen else 1)
        self._put_together(rows)

    def _one_batch(
        self,
        number: int,
        batch: Batch,
        rows: _FilledIn,
        batched: dict[int, Any],
        active_set: bool,
        states: RandomStates,
    ) -> int:
        """Fills in one batch; returns the number of logits."""
        idx, x, y = batch
        x, y = x.to(self.device), y.to(self.device)
        check_pixels(x, f"batch {number}: ")
        check_size(self.model, x)
        logits = logits_of(self.model, x, number)
        if not self.names:
            self.names = class_names(self.source, *self._given, logits.shape[1])
        check_labels(y, len(self.names))
        clean = logits.argmax(1)
        self._look(number, x, logits)
        rows.labels.fill(idx, y, number)
        rows.clean.fill(idx, clean, number)
        for attack_number, one in batched.items():
            if active_set and isinstance(one, attack_kinds.PGD):
                right = clean == y
                # The model itself is asked about the last iterate.
                with watched(one) as seen:
                    found = attack_survivors(one, x, y, right, judge_last=False)
                alive = right.nonzero().squeeze(1)
                guess = clean.clone()
                if len(alive):
                    after = logits_of(self.model, found.x_adv[alive], number)
                    self.counts.attacked(attack_number, y[alive], logits[alive], after)
                    guess[alive] = after.argmax(1)
            else:
                with states.of_others(one, number, x.device), watched(one) as seen:
                    x_adv = attack_images(one, self.model, x, y)
                after = logits_of(self.model, x_adv, number)
                self.counts.attacked(attack_number, y, logits, after)
                guess = after.argmax(1)
            self.counts.gradients(attack_number, seen)
            rows.attacked[attack_number].fill(idx, guess, number)
        return logits.shape[1]

    def _put_together(self, rows: _FilledIn) -> None:
        """What each rank found, on all of them."""
        place = (self.ranks, "the evaluation", batches_of(self.source, self.batch_size))
        self.labels, self.clean = rows.labels.whole(*place), rows.clean.whole(*place)
        self.attacked = {number: part.whole(*place) for number, part in rows.attacked.items()}
        if isinstance(self.source, LoaderSource):
            self.source.labels = self.labels

    def whole_set(self, chosen: list[Any]) -> None:
        """AutoAttack chooses its own batches, of the examples that are left."""
        wanted = {number: one for number, one in enumerate(chosen) if isinstance(one, AutoAttack)}
        if not wanted:
            return
        with one_round(self.ranks):
            x = self._all_images()
        y = self.labels
        for number, one in wanted.items():
            before = self.done

            def part_done(done: int, total: int, before: int = before) -> None:
                self.done = before + len(y) * done // max(1, total)
                self._tell()

            self.attacked[number] = one.run(
                x, y, self.clean, self.device, self.batch_size, part_done, self.ranks
            )
            with one_round(self.ranks):
                self._look_at_autoattack(number, one, x, self.attacked[number])
                part_done(1, 1)

    def _all_images(self) -> Tensor:
        """(N, C, H, W) in the order of the labels, which are compared: a source that was read before may give
        others now.
        """
        place = batches_of(self.source, self.batch_size)
        again, images = Rows(len(self.source)), []
        for number, (idx, x, y) in enumerate(self.source.batches(self.batch_size)):
            again.fill(idx, y, number)
            if not torch.equal(again.values[idx.cpu()], self.labels[idx.cpu()]):
                raise InputError(
                    f"batch {number} has other labels than when it was read before: a source must give the"
                    " same examples each time"
                )
            images.append((idx.cpu(), x.cpu()))
        check_complete(again.times, "the second reading", place)
        order = torch.cat([idx for idx, _ in images])
        x = torch.cat([batch for _, batch in images])
        return x if torch.equal(order, torch.arange(len(order))) else x[order.argsort()]

    def _look(self, number: int, x: Tensor, logits: Tensor) -> None:
        """Looks for signs of nonsense in a clean batch, and in the first one whether the attacks are on this
        model.
        """
        self.counts.clean(logits)
        for attack_number, one in self._all.items() if number == 0 else ():
            self.counts.add(attack_number, OTHER, int(is_for_another(one, self.model, x, logits)))

    def _look_at_autoattack(self, number: int, one: AutoAttack, x: Tensor, found: Tensor) -> None:
        """It shows no images.

        One that was broken has a larger loss; where none was, a step of its radius must raise a loss.
        """
        right = (self.clean == self.labels).nonzero().squeeze(1)
        count: int | Tensor = int((found[right] != self.labels[right]).sum())
        if not count and len(right):
            some = right[: self.batch_size]
            batch = x[some].to(self.device), self.labels[some].to(self.device)
            count = raised_by_one_step(self.model, *batch, one.eps, one.norm)
        # All ranks know it; it is counted once.
        if self.ranks.is_first:
            self.counts.add(number, RAISED, count)

    def _tell(self) -> None:
        """Tells whoever follows the progress what all ranks have done."""
        if self.progress is not None and self.done > self.told:
            self.told = self.done
            self.progress(self.done, self.total)


def make_attack(attack: AttackLike, model: nn.Module) -> Any:
    """An attack from a dict of its parameters; anything that can be called stays as it is."""
    if isinstance(attack, Mapping):
        parameters = dict(attack)
        kind = parameters.pop("kind", "pgd")
        if kind != "none" and "eps" not in parameters:
            raise InputError(f"the attack {kind!r} needs a radius: {{'kind': {kind!r}, 'eps': 8 / 255}}")
        if kind == "autoattack":
            return AutoAttack(model, **parameters)
        if kind in ("pgd", "trades"):
            parameters = {"steps": STEPS, **parameters}
        return attack_kinds.create(kind, model, **parameters)
    if isinstance(attack, AutoAttack) or callable(attack):
        return attack
    raise TypeError(f"an attack is called with (x, y) or given as a dict, got {type(attack).__name__}")


def attack_images(attack: Any, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """x_adv of an attack on a batch; one that is not ours gets what it would get from its own examples, and
    is checked.

    Other libraries differentiate without asking for gradients, `view` images as if they were contiguous, and
    may leave the model in training mode.
    """
    if isinstance(attack, AutoAttack):
        raise InputError("AutoAttack works on a whole data set; for single batches use PGD")
    if isinstance(attack, attack_kinds.Attack):
        before, attack.any_layout = attack.any_layout, True
        try:
            return attack(x, y)
        finally:
            attack.any_layout = before
    with torch.enable_grad():
        # It may write to both.
        x_adv = attack(x.detach().clone(memory_format=torch.contiguous_format), y.clone())
    for module in model.modules():
        module.training = False
    if not isinstance(x_adv, Tensor) or x_adv.shape != x.shape:
        what = f"shape {tuple(x_adv.shape)}" if isinstance(x_adv, Tensor) else type(x_adv).__name__
        raise InputError(
            f"the attack {_describe(attack)['kind']} must return images of shape {tuple(x.shape)}, got {what}"
        )
    if not x_adv.is_floating_point():
        raise InputError(
            f"the attack {_describe(attack)['kind']} must return floating point numbers in [0, 1], got"
            f" {x_adv.dtype}"
        )
    x_adv = x_adv.detach().to(x)
    check_pixels(x_adv, f"the result of the attack {_describe(attack)['kind']}: ")
    return x_adv


def _as_list(attack: Any) -> list[Any]:
    if attack is None:
        return []
    return list(attack) if isinstance(attack, (list, tuple)) else [attack]


def _describe(attack: Any) -> dict[str, Any]:
    described = attack.describe() if hasattr(attack, "describe") else None
    return described or {"kind": getattr(attack, "__name__", type(attack).__name__)}


def _worst_case(labels: Tensor, predictions: list[Tensor]) -> Tensor:
    """(N,): the prediction of the first attack that fooled the example; the right class where none did."""
    worst = predictions[0]
    for other in predictions[1:]:
        worst = torch.where(worst == labels, other, worst)
    return worst


def _device_of(model: nn.Module, device: torch.device | str | None) -> torch.device | None:
    if device is not None:
        return torch.device(device)
    first = next(model.parameters(), None)
    return None if first is None else first.device


def _check_fault(attack: Any) -> None:
    fault = getattr(attack, "fault", None)
    if isinstance(fault, Tensor) and (messages := ops.fault_messages(int(fault))):
        raise InputError(f"the attack's kernels reported: {'; '.join(messages)}")
