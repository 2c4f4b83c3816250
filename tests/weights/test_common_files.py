"""Files as people have them: open_clip's towers, other channels, strides; AST of sounds."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import vitlab
from made_models import close, noisy, pixels
from oracles import peers
from oracles.towers import ClipTower
from vitlab.data.decode.spectrograms import LOGARITHMS, normalization
from vitlab.errors import OptionError, WeightsError
from vitlab.weights.load import load_check
from weights.test_timm_files import randomized

TINY: dict[str, Any] = {"img_size": 32, "depth": 2, "num_classes": 3}


def timms(name: str = "vit_tiny_patch16_224", **choices: Any) -> Any:
    return randomized(peers.timm().create_model(name, **TINY | choices)).eval()


def folder_of(model: nn.Module, path: Path, **config: Any) -> Path:
    """A folder as timm pushes it: the tensors beside config.json."""
    path.mkdir()
    save_file(dict(model.state_dict()), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    return path


def some_images(channels: int = 3, size: int = 32) -> Tensor:
    return pixels(2, channels, size, size)


def test_timms_own_loader_of_npz_is_no_reason_to_refuse(tmp_path: Path) -> None:
    other = timms()
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 3,
              "pretrained_cfg": {"custom_load": True, "input_size": [3, 32, 32]}}  # fmt: skip
    model = vitlab.load(folder_of(other, tmp_path / "augreg", **config))
    with torch.inference_mode():
        close(model(some_images()), other(some_images()))


def test_a_model_without_a_pool(tmp_path: Path) -> None:
    """Virchow: all tokens are its output; with a classifier that is another model."""
    other = timms("vit_huge_patch14_224", embed_dim=96, num_heads=3, img_size=28, num_classes=0,
                  global_pool="", reg_tokens=2, init_values=1e-5)  # fmt: skip
    arguments = {"embed_dim": 96, "num_heads": 3, "img_size": 28, "reg_tokens": 2, "depth": 2,
                 "init_values": 1e-5}  # fmt: skip
    config: dict[str, Any] = {"architecture": "vit_huge_patch14_224", "num_classes": 0,
                              "model_args": arguments, "pretrained_cfg": {}}  # fmt: skip
    config["pretrained_cfg"]["global_pool"] = ""
    folder = folder_of(other, tmp_path / "virchow", **config)
    model = vitlab.load(folder)
    with torch.inference_mode():
        close(model.encode(some_images(size=28)), other(some_images(size=28)))
    assert load_check(folder).origins["pool"] == "assumed"
    assert vitlab.load(folder, pool="both").config.pool == "both"
    (folder / "config.json").write_text(json.dumps(config | {"num_classes": 3}))
    with pytest.raises(WeightsError, match=r"global_pool=''|num_classes=3"):
        vitlab.load(folder)


def test_all_tokens_classified_needs_a_pool(tmp_path: Path) -> None:
    other = timms(global_pool="")
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 3, "model_args":
              {"global_pool": "", "depth": 2, "img_size": 32}, "pretrained_cfg": {}}  # fmt: skip
    folder = folder_of(other, tmp_path / "pooled", **config)
    with pytest.raises(WeightsError, match="which --pool token settles"):
        vitlab.load(folder)
    with torch.inference_mode():
        close(vitlab.load(folder, pool="token")(some_images()), other(some_images())[:, 0])


class Clipa(ClipTower):
    """open_clip's tower without a norm before the blocks, and with the last one after the pool."""

    def __init__(self) -> None:
        super().__init__(128, 2, 16, 32, 7, nn.GELU())
        del self.ln_pre

    def forward(self, images: Tensor) -> Tensor:
        patches = self.conv1(images).flatten(2).mT
        token = self.class_embedding.expand(len(images), 1, -1)
        tokens = torch.cat([token, patches], 1) + self.positional_embedding
        for block in self.transformer["resblocks"]:  # type: ignore[union-attr]
            tokens = block(tokens)
        pooled: Tensor = self.ln_post(tokens[:, 1:].mean(1)) @ self.proj
        return pooled


