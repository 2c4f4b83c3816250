"""Masks: BEiT's blocks against its description in NumPy, over many draws; counts; places."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import vitlab
from objectives.made import seeded
from vitlab.errors import OptionError
from vitlab.models.encoder.from_patches import gathered
from vitlab.objectives import masks
from vitlab.objectives.masks import (
    block_mask,
    block_masks,
    places_of,
    random_places,
    smallest_block,
)

DRAWS, MASKS, SIDE, COUNT, LEAST = 10_000, 4_000, 14, 75, 16


def described(rng: np.random.Generator) -> NDArray[np.bool_]:
    """One mask by BEiT's Algorithm 1 and the limits of its code, then single patches."""
    mask = np.zeros((SIDE, SIDE), np.bool_)
    while (left := COUNT - int(mask.sum())) > 0:
        for _ in range(10):
            area = rng.uniform(min(LEAST, left), max(LEAST, left))
            ratio = np.exp(rng.uniform(np.log(0.3), np.log(1 / 0.3)))
            high, wide = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
            if high >= SIDE or wide >= SIDE:
                continue
            top = rng.integers(0, SIDE - high, endpoint=True)
            first = rng.integers(0, SIDE - wide, endpoint=True)
            part = mask[top : top + high, first : first + wide]
            if 0 < (new := int((~part).sum())) <= left:
                part[:] = True
                assert new <= left
                break
        else:
            places = rng.permutation(np.flatnonzero(~mask))[:left]
            mask.flat[places] = True
    return mask


@pytest.fixture(scope="module")
def drawn() -> Tensor:
    return block_masks(MASKS, (SIDE, SIDE), COUNT, seeded()).view(-1, SIDE, SIDE)


def test_every_mask_hides_the_count(drawn: Tensor) -> None:
    assert drawn.dtype == torch.bool
    assert drawn.sum((1, 2)).unique().tolist() == [COUNT]
    assert len(torch.unique(drawn.flatten(1).byte(), dim=0)) > 0.99 * MASKS


def test_masks_are_distributed_as_described(drawn: Tensor) -> None:
    """How often each patch is hidden, and how many hidden patches have a visible neighbor below."""
    rng = np.random.default_rng(1)
    want = np.stack([described(rng) for _ in range(2_000)])
    ours = drawn.numpy()
    # a share of 2,000 has a deviation of at most 0.011, and there are 196 of them
    assert np.abs(ours.mean(0) - want.mean(0)).max() < 0.045
    edges = [(each[:, 1:] != each[:, :-1]).sum((1, 2)) for each in (ours, want)]
    assert edges[0].mean() == pytest.approx(edges[1].mean(), abs=0.35)  # 22, deviation 5.6
    assert edges[0].std() == pytest.approx(edges[1].std(), rel=0.08)


def blocks() -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Rows, columns and first row of 10,000 first blocks."""
    uniform, found = masks._numbers(seeded(2)), []
    for _ in range(DRAWS):
        bits = masks._block((SIDE, SIDE), 0, COUNT, LEAST, uniform)
        rows = [row for row in range(SIDE) if bits >> row * SIDE & (1 << SIDE) - 1]
        found.append((len(rows), bits.bit_count() // len(rows), rows[0]))
        assert all(b - a == 1 for a, b in pairwise(rows))
    high, wide, top = np.array(found).T
    return high, wide, top


def test_blocks_have_the_areas_and_the_ratios_described() -> None:
    high, wide, top = blocks()
    rng = np.random.default_rng(3)
    area = rng.uniform(LEAST, COUNT, 200_000)
    ratio = np.exp(rng.uniform(math.log(0.3), math.log(1 / 0.3), 200_000))
    rows, columns = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = (rows < SIDE) & (columns < SIDE) & (rows * columns <= COUNT)
    bins = [np.arange(15), np.arange(15)]
    ours = np.histogram2d(high, wide, bins)[0] / DRAWS
    want = np.histogram2d(rows[fits], columns[fits], bins)[0] / fits.sum()
    assert np.abs(ours - want).sum() / 2 < 0.05  # their distance; 100 cells of 10,000 draws: 0.035
    assert (high * wide).min() >= 12  # 16 before rounding
    assert (high * wide).max() <= COUNT
    places = top / (SIDE - high)  # of 7 to 14 places each
    assert places.mean() == pytest.approx(0.5, abs=0.02)


def test_a_block_mask_is_one_of_them_and_public() -> None:
    mask = vitlab.objectives.block_mask(9, 12, 40, seeded(5))
    assert mask.shape == (9, 12)
    assert mask.sum() == 40
    assert torch.equal(mask.flatten(), block_masks(1, (9, 12), 40, seeded(5))[0])
    before = torch.random.get_rng_state()
    assert not torch.equal(mask, block_mask(9, 12, 40, seeded(6)))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("rows", "columns", "count"),
    [(1, 9, 3), (2, 2, 1), (4, 4, 6), (8, 8, 24), (3, 3, 9), (5, 5, 0)],
)
def test_small_grids_hide_the_count_too(rows: int, columns: int, count: int) -> None:
    found = block_masks(50, (rows, columns), count, seeded())
    assert found.sum(1).tolist() == [count] * 50


def test_the_smallest_block_follows_small_grids() -> None:
    assert smallest_block((14, 14)) == smallest_block((24, 24)) == 16
    assert smallest_block((8, 8)) == 5
    assert smallest_block((2, 2)) == 1


def test_a_count_beyond_the_grid_is_refused() -> None:
    for count in (-1, 17):
        with pytest.raises(OptionError, match=f"from 0 to the 16 patches, not {count}"):
            block_mask(4, 4, count, seeded())


def test_random_places_are_all_alike() -> None:
    places = random_places(DRAWS, 6, 2, seeded())
    assert (places[:, 0] != places[:, 1]).all()
    pairs = torch.zeros(6, 6).index_put((places[:, 0], places[:, 1]), torch.ones(()), True) / DRAWS
    assert pairs[~torch.eye(6, dtype=torch.bool)].sub(1 / 30).abs().max() < 0.008


def test_places_are_those_of_the_mask() -> None:
    drawn = block_masks(3, (4, 5), 8, seeded())
    places = places_of(drawn, 8)
    assert places.tolist() == [mask.nonzero()[:, 0].tolist() for mask in drawn]
    tokens = torch.randn(3, 20, 2)
    assert torch.equal(gathered(tokens, places), tokens[drawn].view(3, 8, 2))
