"""One model at any image size: `resize`, and images of another size without it."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from scipy import ndimage
from torch import Tensor
from torch.nn import functional as F

import vitlab
from evaluation.small_models import noisy
from vitlab.errors import OptionError, WeightsError
from vitlab.models.model import Model
from vitlab.models.positions.learned import resample
from vitlab.models.stems.stem import resample_kernels

TINY = "ViT(width=32,depth=2,heads=2,mlp=40)/4"
CASES: dict[str, dict[str, Any]] = {
    "none": {"positions": "none"},
    "1d": {},
    "1d, every": {"positions_at": "every", "resampling": "scaled"},
    "2d, shared": {"positions": "2d", "positions_at": "shared", "resampling": "antialiased"},
    "rope": {"positions": "rope"},
    "rope, grid": {"positions": "rope", "rope_kind": "grid", "rope_grid": 5, "rope_offset": 1.0},
    "1d and rope": {
        "positions": "1d+rope",
        "rope_kind": "grid",
        "pool_prefix": True,
        "pool": "mean",
    },
    "1d and bias": {"positions": "1d+bias"},
    "bias": {"positions": "bias"},
    "bias, shared": {"positions": "bias", "positions_at": "shared"},
    "axial": {"attention": "axial", "pool": "mean"},
    "local": {"stem": "local", "positions": "2d"},
    "overlapping stem": {"stem_stride": 3},
    "fused": {"branches": 2, "layer_scale": 0.1},
}


def a_model(**choices: Any) -> Model:
    return noisy(TINY, 0.2, classes=5, image_size=16, **choices)


def with_its_own(model: Any, image_size: Any) -> Model:
    """A model for another size, whose tables are resampled once, as for fine-tuning."""
    new = model.config.sized(image_size).settled
    return cast(Model, model.remade(new, model.state_dict()))


@pytest.mark.parametrize("case", CASES)
def test_another_size_is_the_resized_model(case: str) -> None:
    model = a_model(**CASES[case])
    other, resized = with_its_own(model, (24, 12)), model.resize((24, 12))
    assert other.config.size == resized.config.size == (24, 12)
    assert not resized.training
    again = resized.resize(16)
    assert again.config == model.config  # nothing was lost
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])
    images = torch.randn(2, 3, 24, 12)
    if case == "fused":
        model = vitlab.fuse(model)
    with torch.no_grad():
        want, before = other(images), model(torch.zeros(1, 3, 16, 16))
        for _ in range(2):  # made, then kept
            torch.testing.assert_close(model(images), want, rtol=0, atol=1e-5)
            torch.testing.assert_close(resized(images), want, rtol=0, atol=1e-5)
        assert torch.equal(model(torch.zeros(1, 3, 16, 16)), before)
    for got, want in zip(
        model.intermediates(images, [2]), other.intermediates(images, [2]), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
    assert model.attention_maps(images)[0].shape == other.attention_maps(images)[0].shape


@pytest.mark.parametrize("case", ["1d, every", "2d, shared", "bias"])
def test_gradients_at_another_size_reach_the_table(case: str) -> None:
    model = a_model(**CASES[case])
    images = torch.randn(2, 3, 24, 12)
    table = next(model.positions[0].parameters())  # type: ignore[union-attr, index]
    model(images).square().sum().backward()
    assert table.grad is not None
    assert table.grad.abs().sum() > 0
    step, slope = 1e-2 * torch.randn_like(table), table.grad.clone()
    with torch.no_grad():
        before = model(images).double().square().sum()
        table += 1e-2 * step
        after = model(images).double().square().sum()
    torch.testing.assert_close(
        (after - before).float(), (1e-2 * step * slope).sum(), rtol=0.05, atol=1e-4
    )


def stepped(model: Model, table: Tensor) -> None:
    table.grad = torch.ones_like(table)
    torch.optim.AdamW([table], lr=0.5).step()


def replaced(model: Model, table: Tensor) -> None:
    tensors = {name: 2 * tensor for name, tensor in model.state_dict().items()}
    model.load_state_dict(tensors, assign=True)


def converted(model: Model, table: Tensor) -> None:
    model.bfloat16().float()


def written_behind(model: Model, table: Tensor) -> None:
    table.data.mul_(2)
    model.eval()


@pytest.mark.parametrize("change", [stepped, replaced, converted, written_behind])
def test_kept_positions_follow_the_table(change: Any) -> None:
    model = a_model()
    images = torch.randn(2, 3, 24, 12)
    with torch.no_grad():
        before = model(images)
    change(model, next(model.positions[0].parameters()))  # type: ignore[union-attr, index]
    with torch.no_grad():
        assert not torch.equal(model(images), before)
        assert torch.equal(model(images), with_its_own(model, (24, 12))(images))


def test_copies_of_a_model_that_kept_positions_are_their_own() -> None:
    model = a_model()
    images = torch.randn(1, 3, 24, 12)
    with torch.no_grad():
        want = model(images)
        other = copy.deepcopy(model)
        for weight in other.parameters():
            weight.zero_()
        assert torch.equal(model(images), want)
        assert not other(images).any()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_many_models_at_once_at_another_size() -> None:
    """An ensemble by `torch.func.vmap`: nothing of its weights can be kept."""
    models = [noisy(TINY, image_size=16) for _ in range(2)]
    weights, buffers = torch.func.stack_module_state(models)
    images = torch.randn(2, 3, 24, 24)

    def answer(*state: Any) -> Tensor:
        return cast(Tensor, torch.func.functional_call(models[0], state, (images,)))

    with torch.no_grad():
        together = torch.func.vmap(answer)(weights, buffers)
        for found, model in zip(together, models, strict=True):
            torch.testing.assert_close(found, model(images))


def test_a_size_that_the_patch_does_not_divide_is_refused() -> None:
    model = a_model()
    says = r"image_size=\(18, 13\) is not a multiple of patch=4: try \(16 or 20, 12 or 16\)"
    with pytest.raises(OptionError, match=says):
        model(torch.randn(1, 3, 18, 13))
    with pytest.raises(OptionError, match=says):
        model.resize((18, 13))
    with pytest.raises(WeightsError, match="resize first, then fuse"):
        vitlab.fuse(model).resize(24)


def test_relative_positions_and_axial_resnets_keep_their_size() -> None:
    model = a_model(positions="relative")
    with pytest.raises(OptionError, match="cannot be resized, since its 1-D offsets"):
        model(torch.randn(1, 3, 24, 16))
    with pytest.raises(OptionError, match="cannot be resized, since its relative positions"):
        vitlab.create("Axial-ResNet-(1)", 5, 32).resize(64)


@pytest.mark.parametrize("name", [TINY, "BiT-R(1)x1"])
def test_a_resized_model_shares_what_it_can(name: str) -> None:
    model = vitlab.create(name, 3, 32)
    model.provenance, model.source = {"recipe": "ours"}, "somewhere"
    for weight in model.classify.parameters() if name != TINY else model.head.parameters():  # type: ignore[union-attr]
        weight.requires_grad_(False)
    other = model.resize(48)
    assert other.training
    assert other.provenance == {"recipe": "ours"}
    assert other.provenance is not model.provenance
    assert other.source == "somewhere"
    ours = dict(model.named_parameters())
    for key, weight in other.named_parameters():
        assert weight.data_ptr() == ours[key].data_ptr()
        assert weight.requires_grad == ours[key].requires_grad
    assert model.config.image_size == 32
    images = torch.randn(2, 3, 48, 48)
    torch.testing.assert_close(other.eval()(images), model.eval()(images))


@pytest.mark.parametrize("new", [(9, 5), (2, 3), (4, 4)])
def test_positions_resize_as_scipy_zooms(new: tuple[int, int]) -> None:
    """The official code uses scipy.ndimage.zoom with order 1, class token aside."""
    table = torch.randn(1, 1 + 4 * 4, 6)
    got = resample(table, (4, 4), new)
    grid = table[0, 1:].reshape(4, 4, 6).double().numpy()
    want = ndimage.zoom(grid, (new[0] / 4, new[1] / 4, 1), order=1)
    torch.testing.assert_close(
        got[0, 1:].double(), torch.from_numpy(want.reshape(-1, 6)), atol=1e-6, rtol=0
    )
    assert torch.equal(got[:, :1], table[:, :1])


@pytest.mark.parametrize(("old", "new"), [((37, 37), (16, 16)), ((4, 6), (5, 3))])
def test_dinov2_resizes_its_table_as_its_own_code(
    old: tuple[int, int], new: tuple[int, int]
) -> None:
    """By its steps: 0.1 is added for plain models; antialiasing for those with registers."""
    table = torch.randn(1, 1 + old[0] * old[1], 8)
    grid = table[:, 1:].reshape(1, *old, 8).permute(0, 3, 1, 2)
    scale = tuple(float(n + 0.1) / m for n, m in zip(new, old, strict=True))
    plain = F.interpolate(grid, mode="bicubic", antialias=False, scale_factor=scale)
    registers = F.interpolate(grid, mode="bicubic", antialias=True, size=new)
    assert plain.shape[-2:] == new
    for want, resampling in ((plain, "scaled"), (registers, "antialiased")):
        got = resample(table, old, new, resampling)  # type: ignore[arg-type]
        assert torch.equal(got[:, 1:], want.permute(0, 2, 3, 1).reshape(1, -1, 8))
        assert torch.equal(got[:, :1], table[:, :1])
        assert (got - resample(table, old, new, "bicubic")).abs().max() > 1e-3
    (cubic,) = F.interpolate(grid, new, mode="bicubic").flatten(2).mT
    torch.testing.assert_close(resample(table, old, new, "bicubic")[0, 1:], cubic)


@pytest.mark.parametrize(("old", "new"), [(8, 16), (12, 7)])
def test_patch_kernels_are_those_of_timm_and_big_vision(old: int, new: int) -> None:
    """With timm's own resampling; its bilinear filter is the one of big_vision's `flexi/vit.py`."""
    from timm.layers.patch_embed import resample_patch_embed

    weight = torch.randn(6, 3, old, old)
    for interpolation in ("bilinear", "bicubic"):
        want = resample_patch_embed(weight, [new, new], interpolation)
        got = resample_kernels(weight, new, interpolation)  # type: ignore[arg-type]
        torch.testing.assert_close(got, want, rtol=0, atol=1e-4 * float(want.abs().max()))


def test_larger_patches_of_a_larger_image_give_the_same_tokens() -> None:
    """What the pseudo-inverse is for (FlexiViT, section 3.4): <B x, new> = <x, old>."""
    model = a_model(stem_norm="layer")
    model.provenance, model.source = {"recipe": "ours"}, "somewhere"
    large = model.repatch(8, 32)  # type: ignore[operator]
    assert (large.config.patch, large.config.size) == (8, (32, 32))
    assert large.provenance == {"recipe": "ours"}
    patches = torch.randn(1, 3, 4, 4)  # of an image of one patch
    wide = F.interpolate(patches, (8, 8), mode="bilinear", antialias=True)
    with torch.no_grad():
        torch.testing.assert_close(large.stem(wide), model.stem(patches), rtol=0, atol=1e-4)  # type: ignore[operator]
    for key, weight in large.named_parameters():
        same = weight.data_ptr() == model.get_parameter(key).data_ptr()
        assert same == (key != "stem.layers.0.weight")


@pytest.mark.parametrize("case", ["1d", "2d, shared", "bias"])
def test_positions_follow_another_patch(case: str) -> None:
    """Sixteen pixels in patches of 8: positions are those of an image of half the size."""
    model = a_model(**CASES[case])
    coarse, half = model.repatch(8), with_its_own(model, 8)  # type: ignore[operator]
    want = dict(half.positions.named_parameters())  # type: ignore[union-attr]
    for name, table in coarse.positions.named_parameters():
        assert torch.equal(table, want[name])
    assert coarse(torch.randn(1, 3, 16, 16)).shape == (1, 5)
    assert model.repatch(4)(torch.zeros(1, 3, 16, 16)).shape == (1, 5)  # type: ignore[operator]


def test_patches_that_cannot_be_resampled_are_refused() -> None:
    with pytest.raises(OptionError, match="stem=conv keeps patch=4: only stem=linear can"):
        a_model(stem="conv").repatch(8)  # type: ignore[operator]
    with pytest.raises(OptionError, match="image_size=16 is not a multiple of patch=5: try 15 or"):
        a_model().repatch(5)  # type: ignore[operator]


@pytest.mark.parametrize("case", ["1d", "2d, shared", "1d and rope", "bias"])
def test_a_saved_model_keeps_the_positions_that_it_was_published_with(
    case: str, tmp_path: Path
) -> None:
    model = a_model(**CASES[case])
    small = model.resize((12, 8))
    assert small.config.positions_size == 16  # type: ignore[attr-defined]
    vitlab.save(small, tmp_path / "small")
    read = vitlab.load(tmp_path / "small")
    assert read.config == small.config
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(read(images), model(images))
        assert torch.equal(vitlab.load(tmp_path / "small", image_size=16)(images), model(images))
    forms = (vitlab.fuse(read), vitlab.accelerate(read, engine="packed", device="cpu"))
    with torch.no_grad():
        for size in ((16, 16), (12, 8), (20, 12)):
            images = torch.randn(2, 3, *size)
            for form in forms:
                torch.testing.assert_close(form(images), model(images), rtol=0, atol=1e-4)


@pytest.mark.parametrize("case", ["1d", "2d, shared", "1d and rope", "bias"])
def test_kept_positions_are_resampled_once_their_size_is_the_image_s(case: str) -> None:
    """In two steps as in one: for formats whose positions have the size of the images."""
    model = a_model(**CASES[case])
    once, small = with_its_own(model, (12, 8)), model.resize((12, 8))
    twice = small.remade(small.config.settled, small.state_dict())
    assert once.config == twice.config
    for name, table in once.state_dict().items():
        assert torch.equal(twice.state_dict()[name], table)
    half = small.repatch(2, (6, 4))  # type: ignore[operator]  # as many patches as before
    assert half.config.grid == small.config.grid  # type: ignore[attr-defined]
    assert half(torch.zeros(1, 3, 6, 4)).shape == (1, 5)


@pytest.mark.parametrize("positions", ["1d", "sincos", "rope", "bias"])
def test_half_precision_at_any_size_resized_and_saved(positions: str, tmp_path: Path) -> None:
    model = a_model(positions=positions).half()
    read = vitlab.load(vitlab.save(model, tmp_path / "m"))
    for size, forms in (((16, 16), (model, read)), ((24, 12), (model, read, model.resize(24)))):
        images = torch.randn(1, 3, *size, dtype=torch.half)
        for form in forms:
            assert form(images).dtype == torch.half
    new = vitlab.load(tmp_path / "m", classes=2)
    assert new(torch.zeros(1, 3, 16, 16, dtype=torch.half)).shape == (1, 2)


def test_positions_of_the_size_itself_have_no_size_of_their_own() -> None:
    model = a_model()
    assert model.config.positions_size is None  # type: ignore[attr-defined]
    assert replace(model.config, positions_size=16) == model.config
    assert a_model(positions="rope").resize(24).config.positions_size is None  # type: ignore[attr-defined]
    with pytest.raises(OptionError, match="=18 is not a multiple of patch=4"):
        replace(model.config, positions_size=18)
