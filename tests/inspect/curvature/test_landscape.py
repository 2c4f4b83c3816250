"""The loss along directions, uphill and under noise, each against its definition."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import vitlab
from vitlab.errors import OptionError
from vitlab.inspect import MeanLoss
from vitlab.inspect.landscape import filter_direction

HYBRID = "R(1)+ViT(width=8,depth=1,heads=2,mlp=16)/8"
SMOOTH = "ViT(width=8,depth=1,heads=2,mlp=16)/8"  # no ReLU, whose kinks no derivative sees


def model_of(precision: torch.dtype = torch.float64, name: str = HYBRID) -> Any:
    torch.manual_seed(0)
    model = vitlab.create(name, 3, 16, zero_head=False, layer_scale=0.5).to(precision)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.05)
    return model.eval()


def data(count: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, 16, 16, generator=generator), torch.arange(count) % 3


def loss_of(name: str = HYBRID, **choices: Any) -> MeanLoss:
    return MeanLoss(model_of(name=name), *data(), precision="fp64", **choices)


def written_out(model: Any, images: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return float(F.cross_entropy(model(images.to(next(model.parameters()).dtype)), labels))


def test_filters_of_a_direction_are_as_long_as_the_weights() -> None:
    """As in the authors' code: filter by filter along the first axis, zeros for vectors."""
    loss = loss_of()
    direction = filter_direction(loss, torch.Generator().manual_seed(0))
    names = [name for name, _ in loss.model.named_parameters()]
    assert len(direction) == len(names)
    for name, drawn, weight in zip(names, direction, loss.weights, strict=True):
        assert drawn.shape == weight.shape
        if weight.ndim == 1:
            assert not drawn.any(), name
            continue
        for one, own in zip(drawn, weight, strict=True):
            assert float(one.norm()) == pytest.approx(float(own.detach().norm()), rel=1e-9), name
    angles = [
        F.cosine_similarity(one.flatten(), two.detach().flatten(), 0)
        for one, two in zip(direction, loss.weights, strict=True)
        if one.ndim > 1
    ]
    assert max(abs(float(each)) for each in angles) < 0.5  # random, not the weights themselves


def test_a_line_is_the_loss_of_moved_weights() -> None:
    loss = loss_of(at_once=4)
    line = vitlab.inspect.loss_line(loss, radius=0.5, points=5, directions=2, seed=1)
    assert line.steps.tolist() == [-0.5, -0.25, 0, 0.25, 0.5]
    assert line.losses.shape == (2, 5)
    generator = torch.Generator().manual_seed(1)
    for losses in line.losses:
        direction = filter_direction(loss, generator)
        for step, found in zip(line.steps, losses, strict=True):
            moved = model_of()
            with torch.no_grad():
                for weight, part in zip(moved.parameters(), direction, strict=True):
                    weight += step * part
            assert found == pytest.approx(written_out(moved, *data()), rel=1e-12)


def test_the_middle_is_the_model_to_the_bit() -> None:
    loss = MeanLoss(model_of(torch.float32), *data())
    before = [weight.detach().clone() for weight in loss.weights]
    line = vitlab.inspect.loss_line(loss, points=3, directions=1)
    surface = vitlab.inspect.loss_surface(loss, points=3)
    assert line.losses[0, 1] == surface.losses[1, 1] == loss.value()
    assert np.array_equal(line.losses[0], surface.losses[:, 1])  # the same first direction
    assert not np.allclose(surface.losses, surface.losses.T)
    assert all(torch.equal(a, b) for a, b in zip(before, loss.weights, strict=True))


def test_near_the_model_the_loss_is_its_quadratic_form() -> None:
    loss = loss_of(SMOOTH)
    small = 1e-4
    surface = vitlab.inspect.loss_surface(loss, radius=small, points=3)
    generator = torch.Generator().manual_seed(0)
    one, two = (loss.flat(filter_direction(loss, generator)) for _ in range(2))
    product = vitlab.inspect.hessian_product(loss, torch.stack([one, two]))
    losses = surface.losses / small**2
    middle = losses[1, 1]
    assert losses[2, 1] - 2 * middle + losses[0, 1] == pytest.approx(float(one @ product[0]), 1e-4)
    assert losses[1, 2] - 2 * middle + losses[1, 0] == pytest.approx(float(two @ product[1]), 1e-4)
    crossed = (losses[2, 2] - losses[2, 0] - losses[0, 2] + losses[0, 0]) / 4
    assert crossed == pytest.approx(float(one @ product[1]), rel=1e-3)
    slope = (losses[2, 1] - losses[0, 1]) * small / 2
    assert slope == pytest.approx(float(loss.gradient() @ one), rel=1e-3)