def test_clipa_and_openvision(tmp_path: Path) -> None:
    other = randomized(Clipa()).eval()
    state = {f"visual.{name}": tensor.contiguous() for name, tensor in other.state_dict().items()}
    save_file(state, tmp_path / "open_clip_model.safetensors")
    vision = {"image_size": 32, "layers": 2, "width": 128, "patch_size": 16, "no_ln_pre": True,
              "pool_type": "avg", "final_ln_after_pool": True}  # fmt: skip
    content = {"model_cfg": {"embed_dim": 7, "vision_cfg": vision}, "preprocess_cfg": {}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(content))
    model = vitlab.load(tmp_path)
    with torch.inference_mode():
        close(model(some_images()), other(some_images()))
    torch.save(state, tmp_path / "bare.pt")
    origins = load_check(tmp_path / "bare.pt").origins
    assert (origins["pool"], origins["norm_at"]) == ("assumed", "assumed")
    with torch.inference_mode():
        close(vitlab.load(tmp_path / "bare.pt")(some_images()), other(some_images()))


@pytest.mark.parametrize("biased", [True, False])
def test_the_projection_of_timms_tower_in_open_clip_is_kept(biased: bool, tmp_path: Path) -> None:
    """BiomedCLIP: without it, its images are not in the space of its texts."""
    other = timms(num_classes=0)
    state = {f"visual.trunk.{name}": tensor for name, tensor in other.state_dict().items()}
    projection = nn.Linear(192, 5, bias=biased)
    state |= {f"visual.head.proj.{n}": t.detach() for n, t in projection.named_parameters()}
    state |= {"text.proj.0.weight": torch.zeros(4, 4), "logit_scale": torch.ones(())}
    save_file(state, tmp_path / "open_clip_model.safetensors")
    vision = {"timm_model_name": "vit_tiny_patch16_224", "timm_pool": "", "timm_proj": "linear",
              "image_size": 32, "timm_model_pretrained": False}  # fmt: skip
    content = {"model_cfg": {"embed_dim": 5, "vision_cfg": vision}, "preprocess_cfg": {}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(content))
    with torch.inference_mode():
        close(vitlab.load(tmp_path)(some_images()), projection(other(some_images())))


def dino2(depth: int = 1, patch: int = 14) -> dict[str, Tensor]:
    name = "vit_small_patch14_dinov2" if patch == 14 else "vit_small_patch16_224"
    other = timms(name, init_values=1.0, img_size=4 * patch, depth=depth, num_classes=0)
    return dict(other.state_dict()) | {"mask_token": torch.zeros(1, 384)}


@pytest.mark.parametrize(
    ("depth", "patch", "origin"), [(12, 14, "family"), (1, 14, "assumed"), (12, 16, "assumed")]
)
def test_only_released_sizes_of_dinov2_are_certain(
    depth: int, patch: int, origin: str, tmp_path: Path
) -> None:
    save_file(dino2(depth, patch), tmp_path / "own.safetensors")
    origins = load_check(tmp_path / "own.safetensors").origins
    assert {origins[name] for name in ("heads", "mean", "std", "crop")} == {origin}


def test_mae_files_do_not_say_how_images_were_normalized(tmp_path: Path) -> None:
    state = dict(timms(num_classes=0).state_dict()) | {"decoder_pos_embed": torch.zeros(1, 5, 8)}
    save_file(state, tmp_path / "mae.safetensors")
    origins = load_check(tmp_path / "mae.safetensors").origins
    assert (origins["mean"], origins["std"], origins["gelu"]) == ("assumed", "assumed", "family")


