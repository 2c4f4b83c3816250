"""BEiT: transformers' loss and features, what the tokenizer sees, stems, gradients, refusals."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vitlab
from objectives.made import batch_of, seeded, small
from oracles import peers
from vitlab.models.config import TokenizerConfig, ViTConfig
from vitlab.models.model import Model
from vitlab.models.tokenizers.tokenizer import Tokenizer
from vitlab.models.vit import VisionTransformer
from vitlab.objectives.beit import BEiT
from vitlab.objectives.hidden_patches import over_image
from vitlab.objectives.pretext_task import Learner
from vitlab.recipes.pretext import Pretext

CODES = 24


class CodeBook(Tokenizer):
    """The nearest of some colors, of the mean of each square: codes that can be learned."""

    def __init__(self, stride: int = 4, **spec: Any) -> None:
        fields = {"codes": CODES, "width": 4, "code_width": 3, "depth": 0, "image_size": 64}
        super().__init__(
            TokenizerConfig(stride=stride, **{"mean": 0.0, "std": 1.0, **fields, **spec})
        )
        colors = torch.rand(CODES, self.config.channels, generator=seeded(9))
        self.colors, self.seen = nn.Parameter(colors), list[Tensor]()

    def codes(self, images: Tensor) -> Tensor:
        self.seen.append(images)
        means = F.avg_pool2d(images, self.config.stride).movedim(1, -1)
        return torch.cdist(means, self.colors).argmin(-1)


def task_of(config: ViTConfig, guide: Model | None = None, **options: Any) -> BEiT:
    chosen, book = Pretext(task="beit", **options), guide or CodeBook()
    BEiT.check(chosen, config, book)
    task = BEiT(chosen, config, book)
    task.reset_parameters(seeded(1))
    return task


def images_of(config: ViTConfig, count: int = 3) -> Tensor:
    pixels = torch.rand(count, config.channels, *config.size, generator=seeded(2))
    return (pixels - 0.5) / 0.5


@pytest.fixture(scope="module")
def theirs() -> Any:
    """A model of transformers for pre-training, with weights far from where they start."""
    transformers = peers.transformers()
    config = transformers.BeitConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        image_size=32, patch_size=8, vocab_size=CODES, use_mask_token=True,
        use_shared_relative_position_bias=True, layer_scale_init_value=0.1,
    )  # fmt: skip
    model = transformers.BeitForMaskedImageModeling(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=seeded(5)))
    return model


def test_loss_scores_and_features_are_transformers(theirs: Any, tmp_path: Path) -> None:
    theirs.save_pretrained(tmp_path)
    model = vitlab.load(tmp_path)
    assert isinstance(model, VisionTransformer)
    task = task_of(model.config, mask_ratio=0.4)
    with torch.no_grad():
        task.token.copy_(theirs.beit.embeddings.mask_token)
    task.predict.load_state_dict(theirs.lm_head.state_dict())
    norm = theirs.layernorm if hasattr(theirs, "layernorm") else theirs.beit.layernorm
    last = model.head.norm if model.config.norm_at == "pooled" else model.norm
    last.load_state_dict(norm.state_dict())
    given = batch_of(images_of(model.config))
    images = given.images
    assert isinstance(images, Tensor)
    masks, places = task.masks(images, seeded(7))
    codes = task.codes(images)
    with torch.no_grad():
        want = theirs(images, bool_masked_pos=masks, labels=codes[masks], output_hidden_states=True)
        loss, figures = task.loss(model, given, seeded(7))
        scores = task.scores(model, images, masks, places)
        features = model.encode(images)
        others = theirs.beit(images).last_hidden_state
        others = norm(others) if model.config.norm_at != "pooled" else others
    torch.testing.assert_close(loss, want.loss, rtol=0, atol=1e-5)
    torch.testing.assert_close(scores.flatten(0, 1), want.logits[masks], rtol=0, atol=2e-5)
    torch.testing.assert_close(features, others, rtol=0, atol=2e-5)
    right = (want.logits[masks].argmax(-1) == codes[masks]).float().mean()
    assert figures["agreement"].item() == pytest.approx(3 * right.item())


def test_the_guide_is_not_trained_nor_kept() -> None:
    config, guide = small(), CodeBook()
    task = task_of(config, guide)
    learner = Learner(VisionTransformer(config, seeded()), task)
    loss, _ = learner(batch_of(images_of(config)), seeded())
    loss.backward()
    assert guide.colors.grad is None
    assert set(task.state_dict()) == {"token", "predict.weight", "predict.bias"}


@pytest.mark.parametrize("stem", ["linear", "hmlp"])
def test_hiding_before_the_stem_is_hiding_after_it(stem: str) -> None:
    """The cheaper way, which sees no hidden pixel, gives what replacing the tokens gives."""
    config = small(stem=stem, stem_norm="none" if stem == "linear" else "batch")
    model, task, images = VisionTransformer(config, seeded()).eval(), task_of(config), None
    images = images_of(config)
    masks, _ = task.masks(images, seeded(7))
    with torch.no_grad():
        got = task._hidden(model, images, masks, int(masks[0].sum()))
        want = torch.where(masks[..., None], task.token, model.stem(images))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-6)


def test_stems_that_mix_patches_say_so() -> None:
    config, options = small(stem="conv", stem_norm="layer"), Pretext(task="beit")
    assert "know a little of the hidden ones" in BEiT.remarks(options, config)[0]
    assert "visible ones alone" in BEiT.remarks(options, small())[0]
    hmlp = small(stem="hmlp", stem_norm="batch")
    assert "batch norm counts these" in BEiT.remarks(options, hmlp)[0]


def test_the_tokenizer_sees_the_crop_in_its_own_size_and_normalization() -> None:
    """4 pixels a code for patches of 8: half the size; a plain color stays what it is."""
    config = small(image_size=(32, 48), mean=(0.1, 0.2, 0.3), std=(0.3, 0.2, 0.1))
    guide = CodeBook(4, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    task = task_of(config, guide)
    pixels = torch.rand(2, 3, 32, 48, generator=seeded())
    pixels[0] = pixels[0, :, :1, :1]
    mean, std = (torch.tensor(each)[:, None, None] for each in (config.mean, config.std))
    codes = task.codes((pixels - mean) / std)
    assert codes.shape == (2, 24)
    (seen,) = guide.seen
    assert seen.shape == (2, 3, 16, 24)
    mean, std = (
        torch.tensor(each)[:, None, None] for each in (guide.config.mean, guide.config.std)
    )
    seen = seen * std + mean
    torch.testing.assert_close(seen[0], pixels[0, :, :16, :24])
    half = F.interpolate(pixels, (16, 24), mode="bicubic", antialias=True).clamp(0, 1)
    torch.testing.assert_close(seen, half)


def test_gray_images_are_shown_to_a_tokenizer_for_color() -> None:
    config = small(channels=1)
    guide = CodeBook(8)
    loss, _ = task_of(config, guide).loss(
        VisionTransformer(config, seeded()), batch_of(images_of(config)), seeded()
    )
    assert loss.isfinite()
    assert guide.seen[0].shape == (3, 3, 32, 32)


def test_pictures_show_which_codes_are_right() -> None:
    config = small()
    model, task = VisionTransformer(config, seeded()).eval(), task_of(config)
    images = images_of(config)
    found = task.pictures(model, images, seeded(5))
    assert list(found) == ["image", "masked", "agreement", "decoded"]
    assert {(each.shape, each.dtype) for each in found.values()} == {((3, 32, 32, 3), torch.uint8)}
    masks, places = task.masks(images, seeded(5))
    codes = task.codes(images).gather(1, places)
    right = task.scores(model, images, masks, places).argmax(-1) == codes
    rights = torch.zeros(3, 16, dtype=torch.bool).scatter(1, places, right)
    red, green, _ = found["agreement"].int().unbind(-1)
    for shown, where in ((green > red, rights), (red > green, masks & ~rights)):
        assert torch.equal(shown, over_image(where, (4, 4), 8)[:, 0])


def test_codes_that_are_too_easy_are_told_of() -> None:
    task = task_of(small())
    assert task.warnings({"loss": 2.0, "agreement": 0.4}) == []
    (line,) = task.warnings({"loss": 0.1, "agreement": 0.97})
    assert line.startswith("97% of the hidden codes")
