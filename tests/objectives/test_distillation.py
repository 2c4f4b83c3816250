"""Distillation against DeiT's formulas, timm's model and task, and by hand."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import vitlab
from objectives.made import batch_of
from oracles.peers import timm
from vitlab.data.augment.mix import Mix
from vitlab.data.augment.normalize import normalize
from vitlab.data.loading.batch import Batch
from vitlab.errors import OptionError
from vitlab.images import ImageSpec
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.models.configs.tokenizer_config import TokenizerConfig
from vitlab.models.create import build
from vitlab.models.model import Model
from vitlab.objectives.classify import Classify
from vitlab.objectives.distillation import (
    Distillation,
    Teacher,
    check_teacher,
    remarks_of,
    with_distillation_token,
)
from vitlab.objectives.pretext_task import Learner
from vitlab.recipes.losses import Distill

NAMES = ("ant", "bee", "cat", "dog", "eel")
SMALL: dict[str, Any] = {"depth": 1, "heads": 2, "patch": 8, "labels": NAMES, "classes": 5}
GENERATOR = torch.Generator()


def small(seed: int = 0, size: int = 16, width: int = 16, **choices: Any) -> Model:
    """A small model whose every weight is random."""
    config = ViTConfig(**SMALL | {"width": width, "mlp": 2 * width, "image_size": size} | choices)
    generator = torch.Generator().manual_seed(seed)
    model = build(config, generator)
    for weight in model.parameters():
        weight.data = torch.randn(weight.shape, generator=generator) * 0.2
    return model


def some(count: int = 4, size: int = 16, seed: int = 5) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 3, size, size, generator=generator)
    return batch_of(images, torch.randint(5, (count,), generator=generator))


def made(student: Model, guide: Model, loss: Classify | None = None, **options: Any) -> Any:
    chosen = Distill(teacher="teacher", **options)
    task = Distillation(chosen, loss or Classify(), student.config, guide)
    task.reset_parameters(torch.Generator().manual_seed(1))
    return task


# The formulas, in NumPy


def log_softmax(scores: Any) -> Any:
    shifted = scores - scores.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def sigmoid(scores: Any) -> Any:
    return 1 / (1 + np.exp(-scores))


def two_sided(z: Any, targets: Any) -> Any:
    return -(targets * np.log(sigmoid(z)) + (1 - targets) * np.log(1 - sigmoid(z)))


def hard_sigmoid(z: Any, y: Any, theirs: Any) -> float:
    one = np.eye(5)
    own = two_sided(z, one[y]) + two_sided(z, one[theirs.argmax(1)])
    return float(0.5 * own.sum(1).mean())


def soft_bce(z: Any, y: Any, theirs: Any) -> float:
    p = np.exp(log_softmax(theirs / 3))
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p))
    divergence = 9 * (two_sided(z / 3, p) - entropy).mean()
    return float(0.5 * two_sided(z, np.eye(5)[y]).mean() + 0.5 * divergence)


@pytest.mark.parametrize(
    ("kind", "how", "formula"),
    [("sigmoid", "hard", hard_sigmoid), ("bce", "soft", soft_bce)],
)
def test_formulas_of_sigmoids(kind: Any, how: str, formula: Any) -> None:
    student, guide, batch = small(0), small(1), some()
    task = made(student, guide, Classify(kind=kind), distill=how)
    loss, figures = task.loss(student, batch, GENERATOR)
    with torch.no_grad():
        z, theirs = student(batch.images).double().numpy(), guide(batch.images).double().numpy()
    assert loss.item() == pytest.approx(formula(z, batch.labels.numpy(), theirs), rel=1e-5)
    assert figures["correct"] == (z.argmax(1) == batch.labels.numpy()).sum()
    assert figures["agreed"] == (z.argmax(1) == theirs.argmax(1)).sum()


def test_only_the_labels_are_smoothed_weighted_and_mixed() -> None:
    student, guide, batch = small(0), small(1), some()
    weights = np.arange(1, 6, dtype=np.float32)
    base = Classify(0.1, weights=weights)
    pixels, labels = Mix(0.7, None)(batch.images.clone(), batch.labels, 5)  # type: ignore[union-attr]
    mixed = replace(batch, images=pixels, labels=labels)
    loss, _ = made(student, guide, base).loss(student, mixed, GENERATOR)
    scores, decided = student(pixels), guide(pixels).argmax(-1)
    want = base.mean(scores, labels) / 2 + nn.functional.cross_entropy(scores, decided) / 2
    torch.testing.assert_close(loss, want)


def test_several_labels() -> None:
    student, guide, batch = small(0), small(1), some()
    guide.provenance = {"multi_label": True, "thresholds": [0.5, 0.2, 0.5, 0.9, 0.5]}
    labels = torch.randint(2, (4, 5), generator=torch.Generator().manual_seed(2)).float()
    several = replace(batch, labels=labels)
    for how in ("hard", "soft"):
        chosen = Distill(teacher="teacher", distill=how)  # type: ignore[arg-type]
        task = Distillation(chosen, Classify(kind="bce"), student.config, guide, several=True)
        loss, _ = task.loss(student, several, GENERATOR)
        with torch.no_grad():
            z, theirs = student(batch.images).double().numpy(), guide(batch.images).numpy()
        base = two_sided(z, labels.numpy()).mean()
        if how == "hard":
            yes = sigmoid(theirs) > np.array([0.5, 0.2, 0.5, 0.9, 0.5])
            want = two_sided(z, yes.astype(float)).mean()
        else:
            p = sigmoid(theirs / 3)
            want = 9 * (two_sided(z / 3, p) - two_sided(theirs / 3, p)).mean()
        assert loss.item() == pytest.approx((base + want) / 2, rel=1e-5)


# The distillation token, against timm's model and task


def distilled_pair(folder: Path) -> tuple[Any, Model]:
    """Timm's distilled model with random weights, and ours with the same."""
    timm()
    from timm.models import create_model

    torch.manual_seed(0)
    other = create_model("deit_tiny_distilled_patch16_224", img_size=32, depth=2, num_classes=5)
    for weight in other.parameters():
        nn.init.normal_(weight, std=0.1)
    torch.save(other.state_dict(), folder / "any.pth")
    return other, vitlab.load(folder / "any.pth")


