"""The pieces of every table: what is written is read back, and shapes follow from writing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import vitlab
from vitlab.errors import WeightsError
from vitlab.weights.formats import entries
from vitlab.weights.formats.entries import Entry
from vitlab.weights.formats.google import flax
from vitlab.weights.formats.resnet_units import hybrid_parts, units_of, walk

# An entry, and the shapes of our tensors.
PIECES: dict[str, tuple[Entry, list[tuple[int, ...]]]] = {
    "same": (entries.same("a", "b"), [(2, 3)]),
    "shaped": (entries.shaped("a", "b", (1, 1, 6), (6,)), [(1, 1, 6)]),
    "stacked": (entries.stacked("a", ["q", "k", "v"]), [(6, 4)]),
    "halves of a kernel": (entries.halves("a", ("b", "c")), [(3, 8)]),
    "dense": (flax.dense("a", "b")[0], [(3, 5)]),
    "convolution": (flax.conv("a", "b")[0], [(4, 3, 2, 2)]),
    "queries": (flax.qkv("a", "b", ("query", "key", "value"), 2)[0], [(12, 4)]),
    "biases of queries": (flax.qkv("a", "b", ("key", "value"), 2)[1], [(8,)]),
    "output": (flax.out("a", "b", 2)[0], [(5, 8)]),
}


def some(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("piece", PIECES)
def test_what_is_written_is_read_back(piece: str) -> None:
    entry, shapes = PIECES[piece]
    ours = some(*shapes)
    theirs = entry.write(ours)
    assert len(theirs) == len(entry.theirs)
    for got, want in zip(entry.read(theirs), ours, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    for meta, real in zip(entry.write([t.to("meta") for t in ours]), theirs, strict=True):
        assert meta.shape == real.shape


def test_a_kernel_of_flax_is_the_transposed() -> None:
    """Dense: x @ kernel; convolution: (rows, columns, inputs, outputs), as in Flax's own code."""
    kernel, x = some((4, 6), (2, 4))
    torch.testing.assert_close(x @ flax.dense("a", "b")[0].read([kernel])[0].T, x @ kernel)
    (conv,) = some((3, 2, 5, 7))
    weight = flax.conv("a", "b")[0].read([conv])[0]
    assert weight.shape == (7, 5, 3, 2)
    assert weight[6, 4, 2, 1] == conv[2, 1, 4, 6]


def test_a_bias_of_keys_is_refused_and_none_is_zero() -> None:
    entry = entries.without_key("a", "q", "v")
    q, v = some((4,), (4,))
    (whole,) = entry.read([q, v])
    assert torch.equal(whole, torch.cat([q, torch.zeros(4), v]))
    for got, want in zip(entry.write([whole]), (q, v), strict=True):
        assert torch.equal(got, want)
    with pytest.raises(WeightsError, match="cannot represent a bias of keys, which a has"):
        entry.write([torch.cat([q, q, v])])
    assert [each.shape for each in entry.write([torch.empty(12, device="meta")])] == [(4,), (4,)]


def test_a_masked_bias() -> None:
    entry = entries.masked("a", ("b", "m"))
    bias, mask = some((6,))[0], torch.tensor([1.0, 1, 0, 0, 1, 1])
    (read,) = entry.read([bias, mask])
    assert torch.equal(read, bias * mask)
    assert torch.equal(entry.read(entry.write([read]))[0], read)


def test_a_class_token_without_a_position() -> None:
    entry = entries.without_first_row("positions.0.table", "pos")
    (table,) = some((1, 4, 3))
    (ours,) = entry.read([table])
    assert not ours[:, 0].any()
    assert torch.equal(ours[:, 1:], table)
    assert torch.equal(entry.write([ours])[0], table)
    with pytest.raises(WeightsError, match="cannot represent a position of the class token"):
        entry.write([torch.ones(1, 5, 3)])


