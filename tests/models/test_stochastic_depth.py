"""Stochastic depth: the stated rate in expectation, for a batch, a pass and a share of any size."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vitlab
from conftest import TINY
from distributed.ranks import on_ranks
from vitlab.models.encoder.block import Branch, draw_kept
from vitlab.recipes.recipe import Host

SHAPE = "ViT(width=16,depth=2,heads=2,mlp=16)/8"


def inside(successes: float, draws: int, chance: float) -> bool:
    """Whether a binomial count is within 4.5 deviations of its mean."""
    deviation = (draws * chance * (1 - chance)) ** 0.5
    return abs(successes - draws * chance) <= 4.5 * deviation + 1e-6


@pytest.mark.parametrize(("count", "rate"), [(1, 0.05), (4, 0.1), (10, 0.3)])
def test_each_image_is_dropped_at_the_stated_rate(count: int, rate: float) -> None:
    torch.manual_seed(count)
    draws, kept = 2000, torch.zeros(count)
    numbers = []
    for _ in range(draws):
        chosen, weights = draw_kept(count, rate, torch.device("cpu"))
        kept[chosen[weights > 0]] += 1
        assert set(weights.tolist()) <= {0.0, weights.max().item()}
        numbers.append(int((weights > 0).sum()))
    whole = int(round(count * (1 - rate), 6))
    assert set(numbers) <= {whole, whole + 1}
    assert all(inside(draws - each, draws, rate) for each in kept.tolist())
    # between two whole numbers only the rounding is random
    assert inside(sum(numbers) - draws * whole, draws, round(count * (1 - rate), 6) - whole)


def a_branch(rate: float) -> Any:
    model: Any = vitlab.create(SHAPE, 3, 16, drop_path=rate)
    return model.blocks[0].mlp[0]


def test_the_expectation_is_that_of_the_whole_branch() -> None:
    branch, tokens = a_branch(0.3), torch.randn(4, 5, 16)
    torch.manual_seed(0)
    with torch.no_grad():
        whole = branch.eval()(tokens)
        branch.train()
        draws = torch.stack([branch(tokens) for _ in range(1000)])
    ratio = draws.mean(0) / whole  # of each draw: 0 or 1 / 0.7
    deviation = (0.3 / 0.7 / 1000) ** 0.5
    torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=4.5 * deviation, rtol=0)


def test_dropped_images_cost_no_work() -> None:
    branch, tokens = a_branch(0.4), torch.randn(8, 5, 16)
    seen: list[int] = []
    branch.body.register_forward_hook(lambda module, args, out: seen.append(len(args[0])))
    branch.eval()(tokens)
    for _ in range(20):
        branch.train()(tokens)
    assert seen == [8] + [5] * 20  # 4.8 are kept on average


def test_stochastic_depth_ramps_or_not() -> None:
    def rates(model: Any) -> list[float]:
        return [block.mlp[0].drop_path for block in model.blocks]

    assert rates(vitlab.create("ViT-Ti5/8", 2, 16, drop_path=0.2)) == [0.2] * 5
    ramp = rates(vitlab.create("ViT-Ti5/8", 2, 16, drop_path=0.2, drop_path_ramp=True))
    assert ramp == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])


def dropped(folder: Path, micro: int) -> list[int]:
    """Count images that are dropped from a branch, and all, in one process of a run."""
    counts = [0, 0]
    real = Branch.forward

    def forward(self: Any, tokens: Tensor, *where: Any) -> Tensor:
        out = real(self, tokens, *where)
        if self.training and self.drop_path:
            counts[0] += int((~out.detach().flatten(1).any(1)).sum())
            counts[1] += len(tokens)
        return out

    how = TINY | {"drop_path": 0.1, "batch": 16, "steps": 20, "micro_batch": micro, "ema": 0.0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Branch, "forward", forward)
        vitlab.train(vitlab.recipe("digits", **how), folder, host=Host(workers=0))
    return counts


def test_the_rate_of_a_run_does_not_depend_on_its_passes_and_processes(tmp_path: Path) -> None:
    """Four images at a time, rate 0.1: rounding to the nearest would drop none at all."""
    said = on_ranks(2, partial(dropped, tmp_path / "two", 4), tmp_path)
    values = [each["value"] for each in said]
    assert values[0] != values[1]  # each process draws by itself
    for gone, of in values:
        assert inside(gone, of, 0.1), (gone, of)