@pytest.mark.parametrize("how", ["hard", "soft"])
def test_distillation_token_is_timms(how: Any, tmp_path: Path) -> None:
    other, model = distilled_pair(tmp_path)
    from timm.task import TokenDistillationTask

    guide = small(3, 32, mean=model.config.mean, std=model.config.std, labels=())
    batch = some(4, 32)
    theirs = TokenDistillationTask(
        other, guide, nn.CrossEntropyLoss(), distill_type=how, distill_loss_weight=0.5,
        task_loss_weight=0.5, temperature=3.0, verbose=False,
    )  # fmt: skip
    other.set_distilled_training(True)
    other.train()
    want = theirs(batch.images, batch.labels)
    want["loss"].backward()

    task = made(model.train(), guide, distill=how, distill_token=True)
    heads = task.heads
    heads.difference.data = (other.head.bias - other.head_dist.bias).detach() / 2
    for ours, scores in zip(heads(model, batch.images), other(batch.images), strict=True):
        torch.testing.assert_close(ours, scores)
    loss, _ = task.loss(model, batch, GENERATOR)
    torch.testing.assert_close(loss, want["loss"])
    loss.backward()
    kernels = torch.cat([other.head.weight.grad, other.head_dist.weight.grad], 1)
    torch.testing.assert_close(model.get_parameter("head.classify.weight").grad, 2 * kernels)
    difference = other.head.bias.grad - other.head_dist.bias.grad
    torch.testing.assert_close(heads.difference.grad, difference)
    torch.testing.assert_close(model.eval()(batch.images), other.eval()(batch.images))


