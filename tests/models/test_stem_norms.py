"""The norm of a stem: Three things' (Table 7) unless another is chosen, and a saved model's own."""

from typing import Any

import pytest
from torch import nn

import vitlab
from vitlab.models.config import ViTConfig, config_of
from vitlab.models.cost import cost
from vitlab.recipes.model_part import model_part

SHAPE = "ViT(width=16,depth=1,heads=2,mlp=16)/16"


def norms(**choices: Any) -> list[str]:
    model = vitlab.create(SHAPE, 3, 32, **choices)
    kinds = (nn.BatchNorm2d, nn.LayerNorm)
    stem: Any = model.stem
    return [type(each).__name__ for each in stem.modules() if isinstance(each, kinds)]


@pytest.mark.parametrize(
    ("stem", "params", "count"), [("hmlp", 86_726_248, 3), ("conv", 89_465_416, 4)]
)
def test_as_in_the_official_code(stem: str, params: int, count: int) -> None:
    """Parameters of ViT-B/16 with batch norms in the stem, by the official code."""
    config = config_of("ViT-B/16", stem=stem, classes=1000, image_size=224)
    assert isinstance(config, ViTConfig)
    assert config.stem_norm == "batch"
    assert cost(config).params == params + 768  # there, the class token has no position
    assert norms(stem=stem) == ["BatchNorm2d"] * count


def test_what_is_chosen_comes_first_and_saved_models_without_a_norm_have_none() -> None:
    assert ViTConfig.from_dict({"stem": "hmlp"}).stem_norm == "none"
    assert config_of(SHAPE, stem="hmlp", stem_norm="none").as_dict()["stem_norm"] == "none"
    assert norms(stem="hmlp", stem_norm="none") == []
    assert norms(stem="conv", stem_norm="layer") == ["ChannelNorm"] * 4
    assert norms() == []
    assert norms(stem="linear", stem_norm="batch") == ["BatchNorm2d"]
    assert model_part(SHAPE, stem="hmlp").config().stem_norm == "batch"  # type: ignore[attr-defined]
