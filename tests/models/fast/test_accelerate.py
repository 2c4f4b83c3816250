"""The packed form against the plain model: every architecture, both precisions."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitlab
from models import test_packed
from models.test_architectures import FUSED_OTHERWISE, a_model, close, some_images
from vitlab.errors import DeviceError, WeightsError
from vitlab.models.fast import accelerate as room
from vitlab.models.fast import packed_form
from vitlab.models.fast.engines import patterns
from vitlab.models.fast.packed_form import (
    Dense,
    FastBlock,
    PackedDense,
    PatchProduct,
    can_pack,
    is_product,
)
from vitlab.models.packed import Packed

needs_packing = pytest.mark.skipif(not can_pack(), reason="oneDNN packs no weights here")


@pytest.mark.parametrize("case", [*FUSED_OTHERWISE, "local", "relative", "Perception Encoder"])
@torch.inference_mode()
def test_in_fp32_it_agrees_to_rounding(case: str) -> None:
    model, images = a_model(case), some_images(a_model(case))
    fast = vitlab.accelerate(model, device="cpu", precision="fp32", engine="packed")
    assert fast.computes == "fp32"
    close(fast(images), model(images))
    close(fast.features(images), model.features(images))
    close(fast.encode(images), model.encode(images))
    if isinstance(model, vitlab.VisionTransformer):
        ours, theirs = fast.attention_maps(images), model.attention_maps(images)
        assert max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)) < 1e-5


@pytest.mark.parametrize("case", FUSED_OTHERWISE)
@torch.inference_mode()
def test_in_bf16_it_agrees_within_five_percent(case: str) -> None:
    model, images = a_model(case), some_images(a_model(case))
    fast = vitlab.accelerate(model, device="cpu", precision="bf16", engine="packed")
    for got, want in (
        (fast(images), model(images)),
        (fast.features(images), model.features(images)),
        (fast.encode(images), model.encode(images)),
    ):
        assert got.dtype is torch.float32
        assert (got - want).norm() <= 0.05 * want.norm()
    if isinstance(model, vitlab.VisionTransformer):
        ours, theirs = fast.attention_maps(images), model.attention_maps(images)
        assert max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)) < 0.05
        for layer, want in enumerate(model.intermediates(images, [0, 1, 2])):
            got = fast.intermediates(images, [layer])[0]
            assert got.dtype is torch.float32
            assert (got - want).norm() <= 0.05 * want.norm()
        blocks = any(isinstance(each, FastBlock) for each in fast.modules())
        assert (fast.computes == "bf16") == blocks


@torch.inference_mode()
def test_the_last_block_computes_what_the_head_reads() -> None:
    shapes: list[tuple[int, ...]] = []
    for case, read in (("plain", 1), ("prefix", 2), ("mean of all", None), ("CLIP", 1)):
        model = a_model(case)
        fast = vitlab.accelerate(model, device="cpu", precision="fp32", engine="packed")
        fast.blocks[-1].register_forward_hook(lambda *given: shapes.append(given[-1].shape))
        close(fast(some_images(model)), model(some_images(model)))
        assert shapes.pop() == (3, read or model.config.length, model.config.width)
        close(fast.encode(some_images(model)), model.encode(some_images(model)))
        assert shapes.pop() == (3, model.config.length, model.config.width)


@pytest.mark.parametrize(
    "case", ["both", "attention", "1d, every", "rope", "bias", "axial", "hmlp", "norms after"]
)
@torch.inference_mode()
def test_images_of_different_sizes(case: str) -> None:
    choices = test_packed.CASES[case]
    model = test_packed.a_model(**choices)
    images = Packed.of(test_packed.some_images(choices.get("patch", 4)), model.config.patch)
    close(
        vitlab.accelerate(model, device="cpu", precision="fp32", engine="packed")(images),
        model(images),
        1e-4,
    )
    half = vitlab.accelerate(model, device="cpu", precision="bf16", engine="packed")
    assert (half(images) - model(images)).norm() <= 0.1 * model(images).norm()


def test_the_model_stays_as_it_is() -> None:
    model = a_model("hMLP, BN").train()
    before = copy.deepcopy(model.state_dict())
    fast = vitlab.accelerate(model, device="cpu", engine="packed")
    assert model.training
    assert not fast.training
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
    assert not any(weight.requires_grad for weight in fast.parameters())


@needs_packing
def test_it_is_packed_and_can_neither_be_saved_nor_moved(tmp_path: Any) -> None:
    model, images = a_model("plain"), some_images(a_model("plain"))
    fast = vitlab.accelerate(model, device="cpu", precision="fp32", engine="packed")
    layers = [each for each in fast.modules() if isinstance(each, Dense)]
    assert len(layers) == 1 + 4 * 2 + 1  # patches, blocks, classifier
    assert all(isinstance(each, PackedDense) for each in layers)
    with pytest.raises(WeightsError, match="cannot save a fused model"):
        vitlab.save(fast, tmp_path / "m")
    with pytest.raises(DeviceError, match="accelerate the model that it was made from"):
        vitlab.accelerate(model, device="cpu", precision="fp32", engine="packed").to("meta")
    with torch.inference_mode():
        assert torch.equal(copy.deepcopy(fast)(images), fast(images))
        assert torch.equal(fast.float().to("cpu")(images), fast(images))


def test_auto_is_bf16_only_where_the_outputs_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "multiplies_bf16", lambda where: True)
    model, images = a_model("plain"), some_images(a_model("plain"))
    assert vitlab.accelerate(model, device="cpu", engine="packed").computes == "bf16"
    monkeypatch.setattr(room, "CHANCES", 1e-5)
    for probe in (None, patterns(model, 4)):
        fast = vitlab.accelerate(model, device="cpu", probe=probe, engine="packed")
        assert fast.computes == "fp32"
        with torch.inference_mode():
            close(fast(images), model(images))
    monkeypatch.setattr(room, "multiplies_bf16", lambda where: False)
    assert vitlab.accelerate(a_model("plain"), device="cpu", engine="packed").computes == "fp32"


@pytest.mark.parametrize(
    ("got", "agree"), [(1.0, True), (1.04, True), (1.06, False), (float("nan"), False)]
)
def test_what_agrees(got: float, agree: bool) -> None:
    exact = torch.ones(2, 3), torch.ones(2, 5, 3), torch.full((2, 2), 0.5), torch.ones(2)
    bf16 = torch.bfloat16
    assert room.agree((got * exact[0], *exact[1:]), exact, bf16) is agree
    assert room.agree((exact[0], got * exact[1], *exact[2:]), exact, bf16) is agree, "patch tokens"
    assert room.agree((*exact[:2], exact[2] + 0.03, exact[3]), exact, bf16) is False
    assert room.agree((*exact[:3], got * exact[3]), exact, bf16) is (got == 1), "distances"
    assert room.agree((*exact[:3], 1.001 * exact[3]), exact, torch.float32) is False
    assert room.agree((1.001 * exact[0], *exact[1:]), exact, torch.float32) is False


@torch.inference_mode()
def test_weights_in_float64_stay_as_they_are() -> None:
    model = a_model("plain").double()
    images = some_images(model).double()
    fast = vitlab.accelerate(model, device="cpu")
    assert (fast.engine, fast(images).dtype) == ("plain", torch.float64)
    assert torch.equal(fast(images), model(images))


@torch.inference_mode()
def test_without_onednn_it_is_the_fused_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_form, "can_pack", lambda dtype: False)
    model, images = a_model("parallel"), some_images(a_model("parallel"))
    for precision, away in (("fp32", 1e-5), ("bf16", 0.05)):
        fast = vitlab.accelerate(model, device="cpu", precision=precision, engine="packed")
        assert not any(isinstance(each, PackedDense) for each in fast.modules())
        close(fast(images), model(images), away)


@pytest.mark.parametrize("form", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_packed_layer_is_a_linear_layer(form: Any, dtype: torch.dtype) -> None:
    if not can_pack(dtype):
        pytest.skip(f"oneDNN packs no {dtype} here")
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, 5, 24, generator=generator)
    tokens = torch.randn(2, 5, 40, generator=generator).to(dtype)
    for bias in (True, False):
        layer = nn.Linear(24, 40, bias)
        fast = PackedDense(layer, dtype, 5)
        away = 1e-5 if dtype is torch.float32 else 0.02

        def near(got: Tensor, want: Tensor, away: float = away) -> None:
            assert got.dtype is dtype
            assert (got.float() - want).abs().max() <= away * want.abs().max()

        near(fast(values), layer(values))
        with_gelu = PackedDense(layer, dtype, 5, form)
        near(with_gelu(values), nn.functional.gelu(layer(values), approximate=form))
        near(fast.onto(values, tokens), layer(values) + tokens.float())


@pytest.mark.parametrize("choices", [{"stride": 4}, {"stride": (4, 2), "bias": False}])
@torch.inference_mode()
def test_patches_are_one_product(choices: dict[str, Any]) -> None:
    conv = nn.Conv2d(3, 10, kernel_size=choices["stride"], **choices)
    assert is_product(conv)
    for strange in ({"padding": 1}, {"dilation": 2}):
        assert not is_product(nn.Conv2d(3, 10, 4, 4, **strange))
    assert not is_product(nn.Conv2d(3, 9, 4, 4, groups=3))
    assert not is_product(nn.Conv2d(3, 10, 4, 2))
    product = PatchProduct(conv, lambda layer: Dense(layer, torch.float32))
    images = torch.randn(2, 3, 8, 16)
    close(product(images), conv(images))
    assert product(images[:0]).shape == conv(images[:0]).shape