@pytest.mark.parametrize("channels", [1, 13])
def test_models_of_other_channels_load_with_means_assumed(
    channels: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = timms(in_chans=channels)
    file = tmp_path / "sentinel.pth"
    torch.save({"model": other.state_dict() | {"decoder_pos_embed": torch.zeros(1, 5, 8)}}, file)
    with caplog.at_level(logging.WARNING, "vitlab"):
        model = vitlab.load(file)
    assert model.config.mean == (0.5,) * channels
    assert "mean 0.5" in caplog.text
    assert str(file) in caplog.text
    with torch.inference_mode():
        close(model(some_images(channels)), other(some_images(channels)))
    assert load_check(file).origins["mean"] == "assumed"
    means = tuple(0.1 * number for number in range(channels))
    assert vitlab.load(file, mean=means, std=0.5).config.mean == means
    config = {"architecture": "vit_tiny_patch16_224", "model_args": {"in_chans": channels},
              "num_classes": 3, "pretrained_cfg": {"input_size": [3, 32, 32]}}  # fmt: skip
    found = load_check(folder_of(other, tmp_path / "folder", **config))
    assert found.origins["mean"] == "assumed"


def overlapping(rows: int, columns: int) -> dict[str, Tensor]:
    state = dict(timms(num_classes=0).state_dict())
    return state | {"pos_embed": torch.randn(1, 1 + rows * columns, 192)}


def test_the_size_of_overlapping_patches_is_assumed_or_asked_for(tmp_path: Path) -> None:
    """TransFG: 27x27 patches of 16 pixels, one every 8, in 224x224; TransReID: 21x10, every 12."""
    file = tmp_path / "transfg.safetensors"
    save_file(overlapping(27, 27), file)
    assert load_check(file, image_size=224).origins["image_size"] == "assumed"
    save_file(overlapping(21, 10), file)
    for size in (None, (256, 128)):
        with pytest.raises(WeightsError, match="give their size in pixels, --image-size"):
            vitlab.load(file, image_size=size)


@pytest.mark.parametrize("prefix", ["", "vision."])
def test_kernels_as_mlx_stores_them(prefix: str, tmp_path: Path) -> None:
    other = timms()
    state = {prefix + name: tensor for name, tensor in other.state_dict().items()}
    kernel = f"{prefix}patch_embed.proj.weight"
    state[kernel] = state[kernel].permute(0, 2, 3, 1).contiguous()
    save_file(state, tmp_path / "mlx.safetensors")
    model = vitlab.load(tmp_path / "mlx.safetensors")
    with torch.inference_mode():
        close(model(some_images()), other(some_images()))


@pytest.mark.parametrize(
    ("name", "channels"),
    [("vit_tiny_patch16_224", 1), ("vit_tiny_patch16_224", 13), ("vit_small_r26_s32_224", 4)],
)
def test_other_channels_than_the_files_as_timm_has_them(
    name: str, channels: int, tmp_path: Path
) -> None:
    """Repeated and scaled, or summed: with timm's own loader as the oracle."""
    hybrid = {"depth": 1, "num_classes": 3, "img_size": 64} if "_r26_" in name else TINY
    other, size = randomized(peers.timm().create_model(name, **hybrid)).eval(), hybrid["img_size"]
    vitlab.save(vitlab.load(_stored(other, tmp_path), name=name, image_size=size),
                tmp_path / "timm", to="timm")  # fmt: skip
    theirs = peers.timm().create_model(f"local-dir:{tmp_path / 'timm'}", True, in_chans=channels)
    model = vitlab.load(tmp_path / "timm", channels=channels, mean=0.5, std=0.5)
    images = some_images(channels, size)
    with torch.inference_mode():
        close(model(images), theirs.eval()(images))
    notes = load_check(tmp_path / "timm", channels=channels, mean=0.5, std=0.5).notes
    assert any(f" for {channels}, as by timm" in note for note in notes)


def _stored(model: nn.Module, folder: Path) -> Path:
    torch.save(model.state_dict(), folder / "model.pth")
    return folder / "model.pth"


SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "num_mel_bins": 40,
    "max_length": 100,
    "num_labels": 5,
}


