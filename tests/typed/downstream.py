"""A program of a user's, as mypy and pyright see it: each line that says `mistake` is one."""

from pathlib import Path

import torch
from torch import Tensor

import vitlab


def architecture() -> int:
    model = vitlab.create("ViT-S/16", classes=10, registers=4, stem="hmlp", drop_path=0.1)
    vitlab.create("ViT-S/16", regsters=4)  # mistake: no such field
    vitlab.create("ViT-S/16", pool="means")  # mistake: no such pool
    vitlab.create("ViT-S/16", layer_scale="1e-4")  # mistake: a number is needed
    logits: Tensor = model(torch.zeros(1, 3, 224, 224))
    loss: float = model(logits)  # mistake: it is a tensor
    tokens = model.encode(torch.zeros(1, 3, 224, 224))
    maps: list[Tensor] = model.attention_maps(torch.zeros(1, 3, 224, 224))
    width: int = model.config.width
    name: int = model.config.name  # mistake: it is text
    fused = vitlab.fuse(model)
    return width + name + int(loss) + tokens.shape[1] + len(maps) + fused.config.classes


def convolutions() -> tuple[int, ...]:
    resnet = vitlab.create("BiT-R50x1", classes=5, kind=vitlab.ResNet)
    return resnet.config.stages


def released(file: Path) -> float:
    model = vitlab.load(file, classes=3, labels=["cat", "dog", "bird"], image_size=(224, 320))
    vitlab.load(file, class_names=["cat", "dog", "bird"])  # mistake: they are called labels
    found = vitlab.evaluate(model, "photos", split="test", flips=True)
    vitlab.evaluate(model, "photos", splits="test")  # mistake: it is called split
    print(found.acuracy)  # mistake: misspelled
    answers = vitlab.classify(model, [file], top=3)
    images: Tensor = vitlab.preprocess(model)([file])
    temperature: float = vitlab.calibrate(model, "photos").temperature
    return found.accuracy + found.nll + temperature + len(answers) + len(images)


def runs() -> float:
    recipe = vitlab.recipe("small", data="photos", model="ViT-Ti/16", lr=1e-3, epochs=3, mixup=0.8)
    vitlab.recipe("small", data="photos", epohcs=3)  # mistake: misspelled
    run = vitlab.train(recipe, "runs/a", host=vitlab.Host(workers=2), quiet=True)
    vitlab.train("photos")  # mistake: a Recipe is needed
    tuned = vitlab.finetune("photos", "facebook/dinov2-small", tune="lora", lora_rank=4, lr=1e-3)
    vitlab.finetune("photos", tune="heads")  # mistake: no such choice
    probed = vitlab.probe("photos", by="ridge", layers=2, test_fraction=0.1, pool="mean")
    vitlab.probe("photos", lr=1e-3)  # mistake: a probe takes no steps
    delta = vitlab.delta(tuned.model, vitlab.load("facebook/dinov2-small"))
    delta.save(tuned.folder / "delta.safetensors")
    vitlab.save(run.model, "model")
    assert run.metrics.notes == []
    assert probed.metrics.head["by"] == "ridge"
    return run.metrics.accuracy + probed.metrics.accuracy