def test_soft_distillation_is_timms() -> None:
    timm()
    from timm.task import LogitDistillationTask

    student, guide, batch = small(0), small(1, mean=0.2, std=0.7), some()
    student.pretrained_cfg = {"mean": student.config.mean, "std": student.config.std}  # type: ignore[assignment]
    guide.pretrained_cfg = {"mean": guide.config.mean, "std": guide.config.std}  # type: ignore[assignment]
    student.num_classes, student.in_chans = 5, 3  # type: ignore[assignment]
    theirs = LogitDistillationTask(
        student, guide, nn.CrossEntropyLoss(), task_loss_weight=0.3, temperature=2.0, verbose=False
    )
    options = {"distill": "soft", "distill_weight": 0.7, "distill_temperature": 2.0}
    loss, _ = made(student, guide, **options).loss(student, batch, GENERATOR)
    torch.testing.assert_close(loss, theirs(batch.images, batch.labels)["loss"])


def test_a_trained_distillation_token_loads_in_timm(tmp_path: Path) -> None:
    plain = small(0).config
    config = with_distillation_token(plain)
    assert with_distillation_token(config) == config
    model, guide = build(config, torch.Generator().manual_seed(0)), small(1)
    task = made(model, guide, distill_token=True)
    learned(model, task, 3)
    assert task.heads.difference.abs().max() > 0
    vitlab.save(model, tmp_path / "own")
    vitlab.save(model, tmp_path / "timm", to="timm")
    timm()
    from timm.models import create_model

    other = create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    images = some().images
    want = model.eval()(images)
    torch.testing.assert_close(other(images), want, rtol=1e-5, atol=1e-6)
    for folder in ("own", "timm"):
        torch.testing.assert_close(vitlab.load(tmp_path / folder)(images), want)


def test_registers_stay_beside_a_distillation_token() -> None:
    config = with_distillation_token(small(0, registers=2).config)
    assert (config.registers, config.pool_tokens, config.pooled) == (3, (0, 3), 2 * config.width)
    model = build(config)
    with torch.no_grad():
        tokens = model.encode(some().images)
        want = torch.cat([tokens[:, 0], tokens[:, 3]], 1)
        torch.testing.assert_close(model.features(some().images), want)


# What the teacher sees


