"""Adversarial training of a ViT with Hugging Face's Trainer, as one writes it without cfol_fast: python
hugging_face.py DIR [EPOCHS]

DIR holds train/<class>/*.png and test/<class>/*.png, all of one size. hugging_face_cfol.py is the same with
CFOL.
"""

import sys

import torch
from datasets import load_dataset
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torchvision.transforms.functional import to_tensor
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

EPS = 8 / 255


def attack(model, x, y):
    x_adv = (x + torch.empty_like(x).uniform_(-EPS, EPS)).clamp(0, 1).requires_grad_()
    (grad,) = torch.autograd.grad(cross_entropy(model(x_adv).logits, y), x_adv)
    return (x + (x_adv - x + 1.25 * EPS * grad.sign()).clamp(-EPS, EPS)).clamp(0, 1).detach()


class RobustTrainer(Trainer):
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
    trainer = RobustTrainer(model, args, train_dataset=train)
    trainer.train()
    model.eval()
    batches = [(batch["pixel_values"], batch["labels"]) for batch in DataLoader(test, batch_size=16)]
    right = sum((model(attack(model, x, y)).logits.argmax(1) == y).sum().item() for x, y in batches)
    print(f"robust accuracy {right / len(test):.1%}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
