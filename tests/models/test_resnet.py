"""The convolutional bodies: against timm, against plain loops, and by the published counts."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitlab
from oracles import peers
from vitlab.errors import OptionError
from vitlab.models.names import STAGES
from vitlab.models.resnets.axial import AXIAL, AxialBody, LineAttention
from vitlab.models.resnets.body import (
    BIT,
    HYBRID,
    BiTBody,
    ConvNorm,
    Flavor,
    HybridBody,
    PostUnit,
    StdConv,
    standardize,
)

Body = HybridBody | BiTBody | AxialBody
SMALL: dict[str, Callable[[], Body]] = {
    "hybrid": lambda: HybridBody((1, 2)),
    "bit": lambda: BiTBody((1, 2)),
    "axial": lambda: AxialBody((1, 2), 3, (32, 40)),
}


def randomized(body: nn.Module, spread: float = 1) -> nn.Module:
    """Every tensor random, in double precision, so that no zero or one hides a mistake."""
    generator = torch.Generator().manual_seed(11)
    body.double()
    for name, weight in body.state_dict().items():
        draw = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        if weight.ndim == 4:  # a kernel: means that standardizing must take away
            weight.copy_(spread * (draw + torch.randn(len(draw), 1, 1, 1, generator=generator)))
        elif name.endswith("weight"):
            weight.copy_(1 + 0.3 * draw)
        else:
            weight.copy_(0.3 * draw)
    return body.eval()


def images(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def fill(other: nn.Module, body: nn.Module, names: dict[str, str]) -> None:
    """The weights of ours into theirs; `names` maps their modules to ours, by hand."""
    own, wanted = body.state_dict(), other.state_dict()
    renamed = {
        theirs + end: own[ours + end]
        for theirs, ours in names.items()
        for end in (".weight", ".bias")
        if ours + end in own
    }
    renamed |= {key: wanted[key] for key in wanted if key.startswith("head.")}
    assert len(renamed) - sum(key.startswith("head.") for key in wanted) == len(own)
    other.double().load_state_dict(renamed)
    other.eval()


def hybrid_names(stages: tuple[int, ...]) -> dict[str, str]:
    names = {"stem.conv": "root.reduce.conv", "stem.norm": "root.reduce.norm"}
    parts = {"1": "reduce", "2": "middle", "3": "expand"}
    for stage, units in enumerate(stages):
        for unit in range(units):
            theirs, ours = f"stages.{stage}.blocks.{unit}", f"stages.{stage}.{unit}"
            for number, part in parts.items():
                names[f"{theirs}.conv{number}"] = f"{ours}.{part}.conv"
                names[f"{theirs}.norm{number}"] = f"{ours}.{part}.norm"
            if unit == 0:
                names[f"{theirs}.downsample.conv"] = f"{ours}.shortcut.conv"
                names[f"{theirs}.downsample.norm"] = f"{ours}.shortcut.norm"
    return names


def bit_names(stages: tuple[int, ...]) -> dict[str, str]:
    names = {"stem.conv": "root", "norm": "norm"}
    for stage, units in enumerate(stages):
        for unit in range(units):
            theirs, ours = f"stages.{stage}.blocks.{unit}", f"stages.{stage}.{unit}"
            for part in ("conv1", "conv2", "conv3", "norm1", "norm2", "norm3"):
                names[f"{theirs}.{part}"] = f"{ours}.{part}"
            if unit == 0:
                names[f"{theirs}.downsample.conv"] = f"{ours}.shortcut"
    return names


def test_hybrid_bodies_agree_with_timm() -> None:
    name, stages = "vit_small_r26_s32_224", (2, 2, 2, 2)
    model = peers.timm().create_model(name, embed_dim=8, depth=1, num_heads=1, num_classes=0)
    other = model.patch_embed.backbone
    # timm adds 1e-8 to the variance where the official code adds 1e-5 to the standard deviation:
    # on wide kernels neither shows. Its norms keep PyTorch's eps; the official one is 1e-6.
    body = randomized(HybridBody(stages), spread=1e6)
    fill(other, body, hybrid_names(stages))
    for part in other.modules():
        if isinstance(part, nn.GroupNorm):
            part.eps = 1e-6
    with torch.inference_mode():
        ours, theirs = body(images(1, 3, 43, 38)), other(images(1, 3, 43, 38))
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)
    assert ours.shape == (1, body.features, *(math.ceil(side / body.stride) for side in (43, 38)))


@pytest.mark.parametrize("widen", [1, 2])
def test_bit_agrees_with_timm(widen: int) -> None:
    """Logits and maps of five channels; the eps is that of Big Transfer's own PyTorch code."""
    timm = peers.timm()
    conv = functools.partial(timm.layers.StdConv2d, eps=1e-10)
    other = timm.models.resnetv2.ResNetV2(
        (1, 2, 1), in_chans=5, width_factor=widen, stem_type="fixed", conv_layer=conv, num_classes=7
    )
    given = {"channels": 5, "widen": widen, "mean": 0.5, "std": 0.5}
    model: Any = randomized(vitlab.create("BiT-R(1-2-1)x1", 7, (33, 48), **given))
    fill(other, model.body, bit_names((1, 2, 1)))
    other.head.fc.weight = nn.Parameter(model.classify.weight[:, :, None, None])
    other.head.fc.bias = model.classify.bias
    batch = images(2, 5, 33, 48)
    with torch.inference_mode():
        torch.testing.assert_close(model(batch), other(batch))
        for norm in (False, True):
            how = {"norm": norm, "intermediates_only": True}
            theirs = other.forward_intermediates(batch, [1, 3], **how)
            ours = model.intermediates(batch, [1, -1], norm=norm, maps=True)
            for each, expected in zip(ours, theirs, strict=True):
                torch.testing.assert_close(each.map, expected)
        assert torch.equal(ours[0].map, model.intermediates(batch, [1])[0])
    assert ours[1].map.shape == (2, widen * 1024, 3, 3)


