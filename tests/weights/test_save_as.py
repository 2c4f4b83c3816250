"""Our models in others' formats: their libraries give our numbers, and we read back our bits."""

import hashlib
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vitlab
from made_models import close, equal, noisy
from oracles import peers
from vitlab.errors import WeightsError

TI, SCALED, SWIGLU = "ViT-Ti2/8", {"layer_scale": 0.1}, {"ffn": "swiglu", "mlp": 100}
MEAN, GRID = {"pool": "mean", "class_token": True}, {"positions": "1d+rope", "rope_kind": "grid"}
CLIP = {"pre_norm": True, "stem_bias": False}
BEIT, ROPE = {"positions": "bias"}, {"positions": "rope", "norm_eps": 1e-5}
TIMM: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (TI, {}), "Google's GELU, mean": (TI, {"gelu": "tanh", "pool": "mean"}),
    "no classes": (TI, {"classes": 0, "norm_at": "none"}),
    "registers": (TI, SCALED | {"registers": 3}), "parallel": ("ViT-Ti2x2/8", SCALED),
    "odd MLP": ("ViT(width=48,depth=2,heads=3,mlp=100)/8", {"qk_norm": True}),
    "no biases": (TI, {"bias": False, "qkv_bias": False}),
    "CLIP": (TI, CLIP | {"gelu": "quick", "norm_eps": 1e-5}),
    "SigLIP": (TI, {"pool": "attention", "classes": 0}),
    "BEiT": (TI, BEIT | MEAN | SCALED | {"norm_at": "pooled"}),
    "BEiT, shared": (TI, BEIT | SCALED | {"positions_at": "shared"}),
    "SwiGLU": (TI, SCALED | SWIGLU),
    "DINOv3": (TI, ROPE | MEAN | SCALED | {"registers": 4, "qkv_bias": False}),
    "distilled": (TI, {"pool": "prefix", "registers": 1, "class_token": True}),
    "hybrid": ("R26+ViT-Ti2/32", {"resnet": "timm"}),
    "Perception Encoder": (TI, GRID | CLIP | {
        "rope_offset": 1.0, "pool": "attention", "pool_heads": 8, "pool_mlp": 99, "norm_eps": 1e-5,
        "pool_prefix": True, "class_token": True,
    }),
    "RoPE-ViT": (TI, ROPE | {"rope_kind": "grid", "qk_norm": True, "norm_eps": 1e-6}),
    "registers with positions, rotated": (TI, GRID | {"registers": 2}),
    "BEiT with both, SwiGLU": (TI, SWIGLU | {"positions": "1d+bias"}),
    "a hybrid without stages": ("R+ViT-Ti2/16", {"resnet": "timm"}),
    "channels, no positions": (TI, {"channels": 4, "positions": "none", "mean": 0.5, "std": 0.5}),
    "mean of all tokens": (TI, MEAN | {"pool_prefix": True}),
}  # fmt: skip


def a_model(name: str, choices: dict[str, Any], size: Any = (32, 32)) -> Any:
    """Every tensor random, but what a format cannot represent."""
    own = {"classes": 5, "mean": (0.1, 0.2, 0.3), "crop": 0.875, **choices}
    model = noisy(vitlab.create(name, image_size=size, **own))
    with torch.no_grad():
        if model.config.positions in ("bias", "1d+bias", "rope") and model.config.qkv_bias:
            for block in model.blocks:
                block.attention[0].body.qkv.bias.chunk(3)[1].zero_()
        if model.config.pre_norm and model.config.classes:
            model.head.classify.bias.zero_()
    return model


def same_bits(model: Any, loaded: Any) -> None:
    assert loaded.config == model.config
    assert equal(loaded, model)


