"""The Hessian against PyTorch's own by forward differentiation, and NumPy's eigenvalues."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, jacfwd, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

import vitlab
from vitlab.errors import OptionError
from vitlab.inspect import MeanLoss
from vitlab.inspect.hessian import lanczos
from vitlab.models.encoder.attention import Attention

# PyTorch's own forward differentiation warns when it is first used
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT": (
        "ViT(width=4,depth=2,heads=2,mlp=6)/4",
        {"channels": 1, "layer_scale": 0.5, "image_size": 8},
    ),
    "hybrid": ("R(1)+ViT(width=8,depth=1,heads=2,mlp=16)/8", {"pool": "mean"}),
    "BiT": ("BiT", {}),
    "Axial ResNet": ("Axial", {}),
    "hMLP stem with batch norm, two branches": (
        "ViT(width=8,depth=1,heads=2,mlp=16,branches=2)/16",
        {"stem": "hmlp", "stem_norm": "batch", "registers": 1},
    ),
    "attention pool, biases, SwiGLU": (
        "ViT(width=8,depth=1,heads=2,mlp=16)/8",
        {"pool": "attention", "positions": "bias", "ffn": "swiglu", "qk_norm": True},
    ),
    "rotary": ("ViT(width=8,depth=1,heads=2,mlp=16)/8", {"positions": "rope"}),
    "talking heads, class attention": (
        "ViT(width=8,depth=1,heads=2,mlp=16)/8",
        {"talking_heads": True, "class_blocks": 1, "layer_scale": 0.5},
    ),
}


def model_of(kind: str) -> Any:
    torch.manual_seed(0)
    name, choices = KINDS[kind]
    if name in ("BiT", "Axial"):
        settings: dict[str, Any] = {"attention": "axial"} if name == "Axial" else {}
        made: Any = vitlab.ResNet(
            vitlab.ResNetConfig(stages=(1,), classes=3, image_size=16, **settings)
        )
    else:
        made = vitlab.create(name, 3, zero_head=False, **{"image_size": 16} | choices)
    made.double()
    with torch.no_grad():
        for weight in made.parameters():  # no zeros, no symmetry
            weight.add_(torch.randn_like(weight), alpha=0.1)
    return made


def images_of(model: Any, count: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (count, model.config.channels, *model.config.size)
    images = torch.randn(shape, generator=generator, dtype=torch.float64)
    return images, torch.arange(count) % 3


def plain(model: Any, images: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
    """The loss as a function of one vector of weights, written out."""
    names = [name for name, _ in model.named_parameters()]
    like = list(model.parameters())

    def loss(vector: Tensor) -> Tensor:
        parts = vector.split([weight.numel() for weight in like])
        views = [part.view_as(weight) for part, weight in zip(parts, like, strict=True)]
        logits = functional_call(model, dict(zip(names, views, strict=True)), (images,))
        right = logits.gather(1, labels[:, None])[:, 0]
        return (logits.logsumexp(1) - right).mean()

    return loss


def flat(model: Any) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


@cache
def explicit() -> tuple[Any, Tensor, Tensor, Tensor]:
    """A tiny ViT with its images, labels and whole Hessian, (n, n)."""
    model = model_of("ViT").eval()
    images, labels = images_of(model)
    with sdpa_kernel(SDPBackend.MATH):
        # not torch.func.hessian, which in torch 2.13 is asymmetric in the weights of a layer norm
        matrix = jacfwd(grad(plain(model, images, labels)))(flat(model))
    return model, images, labels, matrix


def test_the_whole_hessian_of_a_small_vit() -> None:
    model, images, labels, matrix = explicit()
    loss = MeanLoss(model, images, labels, precision="fp64")
    found = vitlab.inspect.hessian_product(loss, torch.eye(loss.count, dtype=torch.float64))
    assert matrix.abs().max() > 0.1
    assert torch.allclose(found, matrix, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_products_gradient_and_loss_of_every_kind(kind: str) -> None:
    model = model_of(kind)
    images, labels = images_of(model)
    loss = MeanLoss(model, images, labels, precision="fp64", at_once=2)
    oracle = plain(model.eval(), images, labels)
    vector = torch.randn(loss.count, dtype=torch.float64)
    with sdpa_kernel(SDPBackend.MATH):
        gradient, product = jvp(grad(oracle), (flat(model),), (vector,))
    assert loss.value() == pytest.approx(float(oracle(flat(model))), rel=1e-12)
    assert torch.allclose(loss.gradient(), gradient, rtol=1e-8, atol=1e-11)
    found = vitlab.inspect.hessian_product(loss, vector)
    assert torch.allclose(found, product, rtol=1e-7, atol=1e-9 * float(product.abs().max()))


def test_the_largest_eigenvalues_and_the_most_negative_one() -> None:
    model, images, labels, matrix = explicit()
    loss = MeanLoss(model, images, labels, precision="fp64")
    true = np.linalg.eigvalsh(matrix.numpy())
    found = vitlab.inspect.hessian_eigenvalues(loss, 4, steps=80, tolerance=1e-9)
    assert np.allclose(found.values, true[::-1][:4], rtol=1e-9)
    assert found.least == pytest.approx(true[0], rel=1e-6)
    rough = vitlab.inspect.hessian_eigenvalues(loss, 2, seed=3)
    assert rough.steps < 40
    for value, error in zip(rough.values, rough.errors, strict=True):
        assert abs(true - value).min() <= error <= 0.02 * rough.values[0]


def test_single_precision_agrees() -> None:
    model, images, labels, matrix = explicit()
    found = vitlab.inspect.hessian_eigenvalues(MeanLoss(model, images, labels), 2)
    true = np.linalg.eigvalsh(matrix.numpy())
    assert np.allclose(found.values, true[::-1][:2], rtol=1e-2)


def test_the_trace() -> None:
    model, images, labels, matrix = explicit()
    loss = MeanLoss(model, images, labels, precision="fp64")
    found = vitlab.inspect.hessian_trace(loss, 200)
    assert abs(found.mean - float(matrix.trace())) < 3 * found.error
    # the variance of Hutchinson's estimate is twice that of what is off the diagonal
    off = matrix - matrix.diag().diag()
    assert found.error == pytest.approx(float(off.norm()) * (2 / 200) ** 0.5, rel=0.25)
    assert np.isnan(vitlab.inspect.hessian_trace(loss, 1).error)


def test_the_same_seed_gives_the_same_bits() -> None:
    model, images, labels, _ = explicit()
    loss = MeanLoss(model, images, labels)
    state = torch.get_rng_state()
    one, two = (vitlab.inspect.hessian_trace(loss, 2, seed=5) for _ in range(2))
    assert one == two != vitlab.inspect.hessian_trace(loss, 2, seed=6)
    assert torch.equal(state, torch.get_rng_state())


def test_label_smoothing_is_that_of_training() -> None:
    model, images, labels, _ = explicit()
    found = MeanLoss(model, images, labels, precision="fp64", label_smoothing=0.2, at_once=2)
    targets = 0.8 * torch.nn.functional.one_hot(labels, 3).double() + 0.2 / 3
    with torch.no_grad():
        wanted = -(targets * model(images).log_softmax(1)).sum(1).mean()
    assert found.value() == pytest.approx(float(wanted), rel=1e-12)


def test_the_model_stays_as_it_was() -> None:
    """A model in training, in bf16, with a gradient and a frozen weight, in inference mode."""
    model = model_of("hybrid").bfloat16().train()
    weights = list(model.parameters())
    weights[0].requires_grad_(False)
    weights[1].grad = torch.ones_like(weights[1])
    before = [weight.detach().clone() for weight in weights]
    images, labels = images_of(model)
    with torch.inference_mode():
        found = vitlab.inspect.curvature(model, images.float(), labels, steps=3, top=2, samples=2)
    assert all(np.isfinite(each) for each in found.values())
    assert all(torch.equal(one, two) for one, two in zip(weights, before, strict=True))
    assert all(module.training for module in model.modules())
    assert [weight.requires_grad for weight in weights] == [False] + [True] * (len(weights) - 1)
    assert [weight.grad is None for weight in weights] == [True, False] + [True] * (
        len(weights) - 2
    )
    assert any(isinstance(module, Attention) for module in model.modules())


def test_eigenvalues_that_come_several_times() -> None:
    values = np.array([5.0, 5.0, 2.0, 0.0, 0.0, 0.0, -1.0])
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(7, 7)))[0]
    matrix = torch.from_numpy(basis @ np.diag(values) @ basis.T)
    start = torch.ones(7, dtype=torch.float64)
    found = lanczos(lambda vector: matrix @ vector, start, 20, torch.Generator().manual_seed(0))
    assert np.allclose(found.eigen()[0], np.sort(values), atol=1e-12)
    first = torch.eye(7, dtype=torch.float64)[0]  # an eigenvector: there is nothing to go on with
    diagonal = torch.from_numpy(np.diag(values))
    found = lanczos(lambda vector: diagonal @ vector, first, 20, torch.Generator().manual_seed(0))
    assert np.allclose(found.eigen()[0], np.sort(values), atol=1e-12)


def test_a_model_before_training_whose_head_is_zero() -> None:
    model = vitlab.create("ViT(width=8,depth=1,heads=2,mlp=16)/8", 3, 16, zero_head=True)
    images, labels = images_of(model)
    found = vitlab.inspect.curvature(model, images, labels, samples=2)
    assert found["loss"] == pytest.approx(np.log(3))
    assert all(np.isfinite(each) for each in found.values())
    assert found["hessian_max"] > 0


WRONG: dict[str, tuple[Callable[[Any, Tensor, Tensor], Any], str]] = {
    "labels": (lambda m, x, y: MeanLoss(m, x, y[:2]), r"one per image: \(5,\)"),
    "a class": (lambda m, x, y: MeanLoss(m, x, y + 1), "classes must be from 0 to 2"),
    "images": (lambda m, x, y: MeanLoss(m, x[0], y), r"images must be \(B, 1, 8, 8\)"),
    "smoothing": (lambda m, x, y: MeanLoss(m, x, y, label_smoothing=1), "label_smoothing must"),
    "precision": (lambda m, x, y: MeanLoss(m, x, y, precision="bf16"), "fp32 or fp64, not bf16"),  # type: ignore[arg-type]
    "at once": (lambda m, x, y: MeanLoss(m, x, y, at_once=0), "at_once must be at least 1"),
    "steps": (
        lambda m, x, y: vitlab.inspect.hessian_eigenvalues(MeanLoss(m, x, y), 5, steps=4),
        "steps must be at least 5, not 4",
    ),
    "samples": (
        lambda m, x, y: vitlab.inspect.hessian_trace(MeanLoss(m, x, y), 0),
        "samples must be at least 1",
    ),
    "vectors": (
        lambda m, x, y: vitlab.inspect.hessian_product(MeanLoss(m, x, y), torch.ones(3)),
        r"vectors must be \(n,\) or \(k, n\) of n=\d+ weights, not of shape \(3,\)",
    ),
    "no Hessian": (
        lambda m, x, y: vitlab.inspect.curvature(m, x, y, hessian_images=0),
        "hessian_images must be at least 1",
    ),
    "accelerated": (
        lambda m, x, y: MeanLoss(vitlab.accelerate(m, engine="packed"), x, y),
        "is accelerated: use",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_refused(case: str) -> None:
    call, message = WRONG[case]
    model = model_of("ViT").float()
    with pytest.raises(OptionError, match=message):
        call(model, *images_of(model))


def test_other_losses_are_refused() -> None:
    model = model_of("ViT")
    model.provenance["multi_label"] = True
    with pytest.raises(OptionError, match="several labels"):
        MeanLoss(model, *images_of(model))
    several = vitlab.create(
        "ViT(width=8,depth=1,heads=2,mlp=16)/8", 3, 16, pool="attention", queries=2
    )
    with pytest.raises(OptionError, match="needs one query"):
        MeanLoss(several, *images_of(several))