def test_stages_have_as_many_units_as_timms() -> None:
    for layers, units in STAGES.items():
        with torch.device("meta"):
            other = peers.timm().create_model(f"resnet{layers}")
        assert tuple(len(getattr(other, f"layer{n}")) for n in range(1, 5)) == units


@pytest.mark.parametrize("flavor", [HYBRID, BIT, AXIAL])
def test_standardized_kernels_against_a_plain_loop(flavor: Flavor) -> None:
    weight = images(5, 3, 3, 2) * torch.tensor([1e-6, 1e-4, 1e-2, 1, 100])[:, None, None, None] + 1
    want = np.empty(weight.shape)
    for out, kernel in enumerate(weight.numpy()):
        centered = kernel - kernel.sum() / kernel.size
        variance = (centered**2).sum() / kernel.size
        scale = math.sqrt(variance) + 1e-5 if flavor is HYBRID else math.sqrt(variance + 1e-10)
        want[out] = centered / scale
    torch.testing.assert_close(standardize(weight, flavor), torch.from_numpy(want))


@pytest.mark.parametrize("flavor", [HYBRID, BIT, AXIAL])
def test_a_constant_kernel_has_a_finite_gradient(flavor: Flavor) -> None:
    weight = torch.zeros(2, 3, 1, 1, requires_grad=True)
    (standardize(weight, flavor) * torch.randn(2, 3, 1, 1)).sum().backward()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()