def test_sharpness_is_the_loss_after_a_step_uphill() -> None:
    """Groups of 4 and 2 images, each with a step along its own gradient."""
    model, (images, labels), rho, wanted = model_of(), data(), 0.03, 0.0
    for rows in (slice(0, 4), slice(4, 6)):
        moved, some = model_of(), (images[rows].double(), labels[rows])
        F.cross_entropy(moved(some[0]), some[1]).backward()
        slopes = [each.grad for each in moved.parameters() if each.grad is not None]
        length = float(torch.cat([each.flatten() for each in slopes]).norm())
        with torch.no_grad():
            for weight in moved.parameters():
                if weight.grad is not None:
                    weight += rho * weight.grad / length
        wanted += (written_out(moved, *some) - written_out(model, *some)) * len(some[1]) / 6
    loss = loss_of()
    before = [weight.detach().clone() for weight in loss.weights]
    assert vitlab.inspect.sharpness(loss, rho, group=4) == pytest.approx(wanted, rel=1e-9)
    assert all(torch.equal(a, b) for a, b in zip(before, loss.weights, strict=True))
    norm = vitlab.inspect.gradient_norm(loss)
    tiny = vitlab.inspect.sharpness(loss, 1e-6)
    assert tiny == pytest.approx(1e-6 * norm, rel=1e-3)  # to first order


def test_noise_is_what_is_drawn() -> None:
    loss = loss_of()
    generator = torch.Generator().manual_seed(2)
    wanted = 0.0
    for _ in range(2):
        moved = model_of()
        with torch.no_grad():
            for weight in moved.parameters():
                noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
                weight += 0.1 * weight.square().mean().sqrt() * noise
        wanted += (written_out(moved, *data()) - loss.value()) / 2
    found = vitlab.inspect.noise_increase(loss, 0.1, samples=2, seed=2)
    assert found == pytest.approx(wanted, rel=1e-9)


def test_the_figures_are_those_of_the_functions() -> None:
    model, (images, labels) = model_of(torch.float32), data(8)
    found = vitlab.inspect.curvature(model, images, labels, seed=3, top=2, hessian_images=5)
    loss = MeanLoss(model, images, labels)
    rows = torch.randperm(8, generator=torch.Generator().manual_seed(3))[:5]
    some = MeanLoss(model, images[rows], labels[rows])
    values = vitlab.inspect.hessian_eigenvalues(some, 2, steps=20, seed=3)
    trace = vitlab.inspect.hessian_trace(some, 5, seed=3)
    wanted = {
        "loss": written_out(model, images, labels),
        "gradient_norm": float(loss.gradient().norm()),
        "hessian_max": values.values[0],
        "hessian_max_error": values.errors[0],
        "hessian_2": values.values[1],
        "hessian_min": values.least,
        "hessian_trace": trace.mean,
        "hessian_trace_error": trace.error,
        "sharpness": vitlab.inspect.sharpness(loss),
        "noise_increase": vitlab.inspect.noise_increase(loss, seed=3),
    }
    assert list(found) == list(wanted)
    assert found == pytest.approx(wanted, rel=1e-5)


WRONG: dict[str, tuple[Callable[[MeanLoss], Any], str]] = {
    "even": (lambda loss: vitlab.inspect.loss_line(loss, points=4), "points must be odd, .* not 4"),
    "radius": (lambda loss: vitlab.inspect.loss_surface(loss, radius=0), "radius must be positive"),
    "none": (lambda loss: vitlab.inspect.loss_line(loss, directions=0), "directions must be at le"),
    "rho": (lambda loss: vitlab.inspect.sharpness(loss, -1), "rho must be positive, not -1"),
    "group": (lambda loss: vitlab.inspect.sharpness(loss, group=0), "group must be at least 1"),
    "size": (lambda loss: vitlab.inspect.noise_increase(loss, 0), "size must be positive, not 0"),
    "samples": (lambda loss: vitlab.inspect.noise_increase(loss, samples=0), "samples must be at"),
}


@pytest.mark.parametrize("case", WRONG)
def test_settings_that_cannot_be_are_refused(case: str) -> None:
    call, message = WRONG[case]
    with pytest.raises(OptionError, match=message):
        call(loss_of())
