"""Images of different sizes in one sequence, against one image at a time."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import vitlab
from evaluation.small_models import noisy
from vitlab.errors import OptionError
from vitlab.models.encoder import mixed_sizes
from vitlab.models.encoder.mixed_sizes import PackedPositions
from vitlab.models.model import Model
from vitlab.models.packed import Packed, from_patches, to_patches

GRIDS = [(5, 7), (5, 7), (2, 3), (2, 3), (4, 1), (2, 3), (4, 4)]
CASES: dict[str, dict[str, Any]] = {
    "token": {},
    "both": {"pool": "both", "registers": 2},
    "prefix": {"pool": "prefix", "registers": 3},
    "attention": {"pool": "attention"},
    "1d, every": {"positions_at": "every", "resampling": "scaled"},
    "2d": {"positions": "2d", "pre_norm": True},
    "rope": {"positions": "rope", "registers": 2, "ffn": "swiglu", "qk_norm": True},
    "bias": {"positions": "bias"},
    "axial": {"attention": "axial", "pool": "mean"},
    "stem norm": {"stem_norm": "layer", "stem_act": "gelu"},
    "conv": {"stem": "conv"},
    "hmlp": {"stem": "hmlp", "stem_norm": "batch", "patch": 8},
    "local": {"stem": "local"},
    "1d+rope": {"positions": "1d+rope"},
    "norms after": {"norm_order": "after", "norm": "rms", "norm_inner_attention": True},
    "hybrid": {"stem": "resnet", "stages": (1,)},
}


def a_model(**choices: Any) -> Model:
    name = f"ViT(width=32,depth=2,heads=2,mlp=40)/{choices.pop('patch', 4)}"
    return noisy(name, 0.2, **{"classes": 5, "image_size": 16} | choices)


def some_images(patch: int = 4, grids: list[tuple[int, int]] = GRIDS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(3, r * patch, c * patch, generator=generator) for r, c in grids]


@pytest.mark.parametrize("case", CASES)
def test_packed_images_are_as_one_at_a_time(case: str) -> None:
    model = a_model(**CASES[case])
    patch = int(vars(model.config)["patch"])
    images = some_images(patch)
    packed = Packed.of(images, patch)
    with torch.no_grad():
        want = torch.cat([model(image[None]) for image in images])
        torch.testing.assert_close(model(packed), want, rtol=0, atol=1e-5)
        tokens = torch.cat([model.encode(image[None])[0] for image in images])
        torch.testing.assert_close(model.encode(packed)[0], tokens, rtol=0, atol=1e-5)
        torch.testing.assert_close(vitlab.fuse(model)(packed), want, rtol=0, atol=1e-5)
        layers = model.intermediates(packed, [0, 1])
        single = [
            torch.cat([model.intermediates(i[None], [n])[0][0] for i in images]) for n in (0, 1)
        ]
        for got, wanted in zip(layers, single, strict=True):
            torch.testing.assert_close(got[0], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", ["token", "rope", "attention", "1d, every"])
def test_gradients_are_those_of_one_image_at_a_time(case: str) -> None:
    model = a_model(**CASES[case])
    images = some_images()
    model(Packed.of(images, 4)).square().sum().backward()
    got = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
    model.zero_grad()
    for image in images:
        model(image[None]).square().sum().backward()
    want = [weight.grad for weight in model.parameters() if weight.grad is not None]
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


def test_patches_and_images_are_each_other() -> None:
    images = torch.arange(2 * 3 * 8 * 12).view(2, 3, 8, 12)
    patches = to_patches(images, 4)
    assert patches.shape == (2 * 6, 48)
    assert torch.equal(patches[1].view(3, 4, 4), images[0, :, :4, 4:8])
    assert torch.equal(from_patches(patches, (2, 3), 4), images)
    packed = Packed.of(some_images(), 4)
    assert len(packed) == 7
    assert packed.channels == 3
    assert packed.runs == [((5, 7), 2), ((2, 3), 2), ((4, 1), 1), ((2, 3), 1), ((4, 4), 1)]
    for got, want in zip(packed.images(), some_images(), strict=True):
        assert torch.equal(got, want)
    for got, want in zip(packed.flip(-1).images(), some_images(), strict=True):
        assert torch.equal(got, want.flip(-1))
    for got, want in zip(packed[2:5].images(), some_images()[2:5], strict=True):
        assert torch.equal(got, want)


def test_stochastic_depth_drops_whole_images() -> None:
    """Of four images two are dropped in each branch; what is left is doubled."""
    model = a_model(drop_path=0.5, positions="none", pool="mean")
    block = model.blocks[0].train()  # type: ignore[union-attr, index]
    tokens = torch.randn(1, 16, 32)
    places = PackedPositions(model.positions[0], [((1, 3), 2), ((1, 5), 2)], prefix=0)  # type: ignore[index, arg-type]
    branch = block.attention[0]
    with torch.no_grad():
        added = branch(tokens, places)[0].split([3, 3, 5, 5])
        whole = branch.eval()(tokens, places)[0].split([3, 3, 5, 5])
    dropped = [not part.any() for part in added]
    assert sum(dropped) == 2
    for part, all_of_it, gone in zip(added, whole, dropped, strict=True):
        if not gone:
            torch.testing.assert_close(part, 2 * all_of_it)


def test_what_cannot_be_packed_is_refused() -> None:
    model = a_model()
    packed = Packed.of(some_images(), 4)
    with pytest.raises(OptionError, match="no common attention maps: pass one at a time"):
        model.attention_maps(packed)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no common map: pass images of one size"):
        model.intermediates(packed, [1], norm=True, maps=True)
    with pytest.raises(OptionError, match="take no extra tokens"):
        model.encode(packed, torch.zeros(7, 1, 32))
    with pytest.raises(OptionError, match=r"patch=8, but .* has channels=3 and patch=4"):
        model(Packed.of(some_images(8), 8))
    with pytest.raises(OptionError, match="is not a multiple of patch=8: try"):
        Packed.of(some_images(), 8)
    with pytest.raises(OptionError, match="no images to pack"):
        Packed.of([], 8)
    with pytest.raises(OptionError, match="has no patches to pack: pass images of one size"):
        vitlab.create("BiT-R(1)x1", 5, 32)(packed)
    with pytest.raises(OptionError, match="cannot be resized, since its 1-D offsets"):
        a_model(positions="relative")(packed)


def plain_varlen(
    q: Tensor, k: Tensor, v: Tensor, ends: Tensor, same: Tensor, longest: int, other: int
) -> Tensor:
    """What PyTorch's kernel computes, sequence by sequence: (T, h, d) -> (T, h, d)."""
    assert ends.dtype == torch.int32
    assert torch.equal(ends, same)
    assert longest == other == int(ends.diff().max())
    parts = []
    for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        own = [each[first:last].transpose(0, 1) for each in (q, k, v)]
        parts.append(F.scaled_dot_product_attention(*own).transpose(0, 1))
    return torch.cat(parts)


