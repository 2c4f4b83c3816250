"""Biases that start near the patch: the attention of ConViT's, and no change to anything else."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import vitlab
from oracles import peers
from vitlab.models.positions.bias import NEIGHBORS, Bias

NAME = "ViT(width=32,depth=2,heads=8,mlp=32)/4"
SIDE = (-1, 0, 1)


def table(**choices: object) -> Bias:
    given = {"positions": "bias", "pool": "mean"} | choices
    found = vitlab.create(NAME, 3, 24, **given).positions[-1]
    assert isinstance(found, Bias)
    return found


def attention(positions: Bias) -> Tensor:
    """The attention of equal logits, (h, N, N)."""
    tokens = len(positions.places)
    return positions.bias(torch.zeros(1, 8, tokens, 4))[0].softmax(-1).detach()


@pytest.mark.parametrize("strength", [0.5])
def test_heads_start_as_those_of_convit(strength: float) -> None:
    peers.timm()
    from timm.models.convit import GPSA

    theirs = GPSA(36, num_heads=9, locality_strength=strength)
    with torch.no_grad():
        theirs.local_init()
        theirs.pos_proj.bias.zero_()
        offsets = theirs.get_rel_indices(36)
        wanted = theirs.pos_proj(offsets)[0].permute(2, 0, 1).softmax(-1)  # (9, N, N)
    own = attention(table(bias_locality=strength))
    nine = {(row, column): 3 * (column + 1) + row + 1 for row in SIDE for column in SIDE}
    for number, (row, column) in enumerate(NEIGHBORS):
        # at a corner, far patches keep a thousandth in ours, whose bias has a limit
        assert torch.allclose(own[number], wanted[nine[-row, -column]], atol=2e-3)


def test_an_inner_patch_sees_one_neighbor_in_each_head() -> None:
    seen = attention(table(bias_locality=5.0))[:, 14].argmax(-1)  # row 2, column 2 of six
    assert sorted(seen.tolist()) == [7, 8, 9, 13, 15, 19, 20, 21]


def test_without_it_and_for_the_class_token_biases_start_at_zero() -> None:
    assert not table().table.any()
    rows = table(bias_locality=1.0, pool="token").table
    assert not rows[-3:].any()
    assert (rows[:-3] < 0).any()


def test_all_other_weights_are_those_without_it(tmp_path: Path) -> None:
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    both = [
        vitlab.create(NAME, 3, 24, generator=each, positions="bias", bias_locality=strength)
        for each, strength in zip(generators, (0.0, 1.0), strict=True)
    ]
    plain, local = (each.state_dict() for each in both)
    differing = {name for name in plain if not torch.equal(plain[name], local[name])}
    assert differing == {"positions.0.table", "positions.1.table"}
    again = vitlab.load(vitlab.save(both[1], tmp_path / "model"))
    assert again.config.bias_locality == 1.0
    assert torch.equal(again.state_dict()["positions.1.table"], local["positions.1.table"])
