"""DINO against the formulas of the papers, written down in NumPy; what learns and what does not."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import erf, log_softmax, softmax
from torch import Tensor

from vitlab.data.loading.batch import Batch
from vitlab.data.settings import Augment
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.models.create import build
from vitlab.models.model import Model
from vitlab.objectives.crops import crop_views
from vitlab.objectives.dino import (
    Projector,
    SelfDistillation,
    balanced,
    collapse,
    entropy,
    momentum_at,
    spread,
    temperature_at,
)
from vitlab.objectives.pretext_task import Learner
from vitlab.optim.averaging import follow
from vitlab.recipes.pretext import Pretext

Array = NDArray[np.float64]
CONFIG = ViTConfig(
    width=16, heads=2, depth=2, mlp=32, patch=4, image_size=16, classes=0, registers=2
)
SMALL = {"prototypes": 24, "head_width": 20, "bottleneck": 8, "local_crops": 3, "local_size": 8}


def options(**chosen: Any) -> Pretext:
    return Pretext(task="dino", **{**SMALL, **chosen})


def made(config: ModelConfig = CONFIG, **chosen: Any) -> tuple[Model, SelfDistillation]:
    """A model in training, and its task after a start."""
    model = build(config, torch.Generator().manual_seed(1))
    task = SelfDistillation(options(**chosen), config)
    task.reset_parameters(torch.Generator().manual_seed(2))
    task.start(model)
    return model.train(), task.train()


def batch_of(config: ModelConfig = CONFIG, count: int = 4, seed: int = 0, **chosen: Any) -> Batch:
    """Noise in place of the crops of some images."""
    generator = torch.Generator().manual_seed(seed)
    none, rest = torch.zeros(count, dtype=torch.int64), torch.empty(count, 0)
    views = crop_views(options(**chosen), config, Augment())
    each = [
        Batch(torch.randn(count, config.channels, *v.size, generator=generator), none, rest, none)
        for v in views
    ]
    return Batch(each[0].images, none, rest, none, views=tuple(each[1:]))


def images_of(batch: Batch) -> list[Tensor]:
    found = [batch.images, *(view.images for view in batch.views)]
    return [each for each in found if isinstance(each, Tensor)]


def moved_apart(task: SelfDistillation) -> None:
    """Make the teacher another than the student, with a center."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in (*task.teacher.parameters(), *task.taught_projector.parameters()):
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
        task.center += 0.1 * torch.randn(task.center.shape, generator=generator)


def answers(projector: Projector, features: Tensor) -> Array:
    """The projector, in NumPy."""
    values = features.detach().double().numpy()
    for number, layer in enumerate(projector.dense):
        weight, bias = (w.detach().double().numpy() for w in layer.parameters())
        values = values if number == 0 else values * (1 + erf(values / math.sqrt(2))) / 2
        values = values @ weight.T + bias
    rows = projector.prototypes.detach().double().numpy()
    lengths = np.linalg.norm(values, axis=1)[:, None] * np.linalg.norm(rows, axis=1)[None]
    return values @ rows.T / lengths


def test_the_loss_is_the_paper_s_over_all_pairs_of_different_views() -> None:
    model, task = made()
    moved_apart(task)
    task.begin(0, 10, 1.0)
    views = images_of(batch := batch_of())
    wanted, pairs = 0.0, 0
    for t, taught in enumerate(views[:2]):
        given = answers(task.taught_projector, task.teacher.features(taught))
        q = softmax((given - task.center.double().numpy()) / 0.04, axis=1)
        for s, seen in enumerate(views):
            if s != t:
                p = log_softmax(answers(task.projector, model.features(seen)) / 0.1, axis=1)
                wanted, pairs = wanted - (q * p).sum(1).mean(), pairs + 1
    assert pairs == 2 * len(views) - 2
    loss, _ = task.loss(model, batch, torch.Generator())
    assert loss.item() == pytest.approx(wanted / pairs, rel=1e-5)


