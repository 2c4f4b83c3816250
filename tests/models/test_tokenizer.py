"""Image tokenizers: names, shapes, costs, refusals; and models of clips, from tubelets."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vitlab
from models.counting import counted_macs
from models.test_sizes import TINY, a_model
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


def test_dalles_codebook_begins_as_a_convolution_of_that_many_channels() -> None:
    codes = made("DALL-E(codes=100,code_width=60,width=8,depth=1)/4").state_dict()
    (weight,) = (each for each in codes.values() if each.shape == (100, 60))
    assert float(weight.std()) == pytest.approx(0.1, rel=0.05)
    biases = [each for name, each in codes.items() if name.endswith(".bias")]
    assert len(biases) > 10
    assert not any(each.any() for each in biases)


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
        vitlab.save(model.half(), tmp_path / "half")
        half = vitlab.load(tmp_path / "half", kind=Tokenizer)
        assert torch.equal(half.codes(images().half()), model.codes(images().half()))


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


def still(frames: int) -> tuple[Tensor, Tensor]:
    image = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return image, image.repeat(1, frames, 1, 1)


@pytest.mark.parametrize("pool", ["token", "mean"])
@pytest.mark.parametrize(("frames", "tubelet"), [(2, 2), (4, 4), (5, 5), (10, 10), (8, 2), (6, 1)])
def test_a_still_clip_is_its_image(pool: str, frames: int, tubelet: int) -> None:
    """Within rounding: how a processor groups the channels of a sum depends on their number."""
    image, clip = still(frames)
    model = a_model(pool=pool, positions_at="every")
    over = vitlab.over_frames(model, frames, tubelet)
    times = frames // tubelet
    assert over.config.grid == (4 * times, 4)
    with torch.inference_mode():
        tokens = model.stem(image).repeat(1, times, 1)
        torch.testing.assert_close(over.stem(clip), tokens, rtol=0, atol=1e-5)
        got, want = over(clip), model(image)
        if times == 1 or pool == "mean":
            torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
        else:  # more patches for one class token
            assert not torch.allclose(got, want, atol=1e-3)
        clip[:, 3 * (tubelet // 2) : 3 * (tubelet // 2) + 3] += 1
        assert not torch.allclose(over(clip), got)


def test_the_stem_is_a_convolution_in_three_dimensions() -> None:
    model = vitlab.create(TINY, 5, 16, stem="tubelet", channels=18, stem_frames=3)
    clip = torch.randn(2, 18, 16, 16)
    layer = model.stem.layers[0]
    weight = layer.weight.unflatten(1, (3, 3)).transpose(1, 2)  # (D, 3, frames, P, P)
    video = clip.unflatten(1, (6, 3)).transpose(1, 2)  # (B, 3, T, H, W)
    want = F.conv3d(video, weight, layer.bias, stride=(3, 4, 4)).flatten(2).transpose(1, 2)
    torch.testing.assert_close(model.stem(clip), want)
    assert model.config.placed == 1 + 2 * 16


def test_saved_and_loaded(tmp_path: Path) -> None:
    model = a_model()
    model.seen = np.array([2, 5], np.uint64)
    over = vitlab.over_frames(model, 4)
    assert over.seen is model.seen
    vitlab.save(over, tmp_path / "over")
    again, (_, clip) = vitlab.load(tmp_path / "over"), still(4)
    assert again.config == over.config
    assert torch.equal(again(clip), over(clip))


WRONG: dict[str, dict[str, Any]] = {
    "channels that are a multiple of 6, three for each of stem_frames=2, not 3": {"channels": 3},
    "needs positions=1d or none": {"positions": "rope"},
    "among all": {"attention": "axial", "pool": "mean", "positions": "none"},
    "takes clips of one image_size": {"fit": "native"},
    "stem_frames must be at least 1": {"stem_frames": 0},
}


@pytest.mark.parametrize("why", WRONG)
def test_what_does_not_fit_is_one_line(why: str) -> None:
    with pytest.raises(OptionError, match=why) as caught:
        vitlab.create(TINY, 5, 16, **{"stem": "tubelet", "channels": 12, **WRONG[why]})
    assert "\n" not in str(caught.value)


def test_what_cannot_be_made_a_model_of_clips() -> None:
    wrong: list[dict[str, Any]] = [{"stem": "conv"}, {"channels": 1}]
    for model in (*(a_model(**choices) for choices in wrong), vitlab.fuse(a_model())):
        with pytest.raises(OptionError, match="over_frames needs a Vision Transformer of RGB"):
            vitlab.over_frames(model, 4)
    with pytest.raises(OptionError, match="stem_norm=layer applies only with stem="):
        vitlab.over_frames(a_model(stem_norm="layer"), 4)
    with pytest.raises(OptionError, match="multiple of 9"):
        vitlab.over_frames(a_model(), 4, 3)
    over = vitlab.over_frames(a_model(), 4)
    with pytest.raises(OptionError, match="keep it"):
        over.resize(32)
    with pytest.raises(OptionError, match=r"clips of \(32, 32\) pixels have no positions"):
        over(torch.randn(1, 12, 32, 32))