@pytest.mark.parametrize("token", [True, False])
def test_registers_with_positions(token: bool) -> None:
    """Our registers have none, so the sum is stored in them."""
    entry = entries.with_prefix_rows(token, 2, ("registers", "pos"))
    own, table = some((1, 2, 3), (1, token + 2 + 4, 3))
    registers, places = entry.read([own, table])
    assert torch.equal(registers, own + table[:, token : token + 2])
    assert places.shape == (1, token + 4, 3)
    assert torch.equal(places[:, token:], table[:, token + 2 :])
    for got, want in zip(
        entry.read(entry.write([registers, places])), (registers, places), strict=True
    ):
        assert torch.equal(got, want)


def test_two_classifiers_are_averaged() -> None:
    first, second, x, y = some((3, 4), (3, 4), (2, 4), (2, 4))
    (kernel,) = entries.halves("a", ("b", "c")).read([first, second])
    want = (x @ first.T + y @ second.T) / 2
    torch.testing.assert_close(torch.cat([x, y], dim=1) @ kernel.T, want)
    biases = some((3,), (3,))
    (bias,) = entries.halves("a", ("b", "c")).read(biases)
    torch.testing.assert_close(bias, (biases[0] + biases[1]) / 2)


def test_units_are_counted_as_they_are_walked() -> None:
    stages = (3, 4, 23, 3)
    names = [f"block{stage + 1}/unit{unit + 1:02d}/conv" for stage, unit in walk(stages)]
    assert units_of([*names, "root/conv"], r"block(\d+)/unit(\d+)/") == stages
    parts = [(stage, unit, part) for _, stage, unit, part in hybrid_parts((2, 1))]
    assert [part for stage, unit, part in parts if (stage, unit) == (0, 1)] == [
        "reduce", "middle", "expand",
    ]  # fmt: skip
    assert sum(part == "shortcut" for _, _, part in parts) == 2
    assert [name for name, *_ in hybrid_parts((1,))][-1] == "stem.body.stages.0.0.shortcut"


CHOICES: dict[str, list[Any]] = {
    "classes": [0, 3],
    "branches": [1, 2],
    "stem_bias": [True, False],
    "positions": ["1d", "none", "bias", "rope", "2d"],
    "positions_at": ["stem", "shared"],
    "pre_norm": [False, True],
    "class_token": [None, True],
    "pool": ["token", "mean", "both", "prefix", "attention"],
    "norm_at": ["tokens", "pooled", "none"],
    "pre_logits": [0, 8],
    "registers": [0, 2],
    "layer_scale": [0.0, 0.1],
    "qkv_bias": [True, False],
    "bias": [True, False],
    "qk_norm": [False, True],
    "ffn": ["mlp", "swiglu"],
    "gelu": ["exact", "tanh", "quick"],
    "norm_eps": [1e-6, 1e-5, 1e-12],
}


def drawn(seed: int) -> Any:
    """A model of a few random choices, None if they do not go together."""
    generator = torch.Generator().manual_seed(seed)

    def pick(many: list[Any]) -> Any:
        return many[int(torch.randint(len(many), (), generator=generator))]

    keys = {pick(list(CHOICES)) for _ in range(pick([2, 3, 4, 5, 6]))}
    chosen = {"classes": 3} | {key: pick(CHOICES[key]) for key in sorted(keys)}
    try:
        return vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/8", image_size=16, **chosen)
    except vitlab.UserError:
        return None


@pytest.mark.parametrize("to", ["timm", "transformers"])
def test_any_model_is_written_and_read_back_or_refused(to: str, tmp_path: Any) -> None:
    """Refusals are one line; whatever is written gives the same numbers, as `save` checks."""
    outcomes = {"written": 0, "refused": 0}
    save: Callable[..., Any] = vitlab.save
    for seed in range(120):
        if (model := drawn(seed)) is None:
            continue
        try:
            folder = save(model, tmp_path / str(seed), to=to)
        except WeightsError as error:
            assert "\n" not in str(error)
            outcomes["refused"] += 1
            continue
        images = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
        with torch.inference_mode():
            got, want = vitlab.load(folder)(images), model.eval()(images)
            torch.testing.assert_close(got, want, rtol=0, atol=1e-6)  # a sum with zeros rounds
        outcomes["written"] += 1
    assert min(outcomes.values()) >= 8, outcomes
