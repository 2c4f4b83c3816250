"""Image tokenizers: names, shapes, costs, and what they refuse."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vitlab
from models.counting import counted_macs
from vitlab.errors import OptionError
from vitlab.models.config import TokenizerConfig, config_of
from vitlab.models.tokenizers.tokenizer import Tokenizer

SMALL = "dVAE(codes=12,code_width=6,width=8)/4"
NAMES = (
    "dVAE/8", "dVAE/16", "DALL-E/8", SMALL, "dVAE(depth=0)/2",
    "DALL-E(codes=32,code_width=4,width=8,depth=1)/2",
)  # fmt: skip


def made(name: str = SMALL, size: int = 16, **choices: Any) -> Tokenizer:
    generator = torch.Generator().manual_seed(0)
    model = vitlab.create(name, image_size=size, generator=generator, **choices)
    assert isinstance(model, Tokenizer)
    return model.eval()


def images(count: int = 2, side: int = 16) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", NAMES)
def test_names_there_and_back(name: str) -> None:
    config = config_of(name)
    assert isinstance(config, TokenizerConfig)
    assert config.name == name


@pytest.mark.parametrize("name", [SMALL, "DALL-E(codes=12,code_width=6,width=8,depth=2)/4"])
@pytest.mark.parametrize("laplace", [False, True])
def test_shapes_on_every_way(name: str, laplace: bool) -> None:
    model, batch = made(name, laplace=laplace), images(side=24)  # a size of its own
    logits, codes = model.logits(batch), model.codes(batch)
    assert logits.shape == (2, 12, 6, 6)
    assert codes.dtype == torch.int64
    assert torch.equal(codes, logits.argmax(1))
    assert model.decode(codes).shape == batch.shape
    assert model.outputs(codes).shape == (2, 6 if laplace else 3, 24, 24)
    hard = F.one_hot(codes, 12).movedim(-1, 1).float()
    torch.testing.assert_close(model.decode(hard), model.decode(codes))
    tokens = model.encode(batch)
    assert tokens.shape == (2, 36, model.config.features)
    torch.testing.assert_close(model.features(batch), tokens.mean(1))
    torch.testing.assert_close(model(batch), tokens.mean(1))
    *_, last = model.intermediates(batch, range(model.last_layer + 1), maps=True)
    torch.testing.assert_close(last.map.flatten(2).transpose(1, 2), tokens)


def test_a_mixture_of_codes_is_the_mixture_of_their_vectors() -> None:
    for name in (SMALL, "DALL-E(codes=12,code_width=6,width=8,depth=1)/4"):
        codebook = made(name).codebook
        assert codebook is not None
        shares = torch.rand(2, 12, 3, 5, generator=torch.Generator().manual_seed(2)).softmax(1)
        bias = 0 if codebook.bias is None else codebook.bias
        direct = torch.stack(
            [sum(shares[:, k, :, :, None] * codebook.weight[k] for k in range(12)) + bias]
        )[0].movedim(-1, 1)  # fmt: skip
        torch.testing.assert_close(codebook(shares), direct)


def test_images_are_centers_moved_back_into_pixels() -> None:
    model = made("DALL-E(codes=12,code_width=6,width=8,depth=1)/4", laplace=True, mean=0, std=1)
    outputs = torch.zeros(1, 6, 2, 2)
    outputs[:, 0], outputs[:, 1] = torch.tensor(0.9).logit(), torch.tensor(0.3).logit()
    pixels = model.as_images(outputs)
    torch.testing.assert_close(pixels[0, :, 0, 0], torch.tensor([1.0, 0.25, 0.5]))


def test_normalization_of_dalles_form_does_not_change_what_it_sees() -> None:
    """Its first layer takes pixels, so that images normalized otherwise have the same codes."""
    name, pixels = "DALL-E(codes=12,code_width=6,width=8,depth=1)/4", images().sigmoid()
    plain, other = made(name, mean=0, std=1), made(name, mean=0.4, std=0.2)
    torch.testing.assert_close(plain.logits(pixels), other.logits((pixels - 0.4) / 0.2))


def test_saved_loaded_resized_and_counted(tmp_path: Path) -> None:
    for name in (SMALL, "DALL-E(codes=12,code_width=6,width=8,depth=1)/2"):
        model = made(name, laplace=True)
        vitlab.save(model, tmp_path / "m")
        again = vitlab.load(tmp_path / "m")
        assert isinstance(again, Tokenizer)
        assert again.config == model.config
        assert torch.equal(again.logits(images()), model.logits(images()))
        assert torch.equal(again.decode(again.codes(images())), model.decode(model.codes(images())))
        larger = vitlab.load(tmp_path / "m", image_size=24)
        assert larger.config.size == (24, 24)
        assert torch.equal(larger.encode(images(side=24)), model.encode(images(side=24)))
        cost = vitlab.measure.cost(model)
        assert cost.params == sum(weight.numel() for weight in model.parameters())
        scored = nn.Sequential(model.encoder, model.score)
        counted = counted_macs(scored, 3, (16, 16))
        assert sum(part.macs for part in cost.parts[:2]) == counted


REFUSED = {
    "codes must be at least 2": {"codes": 1},
    "stride must be a power of two such as 8, not 6": {"stride": 6},
    "image_size=20 is not a multiple of stride=8: try 16 or 24": {"image_size": 20},
    "is a tokenizer, which has no classes": {"classes": 10},
    "form=dalle needs a width that 4 divides": {"form": "dalle", "width": 6},
    "fit=native needs a Vision Transformer": {"fit": "native"},
    "laplace=True applies only with decoder": {"decoder": False, "laplace": True},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_is_refused(words: str) -> None:
    with pytest.raises(OptionError, match=words):
        config_of("dVAE/8", **{"image_size": 32, **REFUSED[words]})


def test_images_of_other_sizes_and_a_missing_decoder_are_refused() -> None:
    model = made()
    with pytest.raises(OptionError, match="not a multiple of stride=4: try 16 or 20"):
        model.codes(images(side=18))
    with pytest.raises(OptionError, match="takes no extra tokens"):
        model.encode(images(), torch.zeros(2, 1, 8))
    with pytest.raises(OptionError, match="has no decoder: load one that was saved with"):
        made(decoder=False).decode(torch.zeros(1, 4, 4, dtype=torch.int64))
