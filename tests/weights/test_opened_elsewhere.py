"""Our saved folders in timm's and transformers' own loaders, and back, bit for bit."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vitlab
from made_models import close
from oracles import peers
from weights.test_save_as import TIMM, a_model, same_bits

SHAPE = "ViT(width=16,depth=2,heads=2,mlp=32)/8"
NAMES = ("ant", "bee", "cat")
ONLY_OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "relative positions": (SHAPE, {"positions": "relative"}),
}


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
@pytest.mark.parametrize("case", ONLY_OURS)
def test_transformers_opens_what_timm_has_not_with_our_package(case: str, tmp_path: Path) -> None:
    transformers = peers.transformers()
    import vitlab.adapters.trainer_surface

    model = a_model(ONLY_OURS[case][0], {"classes": 3, "labels": NAMES, **ONLY_OURS[case][1]})
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