def test_sinkhorn_uses_prototypes_equally_often_as_the_paper_s_algorithm_does() -> None:
    given = np.random.default_rng(0).normal(0, 0.3, (12, 5))
    table = np.exp(given / 0.1).T  # (K, B), as in SwAV's algorithm 1
    table /= table.sum()
    for _ in range(3):
        table /= table.sum(1, keepdims=True) * len(table)
        table /= table.sum(0, keepdims=True) * table.shape[1]
    found = balanced(torch.from_numpy(given), 0.1)
    np.testing.assert_allclose(found.numpy(), (table * table.shape[1]).T, rtol=1e-9)
    many = balanced(torch.from_numpy(given), 0.1, rounds=100).sum(0)
    np.testing.assert_allclose(many.numpy(), 12 / 5, rtol=1e-4)
    assert balanced(torch.full((3, 4), 1.0), 1e-3).isfinite().all()  # exp(1000) is not


def test_remarks_name_the_crops_and_who_looks_at_one_pass() -> None:
    crops = "crops of each image: 2 of 16x16 pixels and 3 of 8x8"
    assert SelfDistillation.remarks(options(), CONFIG) == [crops]
    _, line = SelfDistillation.remarks(options(centering="sinkhorn"), CONFIG)
    assert line.startswith("Sinkhorn-Knopp looks at the images of one pass in one process")


def test_momentum_and_temperature_follow_their_schedules() -> None:
    assert momentum_at(0, 100, 0.996) == pytest.approx(0.996)
    assert momentum_at(50, 100, 0.996) == pytest.approx(0.998)
    assert momentum_at(100, 100, 0.996) == 1
    found = [temperature_at(step, 100, (0.04, 0.07)) for step in (0, 5, 10, 99)]
    assert found == pytest.approx([0.04, 0.055, 0.07, 0.07])


def test_the_teacher_is_a_moving_average_of_the_student() -> None:
    model, task = made()
    before = [weight.clone() for weight in task.teacher.parameters()]
    with torch.no_grad():
        for weight in (*model.parameters(), *task.projector.parameters()):
            weight += 1
    task.begin(5, 10, 1.0)
    task.stepped(model, lambda sums: None)
    for old, new, student in zip(
        before, task.teacher.parameters(), model.parameters(), strict=True
    ):
        torch.testing.assert_close(new, 0.998 * old + 0.002 * student)
    first, second = task.taught_projector.prototypes, task.projector.prototypes
    torch.testing.assert_close(first, second - 0.998)


def test_buffers_of_the_teacher_are_the_student_s() -> None:
    one, other = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    other(torch.randn(8, 3))
    follow(one, other, 0.9)
    assert torch.equal(one.running_mean, other.running_mean)
    assert one.num_batches_tracked == 1


def test_the_center_is_the_mean_over_all_passes_and_processes() -> None:
    model, task = made()
    first, second = batch_of(seed=1), batch_of(seed=2, count=2)
    given = []
    for batch in (first, second):
        task.loss(model, batch, torch.Generator().manual_seed(0))
        given.append(task.taught_projector(task.teacher.features(torch.cat(images_of(batch)[:2]))))
    mean = torch.cat(given).mean(0)
    task.stepped(model, lambda sums: sums.mul_(2))  # two processes that saw the same
    torch.testing.assert_close(task.center, 0.1 * mean)
    task.drop()
    center = task.center.clone()
    task.stepped(model, lambda sums: None)  # every image was damaged
    assert torch.equal(task.center, center)


@pytest.mark.parametrize("chosen", [{}, {"centering": "sinkhorn"}])
def test_gradients_reach_all_of_the_student_and_nothing_of_the_teacher(
    chosen: dict[str, Any],
) -> None:
    model, task = made(**chosen)
    moved_apart(task)
    task.begin(50, 100, 1.0)
    task.loss(model, batch_of(), torch.Generator().manual_seed(0))[0].backward()
    taught = {id(w) for part in (task.teacher, task.taught_projector) for w in part.parameters()}
    for name, weight in Learner(model, task).named_parameters():
        if id(weight) in taught:
            assert weight.grad is None, name
            assert not weight.requires_grad
        else:
            assert weight.grad is not None, name
            assert weight.grad.any(), name


