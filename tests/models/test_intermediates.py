"""What leaves chosen layers, as timm and transformers have it; `torch.export` of every model."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

import vitlab
from oracles import peers
from vitlab.errors import OptionError
from vitlab.models.model import Model

CLOSE = {"rtol": 0, "atol": 1e-5}
IMAGES = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(3))  # grid 4 x 6
TINY = "ViT(width=16,depth=2,heads=2,mlp=16)/8"
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (TINY, {}),
    "branches": ("ViT(width=16,depth=2,heads=2,mlp=16,branches=2)/8", {"pool": "both"}),
    "rope and registers": (TINY, {"positions": "rope", "registers": 2}),
    "two prefix tokens": (TINY, {"pool": "prefix", "registers": 1}),
    "axial": ("Axial-ViT(width=16,depth=1,heads=2,mlp=16)/8", {"pool": "mean"}),
    "hybrid": ("R(1)+ViT(width=16,depth=2,heads=2,mlp=16)/8", {}),
    "resnet": ("BiT-R(1-1)x1", {}),
}


def random(model: nn.Module) -> None:
    """Move every weight, so that no zero or one hides a mistake."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator))


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest) -> Model:
    name, choices = KINDS[request.param]
    made = vitlab.create(name, 3, (32, 48), **choices).eval()
    random(made)
    return made


@torch.inference_mode()
def test_the_last_layer_with_all_that_follows_is_what_encode_returns(model: Model) -> None:
    (last,) = model.intermediates(IMAGES, [-1], norm=True)
    if last.ndim == 4:
        last = last.flatten(2).transpose(1, 2)
    torch.testing.assert_close(last, model.encode(IMAGES), **CLOSE)


@torch.inference_mode()
def test_negative_layers_count_from_the_end(model: Model) -> None:
    count = model.last_layer + 1
    forward = model.intermediates(IMAGES, range(count))
    assert all(map(torch.equal, forward, model.intermediates(IMAGES, range(-count, 0))))
    backward = model.intermediates(IMAGES, [-1, 0, -1])
    assert all(map(torch.equal, backward, [forward[-1], forward[0], forward[-1]]))
    assert model.intermediates(IMAGES, []) == []
    for layer in (count, -count - 1):
        with pytest.raises(OptionError, match=rf"^layer {layer} of .*: choose from 0 to"):
            model.intermediates(IMAGES, [layer])


@pytest.mark.parametrize("norm", [False, True])
@torch.inference_mode()
def test_a_map_has_the_patches_where_they_are_in_the_image(model: Model, norm: bool) -> None:
    values = model.intermediates(IMAGES, [0, -1], norm=norm)
    for plain, (features, prefix) in zip(
        values, model.intermediates(IMAGES, [0, -1], norm=norm, maps=True), strict=True
    ):
        if plain.ndim == 4:
            assert torch.equal(features, plain)
            assert prefix.shape == (2, 0, plain.shape[1])
            continue
        assert prefix.shape[1] == model.config.prefix
        assert features.shape == (2, plain.shape[2], 4, 6)
        assert torch.equal(torch.cat([prefix, features.flatten(2).transpose(1, 2)], 1), plain)
        assert torch.equal(features[:, :, 1, 2], plain[:, model.config.prefix + 8])


@torch.inference_mode()
def test_no_more_is_kept_than_was_asked_for() -> None:
    deep = vitlab.create("ViT(width=16,depth=5,heads=2,mlp=16)/8", 3, 32).eval()
    made: dict[int, weakref.ref[Tensor]] = {}
    alive: list[int] = []

    def note(number: int, tokens: Tensor) -> None:
        made[number] = weakref.ref(tokens)
        if number == 5:
            alive.extend(layer for layer, each in made.items() if each() is not None)

    for number, block in enumerate(deep.blocks, 1):
        block.register_forward_hook(lambda _, inputs, out, number=number: note(number, out))
    deep.intermediates(IMAGES[..., :32], [2, -1])
    assert alive == [2, 4, 5]  # 4 is the input of 5


