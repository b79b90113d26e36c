"""The same training with CFOL: python hugging_face_cfol.py DIR [EPOCHS]

What changed against hugging_face.py: a sampler, the class that RobustTrainer is made from, and the
evaluation.
"""

import sys

import torch
from datasets import load_dataset
from torch.nn.functional import cross_entropy
from torchvision.transforms.functional import to_tensor
from transformers import TrainingArguments, ViTConfig, ViTForImageClassification

import cfol_fast as cf
from cfol_fast.integrations.hugging_face import SamplerTrainer

EPS = 8 / 255


def attack(model, x, y):
    x_adv = (x + torch.empty_like(x).uniform_(-EPS, EPS)).clamp(0, 1).requires_grad_()
    (grad,) = torch.autograd.grad(cross_entropy(model(x_adv).logits, y), x_adv)
    return (x + (x_adv - x + 1.25 * EPS * grad.sign()).clamp(-EPS, EPS)).clamp(0, 1).detach()


class RobustTrainer(SamplerTrainer):
    def compute_loss(self, model, inputs, *args, **options):
        inputs["pixel_values"] = attack(model, inputs["pixel_values"], inputs["labels"])
        return super().compute_loss(model, inputs, *args, **options)


def pixels(rows):
    return {"pixel_values": [to_tensor(image) for image in rows["image"]], "labels": rows["label"]}


def main(folder, epochs=3):
    data = load_dataset("imagefolder", data_dir=folder)
    train, test = data["train"].with_transform(pixels), data["test"].with_transform(pixels)
    names = data["train"].features["label"].names
    size = {"image_size": train[0]["pixel_values"].shape[-1], "patch_size": 4, "hidden_size": 32}
    size |= {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = ViTForImageClassification(ViTConfig(id2label=dict(enumerate(names)), **size))
    args = TrainingArguments(
        "runs/hugging-face",
        num_train_epochs=epochs,
        per_device_train_batch_size=16,
        learning_rate=1e-3,
        logging_strategy="epoch",
        remove_unused_columns=False,
        report_to="none",
    )
    sampler = cf.ClassSampler(data["train"]["label"], draws=epochs * len(train))
    trainer = RobustTrainer(model, args, train_dataset=train, sampler=sampler)
    trainer.train()
    print(cf.evaluate(model, test, attack={"eps": EPS, "steps": 20}).table())


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
