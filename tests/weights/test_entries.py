"""The pieces of every table: what is written is read back, and shapes follow from writing."""

import pytest
import torch
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.models.config import config_of
from vitlab.weights.formats.dialects import TIMM
from vitlab.weights.formats.entries import StoredAs, way
from vitlab.weights.formats.google import VIT_NAMES
from vitlab.weights.formats.names import found

CONFIG = config_of("ViT(width=8,depth=1,heads=2,mlp=32)/8", image_size=16, classes=3)


def google(key: str) -> StoredAs:
    """The first way in which Google stores a part."""
    return VIT_NAMES[key][0]


# How something is stored, and the shapes of our tensors.
PIECES: dict[str, tuple[StoredAs, list[tuple[int, ...]]]] = {
    "a token": (way("flat_token(b)"), [(1, 1, 6)]),
    "a table": (way("flat_table(b)"), [(1, 5, 6)]),
    "a grid": (way("gridded(b)"), [(1, 4, 6)]),
    "patches": (way("patches(b)"), [(4, 3, 8, 8)]),
    "stacked": (way("q k v"), [(6, 4)]),
    "joined": (way("joined(b)"), [(4, 4), (8, 4)]),
    "halves of a kernel": (way("halves(b c)"), [(3, 8)]),
    "dense": (google("expand.weight"), [(3, 5)]),
    "convolution": (google("patch.weight"), [(4, 3, 2, 2)]),
    "queries": (google("qkv.weight"), [(24, 8)]),
    "biases of queries": (google("qkv.bias"), [(24,)]),
    "output": (google("project.weight"), [(5, 8)]),
}


def some(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("piece", PIECES)
def test_what_is_written_is_read_back(piece: str) -> None:
    stored, shapes = PIECES[piece]
    ours = some(*shapes)
    theirs = stored.write(ours, CONFIG)
    assert len(theirs) == len(stored.names)
    for got, want in zip(stored.read(theirs, CONFIG), ours, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    for meta, real in zip(stored.write([t.to("meta") for t in ours], CONFIG), theirs, strict=True):
        assert meta.shape == real.shape


def test_a_kernel_of_flax_is_the_transposed() -> None:
    """Dense: x @ kernel; convolution: (rows, columns, inputs, outputs), as in Flax's own code."""
    kernel, x = some((4, 6), (2, 4))
    dense = google("expand.weight")
    torch.testing.assert_close(x @ dense.read([kernel], CONFIG)[0].T, x @ kernel)
    (conv,) = some((3, 2, 5, 7))
    weight = google("patch.weight").read([conv], CONFIG)[0]
    assert weight.shape == (7, 5, 3, 2)
    assert weight[6, 4, 2, 1] == conv[2, 1, 4, 6]


def test_a_bias_of_keys_is_refused_where_it_matters_and_none_is_zero() -> None:
    stored = way("keyless(q v)")
    q, v = some((4,), (4,))
    (whole,) = stored.read([q, v], CONFIG)
    assert torch.equal(whole, torch.cat([q, torch.zeros(4), v]))
    for got, want in zip(stored.write([whole], CONFIG), (q, v), strict=True):
        assert torch.equal(got, want)
    both = torch.cat([q, q, v])
    assert torch.equal(stored.write([both], CONFIG)[1], v)  # the softmax takes it out again
    normed = config_of("ViT-Ti1/16", qk_norm=True)
    with pytest.raises(WeightsError, match="cannot represent a bias of keys"):
        stored.write([both], normed)
    shapes = [each.shape for each in stored.write([torch.empty(12, device="meta")], normed)]
    assert shapes == [(4,), (4,)]


def test_a_class_token_without_a_position() -> None:
    stored = way("without_first_row(pos)")
    (table,) = some((1, 4, 3))
    (ours,) = stored.read([table], CONFIG)
    assert not ours[:, 0].any()
    assert torch.equal(ours[:, 1:], table)
    assert torch.equal(stored.write([ours], CONFIG)[0], table)
    with pytest.raises(WeightsError, match="cannot represent a position of the class token"):
        stored.write([torch.ones(1, 5, 3)], CONFIG)


def test_the_longest_way_that_is_there_is_how_a_part_is_stored() -> None:
    """A file with biases of queries, keys and values has those of queries and values, too."""
    first, layers = "blocks.0.attn.", ("q_proj", "k_proj", "v_proj")
    shapes = {f"{first}{layer}.{part}": (4, 4)[: 2 - (part == "bias")]
              for layer in layers for part in ("weight", "bias")}  # fmt: skip
    whole = found(shapes, TIMM)
    assert (whole.shape("qkv.weight"), whole.shape("qkv.bias")) == ((12, 4), (12,))
    del shapes[f"{first}k_proj.bias"]
    keyless = found(shapes, TIMM)
    assert len(keyless.theirs["qkv.bias"]) == 2
    assert keyless.shape("qkv.bias") == (12,)