def test_prototypes_are_frozen_in_the_first_epochs() -> None:
    model, task = made(freeze_last=2.0)
    for step, free in ((0, False), (5, False), (6, True)):
        task.begin(step, 30, 3.0)
        task.projector.zero_grad()
        task.loss(model, batch_of(), torch.Generator())[0].backward()
        assert (task.projector.prototypes.grad is not None) == free
        assert task.projector.dense[0].weight.grad is not None


def test_the_teacher_has_neither_dropout_nor_stochastic_depth() -> None:
    config = ViTConfig(
        width=16, heads=2, depth=2, mlp=32, patch=4, image_size=16, classes=0, drop_path=0.5,
        dropout=0.3,
    )  # fmt: skip
    model, task = made(config)
    task.train()
    images = batch_of(config).images
    assert torch.equal(task.teacher.features(images), task.teacher.features(images))
    assert not torch.equal(model.features(images), model.features(images))
    assert task.projector.training


def test_figures_are_sums_over_the_images() -> None:
    model, task = made()
    moved_apart(task)
    _, figures = task.loss(model, batch := batch_of(), torch.Generator())
    assert set(figures) == set(task.figures)
    one, other = (
        softmax(
            (answers(task.taught_projector, task.teacher.features(v)) - task.center.numpy()) / 0.04,
            axis=1,
        )
        for v in images_of(batch)[:2]
    )
    both = np.concatenate([one, other])
    mean = both.mean(0)
    assert float(figures["teacher_entropy"]) == pytest.approx(
        -4 * (both * np.log(both)).sum(1).mean(), rel=1e-4
    )
    assert float(figures["mean_entropy"]) == pytest.approx(
        -4 * (mean * np.log(mean)).sum(), rel=1e-4
    )
    p, r = (
        log_softmax(answers(task.projector, model.features(v)) / 0.1, 1)
        for v in images_of(batch)[:2]
    )
    apart = (one * (np.log(one) - r)).sum(1).mean() + (other * (np.log(other) - p)).sum(1).mean()
    assert float(figures["disagreement"]) == pytest.approx(4 * apart / 2, rel=1e-4)
    assert float(spread(torch.randn(4000, 64))) == pytest.approx(1, abs=0.01)
    assert float(spread(torch.ones(4, 64))) == pytest.approx(0, abs=1e-6)
    assert float(entropy(torch.tensor([0.0, 1.0]))) == 0


@pytest.mark.parametrize(
    ("how", "words"), [("uniform", "uniform answers"), ("one", "one answer for all images")]
)
def test_a_collapsed_teacher_is_told_of(how: str, words: str) -> None:
    model, task = made()
    with torch.no_grad():
        head = task.taught_projector
        head.dense[2].weight.zero_()
        head.dense[2].bias.fill_(1.0)
        head.prototypes.fill_(1.0)
        if how == "one":
            head.prototypes[1:] *= -1
    _, sums = task.loss(model, batch_of(), torch.Generator())
    lines = task.warnings({name: float(value) / 4 for name, value in sums.items()})
    assert [words in line for line in lines] == [True]


def test_features_that_are_one_are_told_of_and_sound_ones_are_not() -> None:
    model, task = made()
    _, sums = task.loss(model, batch_of(), torch.Generator())
    means = {name: float(value) / 4 for name, value in sums.items()}
    assert task.warnings(means) == []
    (line,) = collapse(means | {"feature_spread": 0.0}, 24, "mean")
    assert "features have collapsed" in line


def test_views_have_the_sizes_and_chances_of_dino() -> None:
    config = ViTConfig(image_size=224, patch=16)
    augment = Augment(area=0.25, blur=1.0, solarize=0.2)
    first, second, *small = SelfDistillation.views(Pretext(task="dino"), config, augment)
    assert (first.size, second.size, len(small)) == ((224, 224), (224, 224), 8)
    assert {view.size for view in small} == {(96, 96)}
    found = [(v.augment.blur, v.augment.solarize, v.area) for v in (first, second, small[0])]
    large = (0.25, 1.0)
    assert found == [(1.0, 0.0, large), (0.1, 0.2, large), (0.5, 0.0, (0.05, 0.4))]
