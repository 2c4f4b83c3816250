"""Where fields come from: what no tensor shows is named, and what was assumed is told."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import vitlab
from vitlab.errors import OptionError
from vitlab.models.config import ModelConfig, ResNetConfig, ViTConfig, config_of
from vitlab.options import options_of
from vitlab.weights.assembly import empty
from vitlab.weights.formats.dialects import DIALECTS
from vitlab.weights.formats.google import REPRESENTED
from vitlab.weights.formats.origins import ORIGINS, SILENT, WITHOUT_EFFECT, Facts, warning, whole
from vitlab.weights.formats.records import record
from vitlab.weights.formats.timm import architectures
from vitlab.weights.formats.transformers.families import FAMILIES
from vitlab.weights.load import load_check

FORMATS = Path(vitlab.__file__).parent / "weights" / "formats"
PUT = re.compile(r'\.(?:put|fill)\(\s*"(\w+)"')

OTHER: dict[str, Any] = {
    "stem": "hmlp", "stem_norm": "batch", "stem_act": "gelu", "stages": (1, 1), "resnet": "timm",
    "positions": "rope", "positions_at": "shared", "resampling": "bicubic", "pool": "mean",
    "norm_at": "pooled", "attention": "axial", "ffn": "swiglu", "gelu": "tanh", "fit": "squash",
    "interpolation": "bicubic", "image_size": 48, "labels": ("a", "b", "c"), "heads": 6,
    "mean": 0.1, "class_token": True, "crop": 0.5, "drop_path": 0.1,
}  # fmt: skip
BASES: tuple[dict[str, Any], ...] = (
    {}, {"pool": "mean", "class_token": True}, {"stem": "resnet", "stages": (1,)},
    {"positions": "none"}, {"positions": "rope"}, {"pool": "attention"}, {"drop_path": 0.1},
)  # fmt: skip


def changed(config: ModelConfig, name: str, value: Any) -> ModelConfig | None:
    try:
        return type(config).from_dict(config.as_dict() | {name: value})
    except OptionError:
        return None  # it does not go with the rest


@pytest.mark.parametrize("kind", [ViTConfig, ResNetConfig])
def test_what_no_tensor_shows_is_listed(kind: type[ModelConfig]) -> None:
    """A field whose change leaves all names and shapes as they are must be in one of the lists."""
    name = "ViT-Ti2/16" if kind is ViTConfig else "BiT-R50x1"
    for more in BASES if kind is ViTConfig else ({},):
        base = config_of(name, classes=3, image_size=32, **more)
        shapes = {key: tensor.shape for key, tensor in empty(base).items()}
        for field in fields(kind):
            old = getattr(base, field.name)
            new = OTHER.get(field.name)
            if new is None or new == old:
                new = (not old) if isinstance(old, bool) else old and old * 2
            other = changed(base, field.name, new)
            if other is None or other == base or field.name in (*SILENT, *WITHOUT_EFFECT):
                continue
            if field.name == "class_token" and old is None:
                continue  # the pool says it
            there = {key: tensor.shape for key, tensor in empty(other).items()}
            assert there != shapes, f"{field.name}: no tensor shows it, so SILENT must list it"


def test_later_facts_win_and_usual_ones_fill() -> None:
    facts = Facts().put("tensors", {"width": 192, "heads": 3})
    facts.put("file", {"heads": 4}).fill("assumed", {"heads": 6, "gelu": "exact"})
    assert facts.values == {"width": 192, "heads": 4, "gelu": "exact"}
    assert facts.origins == {
        "width": "tensors", "heads": "file", "gelu": "assumed",
    }  # fmt: skip


def test_a_warning_names_what_was_assumed_and_what_settles_it() -> None:
    config = config_of("ViT-Ti/16", norm_eps=1e-5)
    origins = {"heads": "assumed", "norm_eps": "assumed", "labels": "assumed"}
    line = warning("a.pth", config, origins)
    assert "a.pth does not say" in line
    assert "heads 3, norm_eps 1e-05" in line
    assert "--heads, --norm-eps" in line
    assert "labels" not in line
    assert warning("a.pth", config, {"heads": "file"}) == ""
    gated = config_of("ViT-Ti/16", ffn="swiglu", classes=0)
    assert warning("a.pth", gated, {"gelu": "assumed"}) == ""  # which has no effect
    assert "pool token" in warning("a.pth", gated, {"pool": "assumed"})  # of the features


def test_every_field_has_an_origin(tmp_path: Path) -> None:
    model = vitlab.create("ViT-Ti1/16", classes=3, image_size=32)
    found = load_check(vitlab.save(model, tmp_path / "model"), crop=0.9)
    assert found.origins.keys() == found.config.keys()
    assert found.origins.pop("crop") == "option"
    assert set(found.origins.values()) == {"file"}
    assert found.notes == ()
    assert whole(model.config, {})["width"] == "tensors"
    assert whole(model.config, {})["gelu"] == "family"


def test_every_origin_is_one_of_the_words() -> None:
    """No type checker reads them."""
    files = FORMATS.rglob("*.py")
    put = [word for file in files for word in PUT.findall(file.read_text(encoding="utf-8"))]
    assert len(put) > 40
    assert set(put) <= set(ORIGINS)


def test_every_word_is_a_field() -> None:
    """No type checker reads them."""
    texts = [text for each in DIALECTS for text in (each.facts, each.usual)]
    texts += [family.prepared for family in FAMILIES.values()]
    texts += [each.reads for each in FAMILIES.values() if isinstance(each.reads, str)]
    texts += [
        row.strip("- ")
        for number, row in enumerate(architectures.FAMILIES.strip().splitlines())
        if number % 3
    ]
    found = [*map(record, texts), *architectures.FIELDS.values(), REPRESENTED]
    assert {word for each in found for word in each} - options_of(ViTConfig).keys() == set()