def another(kind: str, **choices: Any) -> Any:
    """A model of transformers' with every tensor random."""
    transformers = peers.transformers()
    config = transformers.ASTConfig(**SMALL | choices)
    return noisy(getattr(transformers, kind)(config))


def spectrograms() -> Tensor:
    """As AST takes them: (B, frames, bins)."""
    return torch.randn(3, 100, 40, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("kind", "choices"),
    [("ASTForAudioClassification", {}), ("ASTModel", {"frequency_stride": 16, "time_stride": 16})],
)
def test_outputs_are_transformers(kind: str, choices: dict[str, Any], tmp_path: Path) -> None:
    other = another(kind, **choices)
    other.save_pretrained(tmp_path)
    model = vitlab.load(tmp_path)
    assert model.config.size == (40, 100)
    assert model.config.grid == ((2, 6) if choices else (3, 9))
    images = spectrograms().transpose(1, 2)[:, None]
    with torch.inference_mode():
        want = other(spectrograms())
        if kind == "ASTModel":
            assert want.pooler_output.std() > 0.1
            close(model.features(images), want.pooler_output)
            close(model.encode(images), want.last_hidden_state)
        else:
            assert want.logits.std() > 0.1
            close(model(images), want.logits)
    vitlab.save(model, tmp_path / "own")
    with torch.inference_mode():
        assert torch.equal(vitlab.load(tmp_path / "own")(images), model(images))
    for form in ("timm", "transformers"):
        with pytest.raises(WeightsError, match="cannot represent"):
            vitlab.save(model, tmp_path / form, to=form)


@pytest.mark.filterwarnings("ignore:At least one mel filter")  # of transformers's own
def test_what_the_extractor_states_is_followed(tmp_path: Path) -> None:
    other = another("ASTModel")
    other.save_pretrained(tmp_path)
    mean, std = (np.array(getattr(vitlab.load(tmp_path).config, n)) for n in ("mean", "std"))
    pixels = (-15.95 + 0.11 * 145) * np.ones(1)  # level 145: a logarithm of 0
    want = (pixels - LOGARITHMS["mean"]) / LOGARITHMS["std"]
    np.testing.assert_allclose((145 / 255 - mean) / std, want, atol=1e-9)
    transformers = peers.transformers()
    transformers.ASTFeatureExtractor(mean=-6.8, std=5.5).save_pretrained(tmp_path)
    assert vitlab.load(tmp_path).config.mean == normalization(-6.8, 11.0)["mean"]
    transformers.ASTFeatureExtractor(do_normalize=False).save_pretrained(tmp_path)
    assert vitlab.load(tmp_path).config.std == normalization(0.0, 1.0)["std"]


WRONG = {
    "frequency_stride=10 with time_stride=8": ("config.json", {"time_stride": 8}),
    "stem_stride=20 must be at most patch=16": (
        "config.json",
        {"time_stride": 20, "frequency_stride": 20},
    ),
    "unsupported sampling_rate=8000": ("preprocessor_config.json", {"sampling_rate": 8000}),
}


@pytest.mark.parametrize("why", WRONG)
def test_what_cannot_be_represented_is_one_line(why: str, tmp_path: Path) -> None:
    another("ASTModel").save_pretrained(tmp_path)
    name, changes = WRONG[why]
    file = tmp_path / name
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | changes))
    with pytest.raises((WeightsError, OptionError), match=why) as caught:
        vitlab.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_overlapping_patches_stay_as_they_are() -> None:
    model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", 2, 16, stem_stride=2)
    with pytest.raises(OptionError, match="no patches to pack"):
        model.config.check_packed(3, 4)
    with pytest.raises(OptionError, match="stem_stride keeps the patch as it is"):
        model.repatch(8)
    with pytest.raises(OptionError, match=r"\(2, 16\) pixels are smaller than patch=4"):
        model.resize((2, 16))
