"""Where fields come from: tensors, a name, what a user says; and what was assumed is told."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitlab
from conftest import call
from oracles import peers
from vitlab.errors import OptionError
from vitlab.models.config import ModelConfig, ResNetConfig, ViTConfig, config_of
from vitlab.options import options_of
from vitlab.weights.assembly import empty
from vitlab.weights.formats.dialects import DIALECTS
from vitlab.weights.formats.google import REPRESENTED
from vitlab.weights.formats.records import SILENT, WITHOUT_EFFECT, Facts, record, warning, whole
from vitlab.weights.formats.timm import architectures
from vitlab.weights.formats.transformers.families import FAMILIES
from vitlab.weights.load import load_check
from vitlab.weights.stated import KNOWN, Stated

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
    assert set(put) <= {"option", "file", "tensors", "name", "family", "assumed"}


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


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tensors with timm's names, and nothing beside them: 6 heads and quick GELU."""
    other = peers.timm().create_model(
        "vit_tiny_patch16_224", depth=1, img_size=32, num_classes=10, num_heads=6
    )
    file = tmp_path_factory.mktemp("bare") / "model.safetensors"
    save_file({name: torch.randn_like(t) / 5 for name, t in other.state_dict().items()}, file)
    return file


GIVEN = ("--heads", "6", "--gelu", "quick", "--norm-eps", "1e-5", "--mean", "0.1", "--std", "0.2")
AS_PYTHON = {"heads": 6, "gelu": "quick", "norm_eps": 1e-5, "mean": 0.1, "std": 0.2}


def test_every_silent_field_is_an_option() -> None:
    names = set(options_of(Stated))
    assert set(SILENT) - set(KNOWN) <= names
    assert {"name", "part", "drop", "labels", "image_size"} <= names
    assert Stated().arguments() == {}


def test_load_check_settles_fields(capsys: pytest.CaptureFixture[str], bare: Path) -> None:
    code, out, _ = call(capsys, "load-check", str(bare), *GIVEN, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["config"]["heads"] == 6
    assert found["config"]["gelu"] == "quick"
    assert {found["origins"][name] for name in AS_PYTHON} == {"option"}
    code, out, err = call(capsys, "load-check", str(bare))
    assert code == 0
    assert "assumed: image_size 32, heads 3, gelu exact" in err
    rows = {line.split()[0]: line.split()[-1] for line in out.splitlines() if line.split()}
    assert (rows["heads"], rows["width"]) == ("assumed", "tensors")
    assert "qk_norm" not in rows  # off, as in most models


def test_commands_take_what_python_takes(
    capsys: pytest.CaptureFixture[str], bare: Path, tmp_path: Path
) -> None:
    assert call(capsys, "export", str(bare), "--to", "vitlab", "--out", str(tmp_path / "own"),
                *GIVEN)[0] == 0  # fmt: skip
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    own, python = vitlab.load(tmp_path / "own"), vitlab.load(bare, **AS_PYTHON)
    assert own.config == python.config
    assert torch.equal(own(images), python(images))
    assert not torch.allclose(own(images), vitlab.load(bare)(images))
    code, _, err = call(capsys, "evaluate", str(bare), "digits", "--split", "test", *GIVEN)
    assert code == 0, err
    assert "assumed: heads" not in err
    code, _, err = call(capsys, "load-check", str(bare), "--heads", "7")
    assert (code, "heads=7 does not divide width=192" in err) == (2, True)


def test_names_of_classes(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, bare: Path, tmp_path: Path
) -> None:
    names = [str(number) for number in range(10)]
    vitlab.evaluate(vitlab.load(bare), "digits", split="test")
    assert "matched by position (0 0, 1 1, 2 2, …)" in caplog.text
    caplog.clear()
    named = vitlab.load(bare, labels=names)
    assert named.config.labels == tuple(names)
    turned = vitlab.load(bare, labels=names[::-1])  # other names, so other answers are right
    figures = [vitlab.evaluate(each, "digits", split="test") for each in (named, turned)]
    assert figures[0]["nll"] != figures[1]["nll"]
    assert "matched by position" not in caplog.text
    file = tmp_path / "names.txt"
    texts = "\n".join(names) + "\n\n", json.dumps(names), json.dumps(dict(enumerate(names)))
    for text in (*texts, "\ufeff" + texts[0]):  # a byte order mark, as Windows writes it
        file.write_text(text)
        code, out, _ = call(capsys, "load-check", str(bare), "--labels", str(file), "--json")
        assert code == 0
        assert json.loads(out)["config"]["labels"] == names
    new = vitlab.load(bare, classes=2, labels=["cat", "dog"])
    assert new.config.labels == ("cat", "dog")


def test_names_that_cannot_be(bare: Path, tmp_path: Path) -> None:
    file, usual = tmp_path / "names.txt", "one name per line"
    wrong = {"a\n\nb\n": usual, '["a", 3]': usual, '{"0": "a", "2": "b"}': usual, "": usual}
    for text, part in (wrong | {"[": "cannot be read"}).items():
        file.write_text(text)
        with pytest.raises(OptionError, match=part):
            Stated(labels=(str(file),))
    with pytest.raises(OptionError, match="no such file"):
        Stated(labels=(str(tmp_path / "nothing"),))
    with pytest.raises(OptionError, match="labels has 2 names for classes=10"):
        vitlab.load(bare, labels=["a", "b"])
    with pytest.raises(OptionError, match="labels has 3 names for classes=2"):
        vitlab.load(bare, classes=2, labels=["a", "b", "c"])


def test_one_tensor_to_leave_out_may_be_given_alone(bare: Path, tmp_path: Path) -> None:
    file = tmp_path / "more.safetensors"
    save_file(load_file(bare) | {"head_aux.weight": torch.zeros(2, 2)}, file)
    for drop in ("head_aux.weight", ["head_aux.*"]):
        assert vitlab.load(file, drop=drop).config == vitlab.load(bare).config
