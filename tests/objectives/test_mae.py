"""Masked autoencoders against transformers', what the encoder sees, and what is learned."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import vitlab
from objectives.made import batch_of
from oracles import peers
from vitlab.errors import OptionError
from vitlab.models.config import ViTConfig
from vitlab.models.encoder.from_patches import encode_visible, patches_of
from vitlab.models.packed import from_patches
from vitlab.models.positions.sincos import sines
from vitlab.models.vit import VisionTransformer
from vitlab.objectives.mae import MAE, visible_count
from vitlab.objectives.pretext_task import Learner
from vitlab.recipes.pretext import Pretext

OPTIONS = Pretext(
    task="mae", mask_ratio=0.75, decoder_width=16, decoder_depth=2, decoder_heads=2
)  # fmt: skip
SHAPE: dict[str, Any] = {
    "width": 32, "depth": 2, "heads": 4, "mlp": 48, "patch": 8, "image_size": 32, "classes": 0,
}  # fmt: skip
PATCHES = 16


def encoder(**choices: Any) -> VisionTransformer:
    model = VisionTransformer(ViTConfig(**SHAPE | choices), seeded(0))
    for name, weight in model.named_parameters():  # none of them zero
        nn.init.normal_(weight, float("norm" in name and "weight" in name), 0.1, seeded(len(name)))
    return model


def learner(options: Pretext = OPTIONS, **choices: Any) -> Learner:
    model = encoder(**choices)
    task = MAE(options, model.config)
    task.reset_parameters(seeded(1))
    return Learner(model, task)


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int = 4, seed: int = 2, channels: int = 3) -> Tensor:
    return torch.rand(count, channels, 32, 32, generator=seeded(seed)) * 2 - 1


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    """An autoencoder of transformers' with every weight random, and where it is saved."""
    transformers = peers.transformers()
    config = transformers.ViTMAEConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        image_size=32, patch_size=8, decoder_hidden_size=16, decoder_num_hidden_layers=2,
        decoder_num_attention_heads=2, decoder_intermediate_size=64, mask_ratio=0.75,
        layer_norm_eps=1e-6,
    )  # fmt: skip
    config._attn_implementation = "eager"
    model = transformers.ViTMAEForPreTraining(config).eval()
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            weight.add_(0.1 * torch.randn(weight.shape, generator=seeded(len(name))))
        table = model.decoder.decoder_pos_embed  # which transformers leaves at zero
        table[0] = torch.from_numpy(np.concatenate([np.zeros((1, 16)), sines_by_hand(4, 4, 16)]))
    folder = tmp_path_factory.mktemp("mae")
    model.save_pretrained(folder)
    return model, folder


