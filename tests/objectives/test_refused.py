"""Refusals of pretext tasks: what a task, a model and its guide cannot do together, in one line."""

from typing import Any

import pytest

import vitlab
from objectives.made import small
from vitlab.errors import OptionError
from vitlab.models.config import ModelConfig, ResNetConfig, TokenizerConfig, config_of
from vitlab.models.model import Model
from vitlab.objectives.pretext_tasks import pretext_task
from vitlab.recipes.pretext import Pretext


def book(stride: int = 4, **choices: Any) -> Model:
    name = f"dVAE(codes=12,code_width=6,width=8)/{stride}"
    return vitlab.create(name, image_size=64, **choices)


RESNET = ResNetConfig(stages=(1, 1, 1, 1), classes=0, image_size=32)
SHORT = ResNetConfig(stages=(1, 1), classes=0, image_size=32)
AXIAL = ResNetConfig(stages=(1, 1), classes=0, image_size=32, attention="axial")
CROPS = {"prototypes": 24, "head_width": 20, "bottleneck": 8, "local_crops": 3, "local_size": 8}
DECODER = {"mask_ratio": 0.75, "decoder_width": 16, "decoder_depth": 2, "decoder_heads": 2}
DVAE = "dVAE(codes=12,code_width=6,width=8)/4"
# What the line says (a pattern), options, the model's configuration.
REFUSED: dict[str, list[tuple[str, dict[str, Any], ModelConfig]]] = {
    "mae": [
        ("leaves none of the 16 patches: set mask_ratio=0.5", {"mask_ratio": 0.95}, small()),
        ("hides none of the 16 patches: set mask_ratio=0.5", {"mask_ratio": 1e-9}, small()),
        ("--image-size 32", {}, small(image_size=8)),
        ("decoder_heads=3 does not divide decoder_width=16: 2 does", {"decoder_heads": 3}, small()),
        ("decoder_width=18 is not a multiple of 4, .* 16 is", {"decoder_width": 18}, small()),
        ("stem=conv: stem=linear or hmlp", {}, small(stem="conv")),
        ("stem=resnet: stem=linear or hmlp", {}, small(stem="resnet", stages=(1,))),
        ("positions=rope, .*: positions=1d, 2d, sincos or none", {}, small(positions="rope")),
        (r"positions=1d\+bias, .*: positions=1d", {}, small(positions="1d+bias")),
        ("positions_at=every: .* and positions_at=stem", {}, small(positions_at="every")),
        ("attention=axial: attention=global", {}, small(attention="axial", pool="mean")),
        ("set fit=crop", {}, small(fit="native")),
        ("BiT-R50x1 has none: use a Vision Transformer", {}, config_of("BiT-R50x1")),
    ],
    "masked-patch": [
        ("hides patches side by side: set stem=linear", {}, small(stem_stride=4)),
        ("hides none of the 16 patches: set mask_ratio=0.5", {"mask_ratio": 0.01}, small()),
        ("leaves none of the 16 patches: set mask_ratio=0.5", {"mask_ratio": 0.99}, small()),
        ("use a Vision Transformer", {}, RESNET),
        ("set fit=crop", {}, small(fit="native", positions="2d")),
        ("set pool=mean", {}, small(pool="attention")),
        ("set pre_logits=0", {}, small(pre_logits=8)),
        ("--image-size 32", {}, small(image_size=8)),
        ("set target=pixels", {}, small(channels=6, mean=(0.5,) * 6, std=(0.5,) * 6)),
        ("at least 4 pixels, not 2", {"target": "downsized"}, small(patch=2, image_size=4)),
    ],
    "dino": [
        ("local_size=10 is not a multiple of patch=4: try 8 or 12", {"local_size": 10},
         small(patch=4, image_size=16)),
        ("local_size=32 is larger than image_size=16", {"local_size": 32},
         small(patch=4, image_size=16)),
        ("local_area=0.5, 0.4 must go from the least", {"local_area": (0.5, 0.4)}, small()),
        ("use a Vision Transformer", {}, TokenizerConfig(image_size=32)),
        ("takes images of one size only: set local_crops=0", {}, AXIAL),
        ("set fit=crop", {}, small(fit="native")),
        ("set queries=1", {}, small(pool="attention", queries=2)),
        ("anchor compares patches; .*: set anchor=0", {"anchor": 1.0}, SHORT),
    ],
    "lejepa": [
        ("task=lejepa needs images of one size", {}, small(fit="native")),
        ("local_size=5 is not a multiple of patch=8", {"local_size": 5}, small()),
        ("anchor compares patches; .*: set anchor=0", {"anchor": 1.0}, SHORT),
    ],
    "tokenizer": [
        ("trains a tokenizer, not ViT-Ti/16: use --model dVAE/8", {}, config_of("ViT-Ti/16")),
        ("needs a tokenizer with its decoder", {}, config_of(DVAE, image_size=32, decoder=False)),
        ("set laplace=False", {}, config_of(DVAE, image_size=32, laplace=True)),
    ],
}  # fmt: skip
USUAL: dict[str, dict[str, Any]] = {"mae": DECODER, "dino": CROPS, "lejepa": {"local_size": 8}}


@pytest.mark.parametrize("task", REFUSED)
def test_what_has_no_meaning_is_refused_in_one_line(task: Any) -> None:
    for words, options, config in REFUSED[task]:
        with pytest.raises(OptionError, match=words) as caught:
            pretext_task(task).check(
                Pretext(task=task, **{**USUAL.get(task, {}), **options}), config
            )
        assert "\n" not in str(caught.value)


GUIDES: list[tuple[str, dict[str, Any], ModelConfig, Any]] = [
    ("name its weights with --tokenizer", {}, small(), lambda: None),
    ("gives no codes", {}, small(), lambda: vitlab.create("ViT-Ti1/8", 0, 32)),
    ("codes do not match the 16 patches; use a patch of at least 16", {}, small(),
     lambda: book(16)),
    ("is for channels=1, but the model has channels=3", {}, small(), lambda: book(channels=1)),
    ("hides none of the 16 patches", {"mask_ratio": 0.01}, small(), book),
    ("leaves none of the 16 patches", {"mask_ratio": 0.99}, small(), book),
    ("more than the 8 patches that are hidden: set min_block=1", {"min_block": 9}, small(), book),
    ("use a Vision Transformer", {}, RESNET, book),
    ("set fit=crop", {}, small(fit="native", positions="2d"), book),
]  # fmt: skip


@pytest.mark.parametrize(("words", "options", "config", "guide"), GUIDES)
def test_what_beit_and_a_tokenizer_cannot_do(
    words: str, options: dict[str, Any], config: ModelConfig, guide: Any
) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        pretext_task("beit").check(Pretext(task="beit", **options), config, guide())
    assert "\n" not in str(caught.value)