def test_the_teacher_sees_the_same_crop_as_it_takes_it() -> None:
    other: dict[str, Any] = {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}
    bytes_ = torch.randint(256, (2, 16, 16, 3), dtype=torch.uint8, generator=GENERATOR)
    student, guide = small(0), small(1, 16, **other)
    seen = Teacher(guide, student.config, "soft").images(normalize(bytes_, student.config))
    torch.testing.assert_close(seen, normalize(bytes_, ImageSpec(**other)))
    pixels = torch.randn(2, 3, 16, 16, generator=GENERATOR)  # which a smaller one sees smoothed
    half = Teacher(less := small(1, 8), student.config, "soft").images(pixels)
    how = less.config.interpolation
    want = nn.functional.interpolate(pixels, (8, 8), mode=how, antialias=True)
    torch.testing.assert_close(half, want)
    wide = Teacher(small(1, (32, 24), **other), student.config, "soft")
    flat = bytes_[:, :1, :1].expand(2, 16, 16, 3).contiguous()
    seen = wide.images(normalize(flat, student.config))
    assert seen.shape == (2, 3, 32, 24)
    torch.testing.assert_close(
        seen[..., 5:6, 7:8], normalize(flat, ImageSpec(**other))[..., :1, :1]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_teacher_is_frozen_and_computes_as_the_student_does(dtype: torch.dtype) -> None:
    student, guide = small(0), small(1)
    before = {name: tensor.clone() for name, tensor in guide.state_dict().items()}
    seen: list[Any] = []
    guide.head.register_forward_hook(lambda _m, _a, out: seen.append((out.dtype, _m.training)))
    task = made(student, guide.train(), distill="soft")
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
        learned(student, task, 2)
    assert seen == [(dtype, False)] * 2
    assert all(weight.grad is None and not weight.requires_grad for weight in guide.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in guide.state_dict().items())
    assert list(task.parameters()) == list(task.state_dict()) == []


def learned(model: Model, task: Any, steps: int, batches: list[Batch] | None = None) -> list[float]:
    """Take some steps of training; return the losses."""
    learner = Learner(model, task).train()
    optimizer = torch.optim.AdamW([w for w in learner.parameters() if w.requires_grad], 1e-2)
    losses = []
    for step in range(steps):
        batch = some() if batches is None else batches[step % len(batches)]
        loss, _ = learner(batch, GENERATOR)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_classes_are_matched_by_name() -> None:
    student, guide, batch = small(0), small(1), some()
    order = [3, 0, 4, 5, 1, 2]
    names = ("fly", *NAMES)
    more = small(1, classes=6, labels=tuple(names[place] for place in order))
    more.load_state_dict({**guide.state_dict(), **{
        name: torch.cat([tensor[:1], tensor])[order]
        for name, tensor in guide.state_dict().items() if name.startswith("head.classify")
    }})  # fmt: skip
    for how in ("hard", "soft"):
        want = made(student, guide, distill=how).loss(student, batch, GENERATOR)
        got = made(student, more, distill=how).loss(student, batch, GENERATOR)
        torch.testing.assert_close(got, want)
    unnamed = small(1, labels=())
    assert "data's order" in remarks_of(student.config, unnamed)[0]


# Refusals


@pytest.mark.parametrize(
    ("student", "guide", "options", "words"),
    [
        ({}, {"classes": 0, "labels": ()}, {}, "no classifier: fine-tune it"),
        ({}, {"classes": 3, "labels": ()}, {}, "3 classes without names, but the data have 5"),
        ({}, {"labels": ("x", *NAMES[1:])}, {}, "does not know class 'ant': fine-tune it"),
        ({}, {"labels": tuple("vwxyz")}, {}, "'ant' and 4 others: fine-tune it"),
        ({}, {"channels": 1}, {}, "images of 1 channels, not 3"),
        ({"fit": "native", "positions": "1d"}, {}, {}, "images of one size: set fit=crop"),
        ({}, {"pool": "attention", "queries": 2}, {"distill": "soft"}, "2 outputs per image"),
    ],
)
def test_teachers_without_use_are_refused(
    student: dict[str, Any], guide: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    config = small(0, **student).config
    with pytest.raises(OptionError, match=words):
        check_teacher(Distill(teacher="teacher", **options), config, small(1, **guide))


def test_other_models_and_labels_are_refused() -> None:
    config, chosen = small(0).config, Distill(teacher="teacher")
    tokens = build(TokenizerConfig(image_size=16, classes=0), GENERATOR)
    with pytest.raises(OptionError, match="is a tokenizer, not a teacher"):
        check_teacher(chosen, config, tokens)
    with pytest.raises(OptionError, match="one label each, and these have several labels"):
        check_teacher(chosen, config, small(1), several=True)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (vitlab.create("BiT-R50x1", 5, 32, stages=(1,)).config, "has no tokens"),
        (small(0, pool="mean").config, "pool=mean"),
        (small(0, pool="both").config, "pool=both"),
        (small(0, norm_at="pooled").config, "norm_at=pooled"),
        (small(0, pre_logits=8).config, "pre_logits"),
        (small(0, pool="prefix", registers=3, class_token=True).config, "pool=prefix sees 4"),
    ],
)
def test_models_without_a_place_for_the_token_are_refused(config: ModelConfig, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        with_distillation_token(config)


def test_trained_weights_need_the_token() -> None:
    with pytest.raises(OptionError, match="needs weights with a distillation token"):
        with_distillation_token(small(0).config, trained=True)
    config = with_distillation_token(small(0).config)
    assert with_distillation_token(config, trained=True) == config


def test_the_loss_is_finite_for_certain_teachers() -> None:
    """Probabilities of 0 and 1."""
    student, guide, batch = small(0), small(1), some()
    guide.head.classify.weight.data.mul_(1e4)
    for kind in ("softmax", "bce"):
        task = made(student, guide, Classify(kind=kind), distill="soft")  # type: ignore[arg-type]
        assert isinstance(task, Distillation)
        loss = task.loss(student, batch, GENERATOR)[0]
        loss.backward()
        assert math.isfinite(loss.item())
        assert all(w.grad.isfinite().all() for w in student.parameters())  # type: ignore[union-attr]
