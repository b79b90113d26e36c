"""SamplerTrainer with a vision transformer from a configuration: the sampler learns, survives a checkpoint,
and is logged.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import (
    ResNetConfig,
    ResNetForImageClassification,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

import cfol_fast as cf
from cfol_fast.errors import InputError
from cfol_fast.integrations.hugging_face import SamplerTrainer
from cfol_fast.runs import checkpoints

NAMES = {0: "cat", 1: "dog", 2: "sign"}


def examples(count: int = 48) -> list[dict[str, Any]]:
    """Each class has a brightness of its own."""
    generator = torch.Generator().manual_seed(0)
    return [
        {"pixel_values": torch.rand(3, 8, 8, generator=generator) / 3 + i % 3 / 3, "labels": i % 3}
        for i in range(count)
    ]


def new_sampler() -> cf.ClassSampler:
    return cf.ClassSampler([example["labels"] for example in examples()], eta=0.01)


def new_model() -> ViTForImageClassification:
    torch.manual_seed(0)
    tiny = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 16}
    return ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, id2label=NAMES, **tiny))


def new_resnet() -> ResNetForImageClassification:
    torch.manual_seed(0)
    tiny = {"embedding_size": 8, "hidden_sizes": [8], "depths": [1], "layer_type": "basic"}
    return ResNetForImageClassification(ResNetConfig(id2label=NAMES, **tiny))


def new_trainer(folder: Path, sampler: cf.ClassSampler, epochs: float = 1, **options: Any) -> SamplerTrainer:
    arguments = {
        "save_strategy": "no",
        "logging_strategy": "epoch",
        "report_to": "none",
        "disable_tqdm": True,
    }
    arguments |= {"per_device_train_batch_size": 8, "use_cpu": True, "learning_rate": 0.01}
    kind = options.pop("kind", SamplerTrainer)
    model, data = options.pop("model", None) or new_model(), options.pop("train_dataset", examples())
    args = TrainingArguments(str(folder), num_train_epochs=epochs, **{**arguments, **options})
    return kind(model, args, train_dataset=data, sampler=sampler)


def test_the_sampler_learns_as_in_a_plain_loop(tmp_path: Path) -> None:
    plain, inside, model = new_sampler(), new_sampler(), new_model()
    trainer = new_trainer(tmp_path, inside, learning_rate=0.0)
    trainer.train()
    for batch, ticket in cf.loader(examples(), plain, batch_size=8):
        wrong = model(batch["pixel_values"]).logits.argmax(1) != batch["labels"]
        plain.update(batch["labels"], wrong, p=ticket)
    assert inside.fingerprint() == plain.fingerprint()
    assert not torch.equal(inside.p, new_sampler().p)


def test_the_worst_class_and_p_are_logged_with_the_loss(tmp_path: Path) -> None:
    sampler = new_sampler()
    trainer = new_trainer(tmp_path, sampler)
    trainer.train()
    (logged,) = (row for row in trainer.state.log_history if "loss" in row)
    assert [logged[f"p/{name}"] for name in NAMES.values()] == pytest.approx(sampler.p.tolist())
    assert logged["worst_class"] in NAMES
    assert 0 <= logged["worst_class_accuracy"] <= 1


class Copying(SamplerTrainer):
    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **options: Any) -> Any:
        own = {name: inputs[name] for name in ("pixel_values", "labels")}
        return super().compute_loss(model, own, *args, **options)


class Alone(SamplerTrainer):
    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, **options: Any
    ) -> Any:
        outputs = model(pixel_values=inputs["pixel_values"], labels=inputs["labels"])
        return (outputs.loss, outputs) if return_outputs else outputs.loss


@pytest.mark.parametrize("kind", [Copying, Alone])
def test_a_loss_of_ones_own_that_tells_the_sampler_nothing_is_told_how(
    tmp_path: Path, kind: type[SamplerTrainer]
) -> None:
    """The run would be one without CFOL."""
    trainer = new_trainer(tmp_path, new_sampler(), kind=kind)
    assert "eval_loss" in trainer.evaluate(examples(6))
    with pytest.raises(
        InputError, match=r"was not told .* must return super\(\)\.compute_loss\(model, inputs"
    ):
        trainer.train()


class Positional(SamplerTrainer):
    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


def test_the_signature_is_hugging_faces(tmp_path: Path) -> None:
    sampler = new_sampler()
    new_trainer(tmp_path, sampler, kind=Positional).train()
    assert sampler.p.tolist() != new_sampler().p.tolist()


def test_a_last_batch_may_be_left_out(tmp_path: Path) -> None:
    for drop, steps in ((False, 3), (True, 2)):
        options = {"per_device_train_batch_size": 20, "dataloader_drop_last": drop}
        trainer = new_trainer(tmp_path, new_sampler(), **options)
        trainer.train()
        assert trainer.state.global_step == steps


def test_an_evaluation_teaches_the_sampler_nothing(tmp_path: Path) -> None:
    sampler = new_sampler()
    trainer = new_trainer(tmp_path, sampler)
    before = sampler.fingerprint()
    assert "eval_loss" in trainer.evaluate(examples(6))
    assert sampler.fingerprint() == before


def test_a_run_that_continues_from_a_checkpoint_ends_as_one_that_was_not_interrupted(tmp_path: Path) -> None:
    """With a ResNet: transformers 5.22 itself loses the encoder of a ViT when its Trainer resumes."""
    whole, first, second = new_sampler(), new_sampler(), new_sampler()
    schedule = {"lr_scheduler_type": "constant", "save_strategy": "epoch"}
    reference = new_trainer(tmp_path / "whole", whole, 2, model=new_resnet(), **schedule)
    reference.train()
    new_trainer(tmp_path / "part", first, 1, model=new_resnet(), **schedule).train()
    resumed = new_trainer(tmp_path / "part", second, 2, model=new_resnet(), **schedule)
    resumed.train(resume_from_checkpoint=True)
    assert second.fingerprint() == whole.fingerprint() != first.fingerprint()
    for name, weight in resumed.model.state_dict().items():
        assert torch.equal(weight, reference.model.state_dict()[name]), name


def test_a_checkpoint_in_the_middle_of_an_epoch_can_be_continued(tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 4}
    new_trainer(tmp_path, new_sampler(), 1, **options).train()
    trainer = new_trainer(tmp_path, new_sampler(), 2, **options)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert trainer.state.global_step == 12


def test_a_checkpoint_without_a_sampler_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-6").mkdir()
    with pytest.raises(InputError, match=r"checkpoint-6 has no sampler.pt"):
        new_trainer(tmp_path, new_sampler()).train(resume_from_checkpoint=True)


def test_a_damaged_sampler_is_refused_with_its_file_s_name(tmp_path: Path) -> None:
    new_trainer(tmp_path, new_sampler(), save_strategy="epoch").train()
    file = tmp_path / "checkpoint-6/sampler.pt"
    whole = file.read_bytes()
    damaged = bytearray(whole)
    # A byte of the weights: torch itself would not notice.
    damaged[whole.index(new_sampler().state_dict()["base"].numpy().tobytes())] ^= 1
    for held in (bytes(damaged), whole[:-100], b"", b"no checkpoint"):
        file.write_bytes(held)
        sampler = new_sampler()
        with pytest.raises(InputError, match=r"checkpoint-6/sampler.pt is damaged") as caught:
            new_trainer(tmp_path, sampler, 2).train(resume_from_checkpoint=True)
        assert "\n" not in str(caught.value)
        assert sampler.fingerprint() == new_sampler().fingerprint()


def test_a_sampler_of_another_kind_and_one_without_a_digest_are_refused(tmp_path: Path) -> None:
    sampler = new_sampler()
    new_trainer(tmp_path, sampler, save_strategy="epoch").train()
    file = tmp_path / "checkpoint-6/sampler.pt"
    checkpoints.write(file, {"kind": "class", "size": sampler.size})
    with pytest.raises(InputError, match=r"the state has no eta"):
        new_trainer(tmp_path, new_sampler(), 2).train(resume_from_checkpoint=True)
    # As cfol_fast wrote it until 0.2.
    torch.save(sampler.state_dict(), file)
    with pytest.raises(InputError, match=r"sampler.pt has no digest"):
        new_trainer(tmp_path, new_sampler(), 2).train(resume_from_checkpoint=True)


def test_a_data_set_of_the_datasets_package_works_with_accumulated_gradients(tmp_path: Path) -> None:
    rows = [{**row, "pixel_values": row["pixel_values"].tolist()} for row in examples()]
    data = Dataset.from_list(rows).with_format("torch")
    sampler = new_sampler()
    trainer = new_trainer(tmp_path, sampler, train_dataset=data, gradient_accumulation_steps=2)
    trainer.train()
    assert trainer.state.global_step == 3
    assert not torch.equal(sampler.p, new_sampler().p)


ON_RANKS = """
import torch.distributed as dist
from pathlib import Path
from tests.integrations.test_hugging_face import new_sampler, new_trainer

sampler = new_sampler()
new_trainer(Path("out"), sampler, learning_rate=0.0).train()
sampler.check_ranks()
if dist.get_rank() == 0:
    Path("found").write_text(f"{dist.get_world_size()} {sampler.fingerprint()}")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_learn_together_what_one_learns_from_twice_the_batch(tmp_path: Path) -> None:
    alone = new_sampler()
    new_trainer(tmp_path, alone, learning_rate=0.0, per_device_train_batch_size=16).train()
    (tmp_path / "train.py").write_text(ON_RANKS)
    command = "-m torch.distributed.run --standalone --nproc-per-node 2 train.py"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, *command.split()], check=True, cwd=tmp_path, env=env)
    assert (tmp_path / "found").read_text() == f"2 {alone.fingerprint()}"
