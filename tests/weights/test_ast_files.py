"""AST as transformers saves it, random weights: the same numbers, and what cannot be read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitlab
from made_models import close, noisy
from oracles import peers
from vitlab.data.decode.sound import LOGARITHMS, normalization
from vitlab.errors import OptionError, WeightsError

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
    [
        ("ASTForAudioClassification", {}),
        ("ASTModel", {"frequency_stride": 16, "time_stride": 16}),
    ],
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