@pytest.mark.parametrize("choices", [{}, {"qk_norm": True}, {"positions": "rope"}])
def test_the_kernel_for_variable_lengths_gets_each_image_by_itself(
    choices: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel itself needs a GPU: here a plain one takes its place."""
    model, packed = a_model(**choices), Packed.of(some_images(), 4)
    want = model(packed)
    calls: list[Tensor] = []

    def noted(*given: Any) -> Tensor:
        calls.append(given[0])
        return plain_varlen(*given)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", noted)
    monkeypatch.setattr(mixed_sizes, "suits_varlen", lambda *parts: True)
    torch.testing.assert_close(model(packed), want, rtol=0, atol=1e-5)
    assert len(calls) == model.config.depth
    if not choices:  # a view of queries, keys and values together: nothing is copied
        assert calls[0].untyped_storage().nbytes() == 3 * calls[0].nbytes


@pytest.mark.parametrize("capability", [(8, 0), (7, 5)])
def test_gpus_attend_in_half_precision_by_that_kernel(
    capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shapes only: tensors of a GPU that is not there, through PyTorch's own operator."""
    used, kernel = [], mixed_sizes.attend_varlen
    noted: Any = lambda q, *rest: used.append(q.dtype) or kernel(q, *rest)  # noqa: E731
    monkeypatch.setattr(mixed_sizes, "attend_varlen", noted)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    halves = [torch.bfloat16, torch.float16]
    with FakeTensorMode():
        for dtype in (*halves, torch.float32):
            sizes: list[Any] = [(2, 4, 7, 64), (3, 4, 5, 64)]
            parts = [
                (*(torch.empty(each, device="cuda", dtype=dtype) for _ in range(3)), None)
                for each in sizes
            ]
            attended = mixed_sizes.attend_packed(parts)
            assert (attended.shape, attended.dtype) == ((1, 29, 256), dtype)
            assert attended.device.type == "cuda"
    assert used == (halves if capability >= (8, 0) else [])
