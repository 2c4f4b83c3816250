"""LeJEPA and VISReg against the formulas of the papers, in NumPy and SciPy; and their runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, linalg, stats

import vitlab
from conftest import BRIEF, fewer_digits
from training.kept import journal
from vitlab.data.loading.batch import Batch
from vitlab.data.settings import Augment
from vitlab.models.config import ViTConfig
from vitlab.models.create import build
from vitlab.objectives.feature_health import feature_health, lidar
from vitlab.objectives.lejepa import EmbeddingHead, LeJEPA, directions, sigreg, visreg
from vitlab.recipes.pretext import Pretext
from vitlab.recipes.recipe import Host

CONFIG = ViTConfig(width=16, heads=2, depth=1, mlp=16, patch=4, image_size=16, classes=0)
QUICK: dict[str, Any] = {
    "model": "ViT(width=16,depth=1,heads=2,mlp=16)/2", "image_size": 8, "embedding": 8,
    "head_width": 16, "local_crops": 1, "slices": 16, "batch": 32, "steps": 2, "warmup": 0,
    "mean": 0.5, "std": 0.5, "precision": "fp32", "test_every": 0.1,
}  # fmt: skip


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def test_sigreg_is_the_epps_pulley_integral() -> None:
    embedded = drawn(2, 40, 3, scale=1.5) + 0.3
    lines = directions(3, 5, torch.Generator().manual_seed(1))
    assert lines.norm(dim=0).allclose(torch.ones(5))

    def off(t: float, values: np.ndarray[Any, Any]) -> float:
        return float(
            abs(np.exp(1j * t * values).mean() - np.exp(-t * t / 2)) ** 2 * np.exp(-t * t / 2)
        )

    wanted = [
        40 * integrate.quad(off, -3, 3, args=((view @ lines[:, each]).double().numpy(),))[0]
        for view in embedded
        for each in range(5)
    ]
    assert float(sigreg(embedded, lines)) == pytest.approx(np.mean(wanted), rel=2e-3)


def test_visreg_is_scale_shape_and_center() -> None:
    embedded = drawn(2, 30, 3, scale=1.5) + 0.3
    lines = directions(3, 4, torch.Generator().manual_seed(1))
    terms = []
    for view in embedded.double().numpy():
        mean, deviation = view.mean(0), view.std(0)
        quantiles = stats.norm.ppf(np.arange(1, 31) / 31)
        ordered = np.sort((view - mean) / deviation @ lines.double().numpy(), axis=0)
        terms.append(
            ((deviation - 1) ** 2).mean() + ((ordered.T - quantiles) ** 2).mean() + (mean**2).mean()
        )
    assert float(visreg(embedded, lines)) == pytest.approx(np.mean(terms), rel=1e-5)


@pytest.mark.parametrize("regularizer", [sigreg, visreg])
def test_a_gaussian_lacks_least(regularizer: Any) -> None:
    """Of collapsed, narrow, shifted and one-dimensional embeddings, and a Gaussian."""
    good, lines = drawn(1, 512, 8), directions(8, 64, torch.Generator().manual_seed(1))
    line = good[..., :1] * torch.ones(8)
    worst = [float(regularizer(each, lines)) for each in (good * 0, good / 5, good + 1, line)]
    assert float(regularizer(good, lines)) < min(worst) / 5


def test_a_collapse_is_left_by_visreg_alone() -> None:
    """The gradient of SIGReg vanishes where all images have one embedding (VISReg's reason)."""
    lines = directions(4, 64, torch.Generator().manual_seed(1))
    norms = []
    for regularizer in (sigreg, visreg):
        collapsed = drawn(1, 64, 4, scale=1e-4).requires_grad_()
        regularizer(collapsed, lines).backward()
        assert collapsed.grad is not None
        norms.append(float(collapsed.grad.norm()))
    assert norms[0] < 1e-2 * norms[1]


def test_the_loss_is_the_weighted_sum_over_all_crops() -> None:
    options = Pretext(
        task="lejepa", local_crops=2, local_size=8, embedding=6, head_width=10, slices=8
    )
    model, task = build(CONFIG, torch.Generator().manual_seed(1)), LeJEPA(options, CONFIG)
    task.reset_parameters(torch.Generator().manual_seed(2))
    views = task.views(options, CONFIG, Augment(area=0.3))
    assert [view.size for view in views] == [(16, 16), (16, 16), (8, 8), (8, 8)]
    none, rest = torch.zeros(5, dtype=torch.int64), torch.empty(5, 0)
    each = [
        Batch(drawn(5, 3, *view.size, seed=n), none, rest, none) for n, view in enumerate(views)
    ]
    batch = Batch(each[0].images, none, rest, none, views=tuple(each[1:]))
    loss, figures = task.loss(model, batch, torch.Generator().manual_seed(3))
    images = [view.images for view in each if isinstance(view.images, torch.Tensor)]
    embedded = task.projector(torch.cat([model.features(view) for view in images])).view(4, 5, 6)
    center = (embedded[0] + embedded[1]) / 2
    apart = torch.stack([(view - center).square().mean() for view in embedded]).mean()
    lacking = sigreg(embedded, directions(6, 8, torch.Generator().manual_seed(3)))
    torch.testing.assert_close(loss, 0.98 * apart + 0.02 * lacking)
    apart, lacking = apart.detach(), lacking.detach()
    assert float(figures["view_distance"]) == pytest.approx(5 * float(apart), rel=1e-5)
    assert float(figures["non_normality"]) == pytest.approx(5 * float(lacking), rel=1e-5)
    assert task.warnings({"feature_spread": 0.5}) == []
    assert "have collapsed" in task.warnings({"feature_spread": 0.001})[0]


def test_the_projector_is_torchvisions() -> None:
    mlp = pytest.importorskip("torchvision.ops").MLP
    own, theirs = EmbeddingHead(7, 9, 4), mlp(7, [9, 9, 4], norm_layer=torch.nn.BatchNorm1d)
    own.reset_parameters(torch.Generator().manual_seed(0))
    dense = [each for each in theirs if isinstance(each, torch.nn.Linear)]
    for mine, other in zip(own.dense, dense, strict=True):
        torch.nn.init.zeros_(other.bias)  # which the norms take out
        other.load_state_dict(mine.state_dict(), strict=False)
    features = drawn(12, 7)
    torch.testing.assert_close(own(features), theirs(features))


def test_rank_and_dead_channels() -> None:
    features = drawn(300, 10).numpy()
    whole = feature_health(features)
    assert 9 < whole["feature_rank"] <= 10
    assert whole["dead_features"] == 0
    flat = feature_health(np.hstack([features[:, :3], np.full((300, 7), 0.5, np.float32)]))
    assert flat["feature_rank"] < 5
    assert flat["dead_features"] == 0.7
    assert feature_health(np.ones((4, 3), np.float32))["feature_rank"] == pytest.approx(1, rel=1e-4)


def test_lidar_counts_the_directions_that_crops_share() -> None:
    images, noise = drawn(400, 1, 12), drawn(400, 6, 12)
    images[..., 5:] = 0  # what differs between crops alone tells no image apart
    views = (3 * images + noise).numpy()
    between, within = np.cov(views.mean(1).T, bias=True), (views - views.mean(1)[:, None])
    flat = within.reshape(-1, 12)
    values = linalg.eigvalsh(between, flat.T @ flat / len(flat) + 1e-4 * np.eye(12))
    shares = values / values.sum()
    assert lidar(views) == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-5)
    assert 5 < lidar(views) < 7 < feature_health(views.reshape(-1, 12))["feature_rank"]


def test_a_run_by_visreg_measures_ranks(tmp_path: Path) -> None:
    recipe = vitlab.recipe("visreg", "digits", **QUICK)
    with fewer_digits():
        run = vitlab.train(
            recipe, tmp_path / "run", host=Host(workers=0, device="cpu", effort=BRIEF)
        )
    tested = [line for line in journal(run) if line["kind"] == "held-out"]
    assert tested
    assert all(1 <= line[key] <= 16 for line in tested for key in ("feature_rank", "lidar"))