def sines_by_hand(rows: int, columns: int, width: int) -> NDArray[np.float64]:
    """Positions of patches as in MAE's code: columns in the first half of the channels."""
    table = np.zeros((rows * columns, width))
    for place in range(rows * columns):
        for half, number in enumerate((place % columns, place // columns)):
            for i in range(width // 4):
                angle = number / 10_000 ** (i / (width / 4))
                first = half * width // 2 + i
                table[place, first], table[place, first + width // 4] = np.sin(angle), np.cos(angle)
    return table


def decoder_state(other: nn.Module) -> dict[str, Tensor]:
    """Tensors of transformers by our names; its pixels are in the order (row, column, channel)."""
    theirs = {k.removeprefix("decoder."): v for k, v in other.state_dict().items()}
    state = {
        "places": theirs["decoder_pos_embed"][0, 1:],
        "hidden": theirs["mask_token"],
    }
    order = torch.arange(8 * 8 * 3).view(8, 8, 3).permute(2, 0, 1).flatten()
    for leaf in ("weight", "bias"):
        state[f"embed.{leaf}"] = theirs[f"decoder_embed.{leaf}"]
        state[f"norm.{leaf}"] = theirs[f"decoder_norm.{leaf}"]
        state[f"predict.{leaf}"] = theirs[f"decoder_pred.{leaf}"][order]
        for number in range(2):
            ours, layer = f"blocks.{number}", f"decoder_layers.{number}"
            parts = [theirs[f"{layer}.attention.{each}_proj.{leaf}"] for each in "qkv"]
            state[f"{ours}.attention.0.body.qkv.{leaf}"] = torch.cat(parts)
            for mine, name in (
                ("attention.0.body.project", "attention.o_proj"),
                ("attention.0.norm", "layernorm_before"),
                ("mlp.0.norm", "layernorm_after"),
                ("mlp.0.body.expand", "mlp.fc1"),
                ("mlp.0.body.contract", "mlp.fc2"),
            ):
                state[f"{ours}.{mine}.{leaf}"] = theirs[f"{layer}.{name}.{leaf}"]
    return state


@pytest.mark.parametrize("normalize", [True, False])
def test_loss_and_predictions_are_transformers(theirs: tuple[Any, Path], normalize: bool) -> None:
    other, folder = theirs
    other.config.norm_pix_loss = normalize
    model = vitlab.load(folder)
    assert isinstance(model, VisionTransformer)
    task = MAE(replace(OPTIONS, normalize_pixels=normalize), model.config)
    close(task.decoder.places, other.decoder.decoder_pos_embed[0, 1:])
    task.decoder.load_state_dict(decoder_state(other))
    pixels = images()
    with torch.no_grad():
        visible, hidden = task.parted(pixels, seeded())
        loss, _ = task.loss(model, batch_of(pixels), seeded())
        noise = torch.rand(len(pixels), PATCHES, generator=seeded())
        want = other(pixels, noise=noise)
        inner = other.vit(pixels, noise=noise).last_hidden_state
        close(encode_visible(model, pixels, visible), inner)
        rows = torch.arange(len(pixels))[:, None]
        assert want.mask[rows, hidden].all()
        assert not want.mask[rows, visible].any()
        found = task.predicted(model, pixels, visible, hidden)
        close(found, to_ours(want.logits)[rows, hidden])
        close(loss, want.loss)
    assert want.loss > 0.1


def to_ours(pixels: Tensor) -> Tensor:
    """Values of patches in the order (channel, row, column)."""
    return pixels.unflatten(-1, (8, 8, 3)).permute(0, 1, 4, 2, 3).flatten(2)


def close(found: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "choices",
    [
        {"registers": 2}, {"positions": "2d", "pre_norm": True, "pool": "mean"},
        {"positions": "sincos"}, {"positions": "none", "stem": "hmlp", "stem_norm": "batch"},
    ],
)  # fmt: skip
def test_all_patches_visible_are_the_whole_image(choices: dict[str, Any]) -> None:
    model = encoder(**choices).eval()
    whole = torch.arange(PATCHES).expand(4, -1)
    for size in ((32, 32), (16, 64)):
        pixels = torch.randn(4, 3, *size, generator=seeded())
        close(encode_visible(model, pixels, whole), model.encode(pixels))


def test_the_encoder_never_sees_a_hidden_patch() -> None:
    each = learner(registers=1).eval()
    pixels = images()
    visible, hidden = each.task.parted(pixels, seeded())
    cut = patches_of(pixels, 8).clone()
    cut[torch.arange(4)[:, None], hidden] = 99.0
    changed = from_patches(cut.flatten(0, 1), (4, 4), 8)
    assert not torch.equal(changed, pixels)
    assert torch.equal(*(encode_visible(each.model, p, visible) for p in (pixels, changed)))
    assert torch.equal(*(each.task.predicted(each.model, p, visible, hidden)
                         for p in (pixels, changed)))  # fmt: skip


def test_the_loss_is_that_of_hidden_patches() -> None:
    """In NumPy, from the predictions; visible pixels are no targets."""
    for normalize in (True, False):
        each = learner(replace(OPTIONS, normalize_pixels=normalize), mean=(0.4,), std=(0.2,)).eval()
        pixels = images()
        loss, figures = each(batch_of(pixels), seeded())
        visible, hidden = each.task.parted(pixels, seeded())
        found = each.task.predicted(each.model, pixels, visible, hidden).detach().double().numpy()
        target = pixels.double().numpy().reshape(4, 3, 4, 8, 4, 8).transpose(0, 2, 4, 1, 3, 5)
        target = target.reshape(4, 16, 192)[np.arange(4)[:, None], hidden.numpy()]
        mean = target.mean(-1, keepdims=True)
        scale = np.sqrt(target.var(-1, ddof=1, keepdims=True) + 1e-6)
        mean, scale = (mean, scale) if normalize else (0.0, 1.0)
        assert loss.item() == pytest.approx(((found - (target - mean) / scale) ** 2).mean())
        errors = np.abs(found * scale + mean - target) * 0.2
        assert figures["pixel_error"].item() == pytest.approx(errors.mean((1, 2)).sum())


def test_every_weight_but_the_head_learns_and_same_seeds_give_same_bits() -> None:
    each = learner(registers=1, classes=3)
    runs = []
    for seed in (5, 5, 6):
        each.zero_grad()
        loss, _ = each(batch_of(images()), seeded(seed))
        loss.backward()
        runs.append([w.grad.clone() for w in each.parameters() if w.grad is not None] + [loss])
    silent = [name for name, weight in each.named_parameters() if weight.grad is None]
    assert silent == ["model.head.classify.weight", "model.head.classify.bias"]
    assert all(torch.equal(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    assert not torch.equal(runs[0][-1], runs[2][-1])
    assert all(grads.abs().sum() > 0 for grads in runs[0])


def test_masks_have_an_exact_count_and_hide_each_patch_as_often() -> None:
    task = learner().task
    assert isinstance(task, MAE)
    visible, hidden = task.parted(torch.empty(4000, 3, 32, 32), seeded())
    assert (visible.shape, hidden.shape) == ((4000, 4), (4000, 12))
    both = torch.cat([visible, hidden], 1).sort(1).values
    assert torch.equal(both, torch.arange(PATCHES).expand(4000, -1))
    counts = hidden.flatten().bincount(minlength=PATCHES).double()
    # 12 of 16 hidden: mean 3000, deviation sqrt(4000 * 0.75 * 0.25) = 27.4
    assert (counts - 3000).abs().max() < 4 * 27.4
    # transformers and MAE's code keep int(patches * (1 - ratio)); floats may fall just below
    assert [visible_count(196, r) for r in (0.75, 0.6, 0.9)] == [49, 78, 19]
    assert [visible_count(10, 0.9), visible_count(64, 0.98), visible_count(64, 0.99)] == [1, 1, 0]


def test_pictures_show_visible_patches_as_they_are() -> None:
    for channels in (1, 3):
        each = learner(channels=channels).eval()
        pixels = images(channels=channels)
        shown = each.task.pictures(each.model, pixels, seeded())
        assert [*shown] == ["image", "masked", "reconstructed"]
        assert {(p.dtype, p.shape) for p in shown.values()} == {(torch.uint8, (4, 32, 32, 3))}
        exact = ((pixels / 2 + 0.5) * 255).round().byte().permute(0, 2, 3, 1).expand(-1, -1, -1, 3)
        assert torch.equal(shown["image"], exact)
        hidden = shown["masked"] != shown["image"]
        assert (shown["masked"][hidden] == 128).all()
        share = (shown["masked"] == 128).all(-1).float().mean().item()
        assert 0.74 < share < 0.77
        patches = (shown["masked"] == 128).all(-1).reshape(4, 4, 8, 4, 8).all(4).all(2)
        assert patches.sum().item() == 4 * 12
        visible = ~patches.repeat_interleave(8, 1).repeat_interleave(8, 2)
        assert torch.equal(shown["reconstructed"][visible], shown["image"][visible])
        assert not torch.equal(shown["reconstructed"], shown["image"])


@pytest.mark.parametrize("ratio", [0.063, 0.937])
def test_the_least_and_the_greatest_share_work(ratio: float) -> None:
    config = ViTConfig(**SHAPE)
    MAE.check(replace(OPTIONS, mask_ratio=ratio), config)
    assert 0 < visible_count(PATCHES, ratio) < PATCHES
    assert MAE.remarks(OPTIONS, config) == ["mae: the encoder sees 4 of 16 patches"]


@pytest.mark.parametrize("grid", [(4, 4), (2, 5)])
def test_fixed_positions_are_those_of_the_formula(grid: tuple[int, int]) -> None:
    """Also of images of another size, computed anew; the class token has none."""
    close(sines(grid, 32), torch.from_numpy(sines_by_hand(*grid, 32)).float())
    model = encoder(positions="sincos", registers=1, class_token=True)
    assert [name for name, _ in model.named_parameters() if "positions" in name] == []
    assert [name for name in model.state_dict() if "positions" in name] == []
    scheme = model.positions[0].at(grid)
    added = scheme.start(torch.zeros(1, 2 + grid[0] * grid[1], 32))[0]
    assert not added[:2].any()
    close(added[2:], torch.from_numpy(sines_by_hand(*grid, 32)).float())
    with pytest.raises(OptionError, match=r"positions=sincos needs a width .* of 4, not 30"):
        ViTConfig(**SHAPE | {"positions": "sincos", "width": 30, "heads": 3})


@pytest.mark.parametrize(
    ("model", "decoder"),
    [("ViT-L/16", (512, 8, 16)), ("ViT-S/16", (192, 4, 6)), ("ViT-Ti/4", (96, 4, 3))],
)
def test_the_recipe_is_the_papers(model: str, decoder: tuple[int, int, int]) -> None:
    recipe = vitlab.recipe("mae", model=model)
    how, own, config = recipe.optimizer, recipe.pretext, recipe.model.config()
    assert (how.lr, how.weight_decay, how.betas, how.clip) == (2.4e-3, 0.05, (0.9, 0.95), 0)
    assert how.lr == pytest.approx(1.5e-4 * recipe.batch / 256)
    assert (recipe.epochs, recipe.schedule.warmup, recipe.augment.area) == (800, 40, 0.2)
    assert (own.mask_ratio, own.decoder_width, own.decoder_depth, own.decoder_heads) == (
        0.75, *decoder,
    )  # fmt: skip
    assert isinstance(config, ViTConfig)
    assert (config.positions, config.norm_at, config.mean[0]) == ("sincos", "pooled", 0.485)
    MAE.check(own, config)


@pytest.mark.parametrize(
    ("model", "epochs", "lr", "decay", "drop"),
    [
        ("", 100, 5e-4, 0.65, 0.1), ("ViT-B/16", 100, 5e-4, 0.65, 0.1),
        ("ViT-L/16", 50, 1e-3, 0.75, 0.2), ("ViT-H/14", 50, 1e-3, 0.75, 0.3),
    ],
)  # fmt: skip
def test_fine_tuning_is_that_of_maes_code(
    model: str, epochs: int, lr: float, decay: float, drop: float
) -> None:
    """Of its FINETUNE.md; learning rates are per 256 images."""
    recipe = vitlab.recipe("mae-finetune", **({"model": model} if model else {}))
    how = recipe.optimizer
    assert (recipe.epochs, how.lr, how.layer_decay) == (epochs, lr * recipe.batch / 256, decay)
    assert (recipe.model.drop_path, recipe.schedule.warmup) == (drop, 5)
    assert (recipe.augment.mixup, recipe.augment.cutmix, recipe.augment.erase) == (0.8, 1.0, 0.25)
    assert recipe.schedule.final_lr * how.lr == pytest.approx(1e-6)


def test_the_last_norm_learns_also_where_it_is_on_the_pooled() -> None:
    each = learner(pool="mean", class_token=True, norm_at="pooled")
    each(batch_of(images()), seeded())[0].backward()
    silent = [name for name, weight in each.named_parameters() if weight.grad is None]
    assert silent == []