@pytest.mark.parametrize("case", TIMM)
def test_timm_loads_it(case: str, tmp_path: Path) -> None:
    """Its own format, and our own folders, which have its names where they can."""
    model = a_model(*TIMM[case], (64, 32) if "R26" in TIMM[case][0] else (32, 48))
    images = torch.randn(2, model.config.channels, *model.config.size)
    theirs, ours = (vitlab.save(model, tmp_path / to, to=to) for to in ("timm", "vitlab"))
    loaded = vitlab.load(theirs)
    back = loaded.state_dict()  # zeros of keys may have another sign
    assert all(torch.equal(back[name], own) for name, own in model.state_dict().items())
    assert loaded.config.mean == model.config.mean
    same_bits(model, vitlab.load(ours))
    folder = theirs if case.startswith("BEiT") else ours
    other = peers.timm().create_model(f"local-dir:{folder}", pretrained=True).eval()
    with torch.inference_mode():
        close(other(images), model(images))
    if folder == ours:  # all that timm reads is the same in both
        about = [json.loads((each / "config.json").read_text()) for each in (theirs, ours)]
        assert about[1] | about[0] == about[1]
        tensors = [load_file(each / "model.safetensors") for each in (theirs, ours)]
        assert tensors[0].keys() == tensors[1].keys()


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("ViT-Ti2/8", {"gelu": "tanh"}),
        ("ViT-Ti2/8", {"gelu": "tanh", "pool": "attention", "pre_logits": 12}),
        ("R(1-1)+ViT-Ti2/16", {"gelu": "tanh", "classes": 0}),
        ("BiT-R(1-1)x1", {}),
    ],
)
def test_googles_format_and_back(
    name: str, choices: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = vitlab.create(name, image_size=64, **{"classes": 5, **choices})
    vitlab.save(model, tmp_path / "m", to="google")
    loaded = vitlab.load(tmp_path / "m" / "model.npz", image_size=64)
    assert equal(model, loaded)
    assert vitlab.load(tmp_path / "m").config.name == name


def test_googles_positions_have_the_size_of_the_images(tmp_path: Path) -> None:
    """After fine-tuning at another resolution they are stored as they are used."""
    model = vitlab.create("ViT-Ti1/16", 5, 64, gelu="tanh", zero_head=False).resize((96, 32))
    vitlab.save(model, tmp_path / "m", to="google")
    loaded = vitlab.load(tmp_path / "m", image_size=(96, 32))
    images = torch.randn(2, 3, 96, 32)
    with torch.inference_mode():
        assert torch.equal(loaded(images), model.eval()(images))


TI1, ROTARY = "ViT-Ti1/16", {"positions": "rope"}
POOLED = MEAN | {"norm_at": "pooled"}
DINO2 = {"layer_scale": 0.1, "pool": "both"}
# Format, model, choices of which the first are named if no message is given.
REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    *(
        ("google", TI1, choices | {"gelu": choices.get("gelu", "tanh")}, "")
        for choices in (
            {"norm_at": "none"}, {"norm_at": "pooled", "pool": "mean"}, {"qkv_bias": False},
            {"bias": False}, {"stem": "hmlp"}, {"stem_bias": False}, ROTARY, {"positions": "2d"},
            {"positions": "bias"}, {"positions": "none"}, {"positions_at": "every"},
            {"gelu": "exact"}, {"norm_eps": 1e-5}, {"norm": "rms"}, {"pool": "both"},
            {"qk_norm": True}, {"ffn": "swiglu"}, {"pre_norm": True}, {"layer_scale": 0.1},
            {"registers": 1}, {"branches": 2},
        )
    ),
    ("timm", "ViT-Ti1x3/8", {}, "timm cannot represent branches=3"),
    ("timm", TI1, {"pre_logits": 8}, ""),
    ("timm", TI1, {"norm_eps": 1e-3}, ""),
    ("timm", TI1, {"stem": "hmlp", "stem_norm": "batch"}, ""),
    ("timm", TI1, {"bias": False, **ROTARY}, ""),
    ("timm", TI1, {"qk_norm": True, "positions": "bias"}, ""),
    ("timm", TI1, {"norm": "rms", "norm_eps": 1e-5}, ""),
    ("timm", TI1, {"norm": "rms", **ROTARY, "rope_kind": "grid"}, ""),
    ("timm", TI1, {"norm_order": "after"}, ""),
    ("timm", TI1, {"pool_heads": 2, "pool": "attention"}, ""),
    ("timm", TI1, {"ffn": "swiglu", "pool": "attention"}, ""),
    ("timm", "R26+ViT-Ti1/32", {}, "timm cannot represent resnet='google'"),
    ("timm", "BiT-R50x1", {}, "cannot represent BiT-R50x1"),
    ("transformers", TI1, {"stem": "hmlp"}, ""),
    ("transformers", TI1, {"norm": "rms"}, ""),
    ("transformers", TI1, {"qk_norm": True}, ""),
    ("transformers", TI1, {"pool": "mean", "registers": 1}, "cannot represent pool=mean"),
    ("transformers", TI1, {"pool": "attention"}, "siglip_vision_model has no classifier"),
    ("transformers", TI1, {"pre_logits": 5},
     "pool=token and norm_at=tokens and pre_logits=5 and classes=5 toge"),
    ("transformers", TI1, DINO2 | {"pre_logits": 5}, "and pre_logits=5 and classes=5 together$"),
    ("transformers", TI1, DINO2 | {"classes": 0}, "pool=both and norm_at=tokens and layer_scale=0"),
    ("transformers", TI1, {"image_size": (16, 32), "pre_norm": True, "stem_bias": False,
                          "gelu": "quick"}, "takes square images: cannot represent image_size=.16"),
    ("transformers", TI1, DINO2 | {"image_size": (16, 32)}, "dinov2 takes square images"),
    ("transformers", TI1, POOLED | {"image_size": (16, 32), "positions": "bias"},
     "beit takes square images"),
    ("transformers", TI1, ROTARY | {"layer_scale": 0.1, "classes": 0, "rope_kind": "grid"},
     "rope_kind='grid'"),
    ("transformers", TI1, ROTARY | {"layer_scale": 0.1},
     "dinov3_vit has no classifier: save with classes=0"),
    ("transformers", TI1, DINO2 | {"ffn": "swiglu", "mlp": 32}, "cannot represent mlp=32"),
    ("transformers", TI1, DINO2 | {"mlp": 40}, "DINOv2 needs an mlp that is a multiple of the wid"),
    ("onnx", TI1, {}, "unknown format 'onnx': choose from vitlab, transformers, timm, google"),
    ("delta", TI1, {}, "unknown format 'delta'"),
]  # fmt: skip