def test_the_gradient_of_a_map_of_one_pixel_is_not_what_the_memory_held() -> None:
    """In bf16, with a stride, as in the last stages for images of 8 pixels."""
    for rows, columns in ((1, 1), (3, 1), (1, 3)):
        for flavor in (BIT, HYBRID):
            layer = StdConv(64, 64, 3, 2, flavor)
            layer.reset_parameters(torch.Generator().manual_seed(0))
            inputs = images(8, 64, rows, columns).float()
            assert layer(inputs).shape[2:] == ((rows + 1) // 2, (columns + 1) // 2)
            found = []
            for precise in (True, False):
                junk = [torch.full((64, 64, 3, 3), math.nan) for _ in range(8)]
                junk += [each.bfloat16() for each in junk]
                with torch.autocast("cpu", torch.bfloat16, enabled=not precise):
                    loss = layer(inputs).float().square().mean()
                del junk
                loss.backward()
                found.append(layer.weight.grad)
                layer.weight.grad = None
            assert (found[0] - found[1]).norm() < 0.05 * found[0].norm()


def test_a_unit_attends_along_the_height_then_along_the_width_then_averages() -> None:
    body = AxialBody((1, 1), 3, (36, 28))
    plain, strided = (stage[0].middle for stage in body.stages)
    assert [part.axis for part in plain] == [2, 3]
    assert [part.axis for part in strided[:2]] == [2, 3]
    assert [part.relative.shape[1] for part in strided[:2]] == [2 * 9 - 1, 2 * 7 - 1]
    features = images(1, 2, 3, 4)
    want = torch.zeros(1, 2, 2, 2, dtype=torch.float64)
    for row in range(3):
        for column in range(4):
            want[:, :, row // 2, column // 2] += features[:, :, row, column] / 4
    torch.testing.assert_close(strided[2](features), want)


def test_line_attention_against_a_plain_loop() -> None:
    width, heads, n = 64, 4, 5
    attention = randomized(LineAttention(width, heads, n, 3))
    inputs = images(1, width, 2, n)
    with torch.inference_mode():
        got = attention(inputs)[0].numpy()
    own = {name: weight.numpy() for name, weight in attention.state_dict().items()}
    for row in range(2):
        want = _attend_by_loops(inputs[0, :, row].numpy(), heads, own)
        np.testing.assert_allclose(got[:, row], want, rtol=1e-9, atol=1e-9)


def _attend_by_loops(line: np.ndarray, heads: int, own: dict[str, np.ndarray]) -> np.ndarray:
    """Position-sensitive attention of one line, (width, n) -> (width, n)."""
    width, n = line.shape
    d = width // heads
    qkv = own["qkv.weight"][:, :, 0] @ line
    qkv = _group_norm(qkv, own["norm_qkv.weight"], own["norm_qkv.bias"]).reshape(heads, 2 * d, n)
    table = own["relative"]
    result = np.zeros((heads, d, n))
    for head in range(heads):
        q, k, v = qkv[head, : d // 2], qkv[head, d // 2 : d], qkv[head, d:]
        for i in range(n):
            logits, values = np.zeros(n), np.zeros((n, d))
            for j in range(n):
                ahead, behind = table[:, j - i + n - 1], table[:, i - j + n - 1]
                logits[j] = q[:, i] @ k[:, j] + q[:, i] @ ahead[d // 2 : d]
                logits[j] += k[:, j] @ behind[: d // 2]
                values[j] = v[:, j] + ahead[d:]
            weights = np.exp(logits) / np.exp(logits).sum()
            result[head, :, i] = weights @ values
    return _group_norm(result.reshape(width, n), own["norm.weight"], own["norm.bias"])


def _group_norm(line: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    groups = line.reshape(32, -1)
    mean, variance = groups.mean(1, keepdims=True), groups.var(1, keepdims=True)
    normed = ((groups - mean) / np.sqrt(variance + 1e-4)).reshape(line.shape)
    return normed * scale[:, None] + shift[:, None]


def test_axial_resnets_are_of_one_size() -> None:
    model = vitlab.create("Axial-ResNet-(1)", 5, (32, 40))
    assert model.encode(torch.randn(2, 3, 32, 40)).shape == (2, 8 * 10, 256)
    with pytest.raises(OptionError) as caught:
        model(torch.randn(2, 3, 40, 32))
    assert str(caught.value) == (
        "images of 40x32 pixels do not fit Axial-ResNet-(1), whose relative positions hold for "
        "one size only: use image_size=(32, 40)"
    )
    with pytest.raises(OptionError, match="takes no extra tokens: use a Vision Transformer"):
        model.encode(torch.randn(2, 3, 32, 40), torch.randn(2, 3, 256))
    with pytest.raises(OptionError, match="has no attention maps: use a Vision Transformer"):
        model.attention_maps(torch.randn(2, 3, 32, 40))


@pytest.mark.parametrize("kind", SMALL)
def test_every_tensor_gets_its_start_from_the_generator(kind: str) -> None:
    with torch.device("meta"):
        body = SMALL[kind]()
    body.to_empty(device="cpu")
    drawn = []
    untouched = torch.get_rng_state()
    for seed in (1, 1, 2):
        for weight in body.state_dict().values():
            weight.fill_(torch.nan)
        body.reset_parameters(torch.Generator().manual_seed(seed))
        drawn.append({name: weight.clone() for name, weight in body.state_dict().items()})
    assert torch.equal(torch.get_rng_state(), untouched)
    first, again, other = drawn
    assert all(weight.isfinite().all() for weight in first.values())
    assert all(torch.equal(first[name], again[name]) for name in first)
    drawn_names = {name for name in first if not torch.equal(first[name], other[name])}
    assert drawn_names == {name for name, weight in first.items() if weight.ndim > 1}
    map_ = body(torch.randn(2, 3, 32, 40))
    assert map_.shape == (2, body.features, 4, 5)
    assert map_.isfinite().all()


def test_starts_are_those_of_the_official_code() -> None:
    hybrid, axial = HybridBody((1, 1)), AxialBody((1, 1), 3, (64, 64))
    for body in (hybrid, axial):
        body.reset_parameters(torch.Generator().manual_seed(0))
        for part in body.modules():
            if isinstance(part, PostUnit):
                assert (part.expand.norm.weight == 0).all()
                assert (part.reduce.norm.weight == 1).all()
            elif isinstance(part, StdConv):
                fan_in = part.weight[0].numel()
                assert part.weight.std().item() == pytest.approx(fan_in**-0.5, rel=0.05)
    unit = axial.stages[1][0].middle[0]
    assert unit.qkv.weight.std().item() == pytest.approx(1 / 128, rel=0.05)
    assert unit.relative.std().item() == pytest.approx(1 / 16, rel=0.15)
    middle = hybrid.stages[0][0].middle
    assert isinstance(middle, ConvNorm)
    assert (middle.norm.weight == 1).all()
    bit = BiTBody((1,))
    bit.reset_parameters()
    norms = [part for part in bit.modules() if isinstance(part, nn.GroupNorm)]
    assert all((norm.weight == 1).all() and (norm.bias == 0).all() for norm in norms)


@pytest.mark.slow
def test_compiles_with_its_gradients_in_one_graph() -> None:
    """Of the others, test_architectures.py compiles the forward pass."""
    body = randomized(AxialBody((1,), 3, (16, 24)))
    compiled = torch.compile(body, backend="aot_eager", fullgraph=True)
    inputs = images(2, 3, 16, 24)
    torch.testing.assert_close(compiled(inputs), body(inputs))
    grads = []
    for each in (compiled, body):
        body.zero_grad()
        each(inputs).square().mean().backward()
        grads.append([weight.grad.clone() for weight in body.parameters()])
    torch.testing.assert_close(grads[0], grads[1])