TIMM: dict[str, dict[str, Any]] = {
    "vit_small_patch14_reg4_dinov2": {},  # class token and registers
    "vit_small_patch16_dinov3": {},  # rotary positions
    # a distillation token
    "vit_base_patch16_siglip_224": {},  # no class token, attention pooling
    "vit_base_patch16_clip_224": {},  # a norm before the blocks
    "beit_base_patch16_224": {},  # positions in attention, the norm on the pooled
}
SHAPE = {"depth": 3, "embed_dim": 48, "num_heads": 3, "img_size": (32, 48), "patch_size": 8}


@pytest.fixture(scope="module", params=TIMM)
def of_timm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Timm's model with random weights, and ours that loads them."""
    timm = peers.timm()
    other = timm.create_model(request.param, num_classes=5, **SHAPE).eval()
    random(other)
    folder = str(tmp_path_factory.mktemp("timm"))
    timm.models._hub.save_for_hf(other, folder, safe_serialization=True, model_args=SHAPE)
    return other, vitlab.load(folder).eval()


@pytest.mark.parametrize("norm", [False, True])
@torch.inference_mode()
def test_layers_are_those_of_timm(of_timm: Any, norm: bool) -> None:
    other, own = of_timm
    form = {"norm": norm, "intermediates_only": True}
    theirs = other.forward_intermediates(IMAGES, return_prefix_tokens=True, **form)
    ours = own.intermediates(IMAGES, [1, 2, 3], norm=norm, maps=True)
    for (features, prefix), expected in zip(ours, theirs, strict=True):
        if isinstance(expected, Tensor):  # of a model without prefix tokens
            expected = expected, prefix[:, :0]
        torch.testing.assert_close(features, expected[0], **CLOSE)
        torch.testing.assert_close(prefix, expected[1], **CLOSE)
    flat = other.forward_intermediates(IMAGES, [-2], output_fmt="NLC", **form)
    (tokens,) = own.intermediates(IMAGES, [-2], norm=norm)
    torch.testing.assert_close(tokens[:, own.config.prefix :], flat[0], **CLOSE)


SMALL = "ViT(width=16,depth=1,heads=2,mlp=16)/8"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (SMALL, {}),
    "rope": (SMALL, {"positions": "rope", "registers": 2}),
    "relative": (SMALL, {"positions": "relative", "pool": "attention"}),
    "axial": (f"Axial-{SMALL}", {}),
    "hybrid": ("R(1)+ViT(width=16,depth=1,heads=2,mlp=16)/4", {}),
    "resnet": ("BiT-R(1)x1", {}),
}
FUSED, QUICK = ("plain", "hybrid"), ("plain", "rope", "axial", "resnet")


class Inside(nn.Module):
    """A module that returns a model's answers, and what leaves its layers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> list[Tensor]:
        (dense,) = self.model.intermediates(images, [-1], norm=True, maps=True)
        plain = self.model.intermediates(images, [0, -1])
        return [self.model(images), *plain, dense.map, dense.prefix]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.export's own imports
@pytest.mark.parametrize(
    ("case", "fused"),
    [(case, case in FUSED) for case in QUICK]
    + [
        pytest.param(e, fused, marks=pytest.mark.campaign)
        for e in CASES
        for fused in (False, True)
        if e not in QUICK or fused != (e in FUSED)
    ],
)
def test_a_graph_takes_any_number_of_images(case: str, fused: bool) -> None:
    name, choices = CASES[case]
    generator = torch.Generator().manual_seed(0)
    model = vitlab.create(name, 3, 32, generator=generator, **choices).eval()
    form = Inside(vitlab.fuse(model) if fused else model)
    with torch.no_grad():
        graph = export(form, (torch.randn(2, 3, 32, 32),), dynamic_shapes=({0: Dim("b")},))
        run = graph.module()
        for images in (torch.randn(count, 3, 32, 32) for count in (1, 5)):
            for got, want in zip(run(images), Inside(model)(images), strict=True):
                torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