@pytest.mark.parametrize(("to", "name", "choices", "message"), REFUSED)
def test_what_a_format_cannot_represent_is_named(
    to: Any, name: str, choices: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with torch.device("meta" if to != "transformers" else "cpu"):
        model = vitlab.create(name, **{"classes": 5, "image_size": 32, **choices})
    field, value = next(iter(choices.items()), ("", ""))
    words = message or f"{to} cannot .*" + re.escape(f"{field}={value!r}")
    with pytest.raises(ValueError, match=words) as caught:
        vitlab.save(model, tmp_path / "m", to=to)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_what_is_lost_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = vitlab.create("ViT-Ti1/8", 2, 16, gelu="tanh", labels=("cat", "dog"), crop=0.5)
    with caplog.at_level(logging.WARNING):
        vitlab.save(model, tmp_path / "m", to="google")
    assert "crop=0.5" in caplog.text
    assert "labels=('cat', 'dog')" in caplog.text


def test_what_reading_back_finds_out(tmp_path: Path) -> None:
    """A bias that CLIP's projection does not have."""
    clip = a_model(*TIMM["CLIP"])
    with torch.no_grad():
        clip.head.classify.bias += 1
    with pytest.raises(WeightsError, match=r"cannot represent the values of head.classify.bias"):
        vitlab.save(clip, tmp_path / "m", to="transformers")
    assert not list(tmp_path.iterdir())


NAMES = ("ant", "bee", "cat")


def test_half_precision_and_zeros_of_both_signs_come_back(tmp_path: Path) -> None:
    """DINOv2's registers have positions in timm, which are added to them."""
    model = a_model("ViT-Ti2/8", {"registers": 3, "layer_scale": 0.1})
    with torch.no_grad():
        model.registers[:, :2] *= -0.0
    for dtype in (torch.float16, torch.bfloat16):
        same_bits(model.to(dtype), vitlab.load(vitlab.save(model, tmp_path / "m")))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_transformers_opens_it_by_timm(tmp_path: Path) -> None:
    transformers = peers.transformers()
    choices = {"classes": 3, "labels": NAMES, "registers": 2, "layer_scale": 0.1, "crop": 1.0}
    model = a_model("ViT-Ti2/8", choices)
    folder = vitlab.save(model, tmp_path / "m")
    images = torch.randn(2, 3, 32, 32)
    classifier = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    backbone = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        close(classifier(images).logits, model(images))
        close(backbone(images).last_hidden_state, model.encode(images))
        close(backbone(images).pooler_output, model.features(images))
    pixels = torch.randint(0, 256, (32, 32, 3), dtype=torch.uint8).numpy()
    found = transformers.pipeline("image-classification", str(folder))(Image.fromarray(pixels))
    (want,) = vitlab.classify(model, [pixels], top=3)
    assert [each["label"] for each in found] == [name for name, _ in want.classes]
    for each, (_, chance) in zip(found, want.classes, strict=True):
        assert each["score"] == pytest.approx(chance, abs=1e-4)
    classifier.save_pretrained(tmp_path / "theirs")  # fine-tuned there, say
    again = vitlab.load(tmp_path / "theirs")
    assert again.config.labels == NAMES
    with torch.inference_mode():
        close(again(images), model(images))


# Not timm's: other epsilons, the mean beside the class token, positions resized as DINOv2 does.
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "ViT": {"norm_eps": 1e-12},
    "registers, without scales": {"pool": "mean", "class_token": True, "norm_eps": 1e-3},
    "DINOv2": {"layer_scale": 0.1, "resampling": "bicubic"},
    "DINOv2 without a classifier": {"layer_scale": 0.1, "resampling": "bicubic", "classes": 0},
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("case", TRANSFORMERS)
def test_transformers_opens_what_timm_has_not(case: str, tmp_path: Path) -> None:
    transformers = peers.transformers()
    labels = {} if "without a" in case else {"classes": 3, "labels": NAMES}
    model = a_model("ViT-Ti2/8", {**labels, **TRANSFORMERS[case]})
    model = model.resize(64) if "DINO" in case else model
    folder = vitlab.save(
        model.to(torch.float64 if case == "ViT" else torch.float32), tmp_path / "m"
    )
    same_bits(model, vitlab.load(folder))
    model, images = model.float(), torch.randn(2, 3, *model.config.size)
    with torch.inference_mode():
        if not model.config.classes:
            backbone = transformers.AutoModel.from_pretrained(folder).eval()
            close(backbone(images).last_hidden_state, model.encode(images))
            return
        kind = transformers.AutoModelForImageClassification
        classifier = kind.from_pretrained(folder).float().eval()
        close(classifier(images).logits, model(images))
        classifier.save_pretrained(tmp_path / "theirs")
        again = vitlab.load(tmp_path / "theirs", image_size=model.config.size)
        assert again.config.labels == NAMES
        close(again(images), model(images))
    pipe = transformers.pipeline("image-classification", str(folder))
    assert pipe(Image.new("RGB", (80, 70)))[0]["label"] in NAMES


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_transformers_opens_what_timm_has_not_with_our_package(tmp_path: Path) -> None:
    transformers = peers.transformers()
    import vitlab.adapters.trainer_surface

    name, choices = "ViT(width=16,depth=2,heads=2,mlp=32)/8", {"positions": "relative"}
    model = a_model(name, {"classes": 3, "labels": NAMES, **choices})
    folder = vitlab.save(model, tmp_path / "m")
    same_bits(model, vitlab.load(folder))
    images = torch.randn(2, 3, 32, 32)
    for auto in (transformers.AutoModelForImageClassification, transformers.AutoModel):
        other = auto.from_pretrained(folder).eval()
        assert other.config.id2label == dict(enumerate(NAMES))
        with torch.inference_mode():
            assert torch.equal(other(images).logits, model(images))
    pipe = transformers.pipeline("image-classification", str(folder))
    picture = Image.new("RGB", (80, 70), "orange")
    with torch.inference_mode():
        scores = model(vitlab.preprocess(model)(picture))[0].softmax(0)
    for found in pipe(picture):
        assert abs(found["score"] - float(scores[NAMES.index(found["label"])])) < 1e-5
    with torch.no_grad():
        other.model.head.classify.bias += 1
    other.save_pretrained(tmp_path / "theirs")
    with torch.inference_mode():
        assert torch.equal(vitlab.load(tmp_path / "theirs")(images), other(images).logits)


def test_positions_of_another_size_stay_ours(tmp_path: Path) -> None:
    """They would be resampled in timm's own way, so that it has no such model."""
    model = a_model("ViT-Ti2/8", {}).resize(64)
    folder = vitlab.save(model, tmp_path / "m")
    same_bits(model, vitlab.load(folder))
    assert "architecture" not in json.loads((folder / "config.json").read_text())
    wide = a_model("ViT-Ti2/8", {"resampling": "antialiased"}).resize(64)
    folder = vitlab.save(wide, tmp_path / "m")
    same_bits(wide, vitlab.load(folder))
    other = peers.timm().create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        close(other(images), wide(images))


# Each is near to a class of transformers, which has other positions, a bias, or other tokens.
NEAR: dict[str, dict[str, Any]] = {
    "sines": {"positions": "sincos"},
    "no positions": {"positions": "none", "pool": "prefix", "class_token": True, "registers": 1},
    "learned and rotary": {"positions": "1d+rope"},
    "rotary on a grid": {"positions": "rope", "rope_kind": "grid", "layer_scale": 1, "classes": 0},
    "no bias": {"stem_bias": False},
    "no class token": {"positions": "rope", "pool": "mean", "layer_scale": 1, "classes": 0},
}


@pytest.mark.parametrize("case", NEAR)
def test_what_only_looks_like_a_model_of_transformers_stays_ours(case: str, tmp_path: Path) -> None:
    model = a_model("ViT(width=16,depth=1,heads=2,mlp=64)/8", {"norm_eps": 1e-12, **NEAR[case]})
    folder = vitlab.save(model, tmp_path / "m")
    same_bits(model, vitlab.load(folder))
    assert "architectures" not in json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(("to", "classes"), [("transformers", 3), ("transformers", 0), ("timm", 0)])
def test_positions_of_another_size_are_written_as_the_model_resizes_them(
    to: str, classes: int, tmp_path: Path
) -> None:
    """As a DINOv2 of its authors that is used at another size: neither library resizes so."""
    model = a_model("ViT-Ti1/8", {"classes": classes, "resampling": "scaled", "layer_scale": 0.1})
    model, images = model.resize(64), torch.randn(2, 3, 64, 64)
    again = vitlab.load(vitlab.save(model, tmp_path / "m", to=to))
    assert again.config.image_size == 64
    with torch.inference_mode():
        assert torch.equal(again.encode(images), model.encode(images))


# The sha256 of what is written of numbered tensors, by the names of timm or of transformers.
STORED = {
    "plain": "89ac0cba2fef", "Google's GELU, mean": "ec562b021197", "no classes": "572ca0fa1590",
    "registers": "33ef6b724347", "parallel": "5b99f9df2527", "odd MLP": "25379b44c14a",
    "no biases": "52d4aae58032", "CLIP": "94863c71bc74", "SigLIP": "4eb3131cb03d",
    "BEiT": "85cfc4e9b445", "BEiT, shared": "4f9280c23e2b", "SwiGLU": "abb2c49f0f5c",
    "DINOv3": "a798ab23f430", "distilled": "b82130f31464", "hybrid": "ad129fae215b",
    "ViT": "b2874d78471d", "registers, without scales": "5caf870f8c82",
    "DINOv2": "b2b2069fda44", "DINOv2 without a classifier": "84812016451a",
}  # fmt: skip


def numbered(case: str) -> Any:
    """A model in which no two numbers of a tensor are equal."""
    name, choices = TIMM[case] if case in TIMM else ("ViT-Ti2/8", TRANSFORMERS[case])
    size: Any = ((64, 32) if "R26" in name else (32, 48)) if case in TIMM else 32
    model = vitlab.create(name, image_size=size, **{"classes": 5, **choices})
    with torch.no_grad():
        for number, tensor in enumerate(model.state_dict().values()):
            tensor.copy_(torch.arange(tensor.numel()).reshape(tensor.shape) / 64 + number)
    return model.resize(64) if choices.get("resampling") else model


@pytest.mark.parametrize("case", STORED)
def test_what_is_stored_is_for_ever(case: str, tmp_path: Path) -> None:
    """Folders with the names of others are read by the table that writes them today."""
    model = numbered(case)
    folder = vitlab.save(model, tmp_path / "m")
    digest = hashlib.sha256()
    for key, tensor in sorted(load_file(folder / "model.safetensors").items()):
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    assert digest.hexdigest()[:12] == STORED[case]
