"""`evaluate_ensemble`: several models, each attacked on its own, and the risk of each class averaged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from cfol_fast import theory
from cfol_fast.errors import InputError
from cfol_fast.evaluation.evaluator import AttackLike, evaluate
from cfol_fast.evaluation.inputs import as_source, model_classes
from cfol_fast.evaluation.result import Evaluation


@dataclass
class EnsembleEvaluation:
    """Several models: the risk of each class averaged over the members, which is what the paper's Theorem 1
    bounds.

    clean_risk, robust_risk: (k,) float64; for the second every member is attacked on its own (None without an
    attack).
    """

    members: list[Evaluation]
    clean_risk: Tensor
    robust_risk: Tensor | None

    @property
    def worst_risk(self) -> float:
        """The largest class risk, under attack where there is one."""
        return float((self.clean_risk if self.robust_risk is None else self.robust_risk).max())

    def to_json(self) -> dict[str, Any]:
        names = self.members[0].clean.classes
        risks = {"clean_risk": self.clean_risk, "robust_risk": self.robust_risk}
        return {
            "format": 1,
            "kind": "ensemble",
            "worst_risk": self.worst_risk,
            **{k: None if v is None else dict(zip(names, v.tolist(), strict=True)) for k, v in risks.items()},
            "members": [member.to_json() for member in self.members],
        }


def evaluate_ensemble(
    models: Iterable[nn.Module],
    x_or_source: Any,
    y: Tensor | None = None,
    attack_factory: Callable[[nn.Module], AttackLike] | None = None,
    averaged_logits: bool = False,
    **options: Any,
) -> EnsembleEvaluation | Evaluation:
    """Evaluates each model under an attack of its own, `attack_factory(model)`, and averages the class risks.

    averaged_logits: instead the one classifier whose logits are the members' mean, attacked as a whole. That
    is another model, and not the quantity of the theorem. options: as for `evaluate`.
    """
    if averaged_logits:
        whole = theory.AveragedLogits(models)
        return evaluate(whole, x_or_source, y, attack_factory and attack_factory(whole), **options)
    models = list(models)
    if not models:
        raise InputError("the ensemble has no members")
    orders = {tuple(names) for model in models if (names := model_classes(model))}
    if len(orders) > 1 and not options.get("classes_by_position"):
        source = as_source(x_or_source, y)
        if not (options.get("class_names") or source.classes):
            raise InputError(
                "the members of the ensemble have their classes in other orders, and the data name none: pass"
                " class_names=, in the order of the labels"
            )
    members = [
        evaluate(model, x_or_source, y, attack_factory and attack_factory(model), **options)
        for model in models
    ]
    attacked = [member.robust for member in members if member.robust is not None]
    return EnsembleEvaluation(
        members,
        theory.ensemble_risk(members, lambda member: member.clean).per_class,
        theory.ensemble_risk(attacked, lambda accuracy: accuracy).per_class if attacked else None,
    )
