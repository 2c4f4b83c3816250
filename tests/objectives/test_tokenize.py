"""The discrete VAE's mathematics against formulas, its schedules, figures and refusals."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor

import vitlab
from objectives.made import batch_of, seeded
from vitlab.data.loading.batch import Batch
from vitlab.models.tokenizers.tokenizer import Tokenizer
from vitlab.objectives.tokenize import (
    RECENT,
    Tokenize,
    gumbel_softmax,
    uniform_divergence,
)
from vitlab.recipes.pretext import Pretext

NAME = "dVAE(codes=12,code_width=6,width=8)/4"


def setup(name: str = NAME, **options: Any) -> tuple[Tokenizer, Tokenize]:
    chosen = {key: options.pop(key) for key in ("mean", "std") if key in options}
    model = vitlab.create(name, image_size=16, generator=seeded(), **chosen)
    assert isinstance(model, Tokenizer)
    task = Tokenize(Pretext(task="tokenizer", **options), model.config)
    task.reset_parameters(seeded())
    return model.train(), task


def batch(count: int = 3, seed: int = 1) -> Batch:
    return batch_of(torch.rand(count, 3, 16, 16, generator=seeded(seed)) * 2 - 1)


def test_samples_are_drawn_by_their_probability() -> None:
    """The largest share is a draw from softmax(logits): Gumbel-max, 20,000 times."""
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0])
    many = logits[None, :, None, None].expand(200, 4, 10, 10)
    shares = gumbel_softmax(many, 0.5, seeded())
    torch.testing.assert_close(shares.sum(1), torch.ones(200, 10, 10))
    counts = np.bincount(shares.argmax(1).flatten().numpy(), minlength=4)
    expected = 20_000 * special.softmax(logits.double().numpy())
    assert stats.chisquare(counts, expected).pvalue > 0.01


def test_shares_are_those_of_the_formula() -> None:
    """Jang et al., equation 2, with the noise that the generator gives."""
    logits = torch.randn(2, 5, 3, 3, generator=seeded())
    noise = -np.log(torch.empty_like(logits).exponential_(generator=seeded(7)).numpy())
    expected = special.softmax((logits.numpy() + noise) / 0.3, axis=1)
    np.testing.assert_allclose(gumbel_softmax(logits, 0.3, seeded(7)), expected, atol=1e-6)
    cold = gumbel_softmax(logits, 1e-3, seeded(7))
    np.testing.assert_allclose(cold.amax(1), 1, atol=1e-3)


def test_divergence_from_uniform_codes() -> None:
    logits = torch.randn(2, 5, 3, 3, generator=seeded()) * 3
    shares = special.softmax(logits.double().numpy(), axis=1)
    expected = stats.entropy(shares, np.full_like(shares, 1 / 5), axis=1)
    np.testing.assert_allclose(uniform_divergence(logits), expected, atol=1e-5)
    assert torch.allclose(uniform_divergence(torch.zeros(1, 5, 1, 1)), torch.zeros(1), atol=1e-6)


def test_the_loss_is_reconstruction_and_weighted_divergence() -> None:
    model, task = setup(kl_weight=2.0)
    task.begin(50, 101, 10.0)
    given = batch()
    loss, _ = task.loss(model, given, seeded(3))
    logits = model.logits(given.images)
    middle = (1 + 0.0625) / 2  # half of a cosine
    made = model.outputs(gumbel_softmax(logits, middle, seeded(3)))
    shares = special.softmax(logits.detach().numpy(), axis=1)
    nats = stats.entropy(shares, np.full_like(shares, 1 / 12), axis=1).sum(axis=(1, 2))
    expected = (made - given.images).square().mean().item() + 2 * nats.mean() / (3 * 16 * 16)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_schedules_depend_on_the_step_alone() -> None:
    _, task = setup(temperature=(2.0, 0.5), kl_weight=3.0)
    seen = []
    for step in (0, 5, 10, 50, 100):
        task.begin(99, 101, 10.0)  # whatever was before
        task.begin(step, 101, 10.0)
        seen.append((task.temperature, task.weight))
    cosine = [0.5 + 1.5 * (1 + math.cos(math.pi * step / 100)) / 2 for step in (0, 5, 10, 50, 100)]
    assert [each for each, _ in seen] == pytest.approx(cosine)
    assert [each for _, each in seen] == pytest.approx([0, 3 * 5 / 10.1, 3 * 10 / 10.1, 3, 3])


def test_error_is_that_of_hard_codes_in_evaluation_and_leaves_no_trace() -> None:
    model, task = setup(mean=0.4, std=0.2)
    model.eval()
    before = {name: each.clone() for name, each in task.state_dict().items()}
    given = batch(4)
    with torch.no_grad():
        first, figures = task.loss(model, given, seeded(1))
        second, _ = task.loss(model, given, seeded(2))
        made = model.decode(model.codes(given.images))
    assert torch.equal(first, second)  # nothing is drawn
    pixels = (made * 0.2 + 0.4).clamp(0, 1) - (given.images * 0.2 + 0.4)
    assert figures["error"].item() == pytest.approx(pixels.square().mean().item() * 4, rel=1e-5)
    task.stepped(model, lambda counts: None)
    assert all(torch.equal(each, before[name]) for name, each in task.state_dict().items())


def fixed_codes(model: Tokenizer, codes: Tensor) -> None:
    """Make the tokenizer see these codes, int64 (B, 4, 4), whatever the image."""
    scores = torch.nn.functional.one_hot(codes, 12).movedim(-1, 1).float() * 9
    model.logits = lambda images: scores[: len(images)]  # type: ignore[method-assign]


def test_perplexity_is_that_of_the_histogram_of_many_batches() -> None:
    """Every batch has two codes, all of them together eight: 8, where the mean of batches is 2."""
    model, task = setup()
    for step in range(RECENT):
        codes = torch.arange(2).repeat(3, 8).view(3, 4, 4) + 2 * (step % 4)
        fixed_codes(model, codes)
        task.begin(step, 1000, 20.0)
        task.loss(model, batch(), seeded())
        task.stepped(model, lambda counts: None)
        task.drop()
    fixed_codes(model, torch.arange(8).repeat(3, 2).view(3, 4, 4))
    with torch.no_grad():
        _, figures = task.eval().loss(model.eval(), batch(), seeded())
    assert math.exp(figures["entropy"].item() / 3) == pytest.approx(8, rel=0.01)
    assert task.dead == 4
    assert task.warnings({})[0].startswith("4 of 12 codes were never used in the last epoch: use f")


def test_codes_are_dead_after_an_epoch_without_use() -> None:
    model, task = setup()
    fixed_codes(model, torch.arange(12).repeat(3, 2)[:, :16].view(3, 4, 4))
    task.begin(0, 10, 2.5)
    for used in range(4):
        assert not task.warnings({})
        task.loss(model, batch(), seeded())
        task.stepped(model, lambda counts: None)
        task.drop()
        fixed_codes(model, torch.zeros(3, 4, 4, dtype=torch.int64))
        assert task.idle[0] == 0
        assert task.idle[1] == used
    assert task.dead == 11


def test_counts_of_all_passes_and_processes_are_added_and_dropped() -> None:
    model, task = setup()
    fixed_codes(model, torch.zeros(3, 4, 4, dtype=torch.int64))
    task.loss(model, batch(), seeded())
    task.drop()
    fixed_codes(model, torch.ones(3, 4, 4, dtype=torch.int64))
    for _ in range(2):
        task.loss(model, batch(), seeded())
    assert task.counts is not None
    assert task.counts.tolist() == [0, 96, *[0] * 10]
    task.stepped(model, lambda counts: counts.mul_(2).add_(torch.eye(12, dtype=torch.int64)[5]))
    expected = np.zeros(12)
    expected[1], expected[5] = 192 / 193, 1 / 193
    np.testing.assert_allclose(task.frequencies, expected, atol=1e-12)


def test_pictures_are_the_image_and_what_its_codes_make() -> None:
    model, task = setup()
    given = batch().images
    shown = task.pictures(model.eval(), given, seeded())
    assert list(shown) == ["image", "from its codes"]
    assert all(
        each.dtype == torch.uint8 and each.shape == (3, 16, 16, 3) for each in shown.values()
    )
    back = shown["image"].float().movedim(-1, 1) / 255 * 2 - 1
    assert (back - given).abs().max() < 0.005
