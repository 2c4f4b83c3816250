"""LoRA adapters of peft, onto transformers' and timm's models: as peft computes, or one line."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import vitlab
from made_models import noisy
from oracles import peers
from oracles.hub import running_hub
from vitlab.errors import UserError, WeightsError
from vitlab.tuning.lora import inject, merged
from vitlab.weights.load import load_check

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, which peft asks in an old way
SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "image_size": 32, "patch_size": 16,
}  # fmt: skip
TIMM = {"img_size": 32, "depth": 2, "embed_dim": 48, "num_heads": 3, "num_classes": 3}
OLD = {
    ".layers.": ".encoder.layer.", "attention.q_proj": "attention.attention.query",
    "attention.v_proj": "attention.attention.value", "mlp.fc1": "intermediate.dense",
}  # fmt: skip
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def peft() -> Any:
    peers.prepare_torchvision()
    return pytest.importorskip("peft")


@pytest.fixture(scope="module")
def transformers() -> Any:
    peers.prepare_torchvision()
    return pytest.importorskip("transformers")


def drawn(model: nn.Module) -> Any:
    return noisy(model, 0.1)


def vit(transformers: Any, folder: Path, classes: int = 3) -> Any:
    """A base on the disk, without a classifier, and a classifier around it."""
    drawn(transformers.ViTModel(transformers.ViTConfig(**SMALL))).save_pretrained(folder)
    return classifier(transformers, folder, classes)


def classifier(transformers: Any, folder: Path, classes: int = 3) -> Any:
    kind = transformers.ViTForImageClassification
    return kind.from_pretrained(folder, num_labels=classes).eval()


def config(peft: Any, **values: Any) -> Any:
    usual = {"r": 4, "lora_alpha": 12, "target_modules": ["q_proj", "v_proj"],
             "modules_to_save": ["classifier"]}  # fmt: skip
    return peft.LoraConfig(**usual | values)


def adapted(peft: Any, model: nn.Module, folder: Path, **values: Any) -> Any:
    """A model of peft with random matrices, saved."""
    model = peft.get_peft_model(model, config(peft, **values))
    trained = [w for w in model.parameters() if w.requires_grad]
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in trained:
            weight.copy_(0.1 * torch.randn(weight.shape, generator=generator))
    model.save_pretrained(folder)
    return model.eval()


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        found = model(IMAGES)
    return getattr(found, "logits", found)


def near(model: Any, peer: Any) -> None:
    torch.testing.assert_close(logits(model), logits(peer), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"target_modules": "all-linear", "use_rslora": True, "bias": "lora_only"},
        {"rank_pattern": {"layers.0.attention.q_proj": 2}, "alpha_pattern": {"v_proj": 5}},
        {"alpha_pattern": {"^vit.layers.1.attention.v_proj": 2}},
        {"bias": "all"},
        {"target_modules": ["projection", "q_proj", "fc1"]},  # a convolution
        {"fan_in_fan_out": True},  # which peft ignores for dense layers
    ],
)
def test_a_folder_of_peft_is_merged_onto_its_base(
    peft: Any, transformers: Any, tmp_path: Path, values: dict[str, Any]
) -> None:
    model = vit(transformers, tmp_path / "base")
    peer = adapted(peft, model, tmp_path / "a", **values)
    near(vitlab.load(tmp_path / "a"), peer)
    near(vitlab.load(tmp_path / "a" / "adapter_model.safetensors"), peer)
    (tmp_path / "base").rename(tmp_path / "moved")
    near(vitlab.load(tmp_path / "a", base=tmp_path / "moved"), peer)
    assert load_check(tmp_path / "a", base=tmp_path / "moved").config["classes"] == 3
    if not values:  # names of transformers 4, in a pickle
        tensors = load_file(tmp_path / "a" / "adapter_model.safetensors")
        for new, old in OLD.items():
            tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
        torch.save(tensors, tmp_path / "a" / "adapter_model.bin")
        (tmp_path / "a" / "adapter_model.safetensors").unlink()
        near(vitlab.load(tmp_path / "a", base=tmp_path / "moved"), peer)


def test_adapter_and_base_on_the_hub(peft: Any, transformers: Any, tmp_path: Path) -> None:
    peer = adapted(peft, vit(transformers, tmp_path / "base"), tmp_path / "a")
    file = tmp_path / "a" / "adapter_config.json"
    about = json.loads(file.read_text())
    with running_hub(tmp_path / "cache") as hub:
        commit = hub.add("me/base", {each.name: each.read_bytes() for each in
                                     (tmp_path / "base").iterdir()})  # fmt: skip
        file.write_text(json.dumps(about | {"base_model_name_or_path": "me/base",
                                            "revision": commit}))  # fmt: skip
        hub.add("me/lora", {each.name: each.read_bytes() for each in (tmp_path / "a").iterdir()})
        near(vitlab.load("me/lora"), peer)
        assert any(commit in line and "model.safetensors" in line for line in hub.asked)


def test_the_base_may_have_a_classifier_of_other_classes(
    peft: Any, transformers: Any, tmp_path: Path
) -> None:
    names = {n: f"thing {n}" for n in range(7)}
    seven = transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL, id2label=names))
    drawn(seven).save_pretrained(tmp_path / "base")
    kind = transformers.ViTForImageClassification
    three = kind.from_pretrained(tmp_path / "base", num_labels=3, ignore_mismatched_sizes=True)
    peer = adapted(peft, three, tmp_path / "a")
    near(vitlab.load(tmp_path / "a"), peer)
    kept = adapted(peft, kind.from_pretrained(tmp_path / "base"), tmp_path / "b",
                   modules_to_save=None)  # fmt: skip
    model = vitlab.load(tmp_path / "b")
    near(model, kept)
    assert model.config.labels == tuple(names.values())


def test_timms_models(peft: Any, tmp_path: Path) -> None:
    name = "vit_base_patch16_siglip_224"
    timm = peers.timm()
    model = drawn(timm.create_model(name, **TIMM))
    save_file(model.state_dict(), tmp_path / "base.safetensors")
    where = {"target_modules": ["qkv", "fc2"], "modules_to_save": ["head"]}
    peer = adapted(peft, model, tmp_path / "a", **where)
    known: dict[str, Any] = {"name": name, "heads": 3}
    with pytest.raises(WeightsError, match=r"is LoRA without its base .* --base \(Python: base="):
        vitlab.load(tmp_path / "a", **known)
    near(vitlab.load(tmp_path / "a", base=tmp_path / "base.safetensors", **known), peer)


def test_dinov2_and_a_tower_beside_text(peft: Any, transformers: Any, tmp_path: Path) -> None:
    drawn(transformers.Dinov2Model(transformers.Dinov2Config(**SMALL))).save_pretrained(
        tmp_path / "base"
    )
    kind = transformers.Dinov2ForImageClassification
    model = kind.from_pretrained(tmp_path / "base", num_labels=3)
    peer = adapted(peft, model, tmp_path / "a", target_modules=["q_proj", "fc1"])
    near(vitlab.load(tmp_path / "a"), peer)
    text = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
            "intermediate_size": 64}  # fmt: skip
    both = transformers.CLIPConfig(vision_config=SMALL, text_config=text, projection_dim=8)
    drawn(transformers.CLIPModel(both)).save_pretrained(tmp_path / "clip")
    clip = transformers.CLIPModel.from_pretrained(tmp_path / "clip")
    clip = adapted(peft, clip, tmp_path / "c", modules_to_save=None)
    with torch.no_grad():
        want = clip.get_image_features(IMAGES)
    want = getattr(want, "pooler_output", want)
    found = vitlab.load(tmp_path / "c")(IMAGES)
    torch.testing.assert_close(found, want, rtol=0, atol=1e-5)
    tower = transformers.CLIPVisionModel.from_pretrained(tmp_path / "clip")
    tower.save_pretrained(tmp_path / "tower")
    file = tmp_path / "tower" / "model.safetensors"
    bare = {name.removeprefix("vision_model."): tensor for name, tensor in load_file(file).items()}
    save_file(bare, file)  # layers of the text's tower fit, too
    with pytest.raises(WeightsError, match="fits no layer of"):
        vitlab.load(tmp_path / "c", base=tmp_path / "tower")
    peer = adapted(peft, tower, tmp_path / "d", modules_to_save=None)
    with torch.no_grad():
        want = peer(IMAGES).pooler_output
    found = vitlab.load(tmp_path / "d").features(IMAGES)
    torch.testing.assert_close(found, want, rtol=0, atol=1e-5)


def test_a_state_dict_with_its_base(peft: Any, tmp_path: Path) -> None:
    timm = peers.timm()
    model = drawn(timm.create_model("vit_tiny_patch16_224", **TIMM))
    where = {"target_modules": ["qkv"], "modules_to_save": ["head"]}
    peer = adapted(peft, model, tmp_path / "a", **where)
    (tmp_path / "b").mkdir()
    file = tmp_path / "b" / "lora.pth"
    torch.save({"model": peer.state_dict(), "epoch": 3}, file)
    known: dict[str, Any] = {"name": "vit_tiny_patch16_224", "heads": 3}
    with pytest.raises(WeightsError) as caught:
        vitlab.load(file, **known)
    assert "give a folder with it and its adapter_config.json, or save what" in str(caught.value)
    assert len(str(caught.value).replace(str(tmp_path), "")) < 200
    (tmp_path / "a" / "adapter_config.json").rename(tmp_path / "b" / "adapter_config.json")
    near(vitlab.load(tmp_path / "b", **known), peer)
    torch.save(peer.merge_and_unload().state_dict(), file)  # the other advice
    near(vitlab.load(file, **known), peer)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"positions": "2d"}, None),
        ({"resampling": "antialiased"}, "timm"),
        ({"resampling": "bicubic", "layer_scale": 0.1, "pool": "both"}, "transformers"),
    ],
)
def test_peft_around_our_own_model(
    values: dict[str, Any], names: str | None, peft: Any, tmp_path: Path
) -> None:
    """Its names are ours, whatever those of the base's folder are."""
    name = "ViT(width=32,depth=2,heads=2,mlp=64)/16"
    base = drawn(vitlab.create(name, 3, 32, **values))
    vitlab.save(base, tmp_path / "base")
    assert json.loads((tmp_path / "base" / "config.json").read_text()).get("names") == names
    peer = adapted(peft, copy.deepcopy(base), tmp_path / "a", target_modules=["qkv"],
                   modules_to_save=None)  # fmt: skip
    near(vitlab.load(tmp_path / "a", base=tmp_path / "base"), peer)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"init_lora_weights": "pissa"}, "LoRA from pissa"),
        ({"lora_bias": True}, "LoRA with B.bias"),
        ("IA3", "IA3"),
    ],
)
def test_other_adapters_are_named_and_the_advice_works(
    peft: Any, transformers: Any, tmp_path: Path, values: Any, kind: str
) -> None:
    model = vit(transformers, tmp_path / "base")
    if values == "IA3":
        about = peft.IA3Config(target_modules=["q_proj", "fc1"], feedforward_modules=["fc1"])
        peer = peft.get_peft_model(model, about).eval()
        peer.save_pretrained(tmp_path / "a")
    else:
        peer = adapted(peft, model, tmp_path / "a", **values)
    with pytest.raises(WeightsError) as caught:
        vitlab.load(tmp_path / "a")
    line = str(caught.value).replace(str(tmp_path), "")
    assert f"unsupported adapter of peft ({kind}): merge it there" in line
    assert len(line) < 200
    want = logits(peer)
    merged = peer.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(vitlab.load(tmp_path / "merged")), want, rtol=0, atol=1e-5)


def test_what_does_not_fit_is_refused(peft: Any, transformers: Any, tmp_path: Path) -> None:
    adapted(peft, vit(transformers, tmp_path / "base"), tmp_path / "a")
    wide = transformers.ViTModel(transformers.ViTConfig(**SMALL | {"hidden_size": 64}))
    wide.save_pretrained(tmp_path / "wide")
    with pytest.raises(WeightsError, match=r"fits no layer of .*wide: give the base"):
        vitlab.load(tmp_path / "a", base=tmp_path / "wide")
    with pytest.raises(WeightsError, match=r"is LoRA without its base '.*none': give"):
        vitlab.load(tmp_path / "a", base=tmp_path / "none")
    (tmp_path / "base").rename(tmp_path / "gone")
    with pytest.raises(WeightsError, match=r"is LoRA without its base '.*base': give .* --base"):
        vitlab.load(tmp_path / "a")
    file = tmp_path / "a" / "adapter_config.json"
    about = json.loads(file.read_text())
    for value in ([], {"v_proj|(a+)+": 3}):
        file.write_text(json.dumps(about | {"lora_alpha": None, "alpha_pattern": value}))
        with pytest.raises(WeightsError, match="does not state lora_alpha of"):
            vitlab.load(tmp_path / "a", base=tmp_path / "gone")


def test_a_damaged_configuration_is_one_line(peft: Any, transformers: Any, tmp_path: Path) -> None:
    adapted(peft, vit(transformers, tmp_path / "base"), tmp_path / "a")
    file = tmp_path / "a" / "adapter_config.json"
    about = json.loads(file.read_text())
    for change in (
        {"lora_alpha": "8"}, {"lora_alpha": float("nan")}, {"lora_alpha": 10**400},
        {"alpha_pattern": [1]}, {"alpha_pattern": {"q_proj": []}}, {"peft_type": 3},
        {"base_model_name_or_path": ["x"]}, {"base_model_name_or_path": "a\x1b[2Jb\n"},
        {"base_model_name_or_path": "me/none", "revision": 3}, {"init_lora_weights": {}},
    ):  # fmt: skip
        file.write_text(json.dumps(about | change))
        with pytest.raises(UserError) as caught:
            vitlab.load(tmp_path / "a")
        assert str(caught.value).isprintable(), change
    for text in ("[]", "{", ""):
        file.write_text(text)
        with pytest.raises(WeightsError, match=r"adapter_config\.json is damaged"):
            vitlab.load(tmp_path / "a")


def test_never_advised_to_be_dropped(tmp_path: Path) -> None:
    state = drawn(peers.timm().create_model("vit_tiny_patch16_224", **TIMM)).state_dict()
    file = tmp_path / "m.pth"
    for name, says in {
        "lora_A": "merge it there", "lora_A.weight": "fits no layer",
        "parametrizations.weight.original": "remove_parametrizations",
        "weight_scale": "dequantize", "SCB": "dequantize",
    }.items():  # fmt: skip
        torch.save(state | {f"blocks.0.attn.qkv.{name}": torch.zeros(4, 48)}, file)
        with pytest.raises(WeightsError) as caught:
            vitlab.load(file, name="vit_tiny_patch16_224", heads=3)
        line = str(caught.value).replace(str(tmp_path), "")
        assert says in line
        assert "--drop" not in line
        assert len(line) < 200


def tuned(base: Path, seed: int = 5, **values: Any) -> Any:
    """Our model of a base with a new classifier, tuned by LoRA: random matrices, merged."""
    model = vitlab.load(base, classes=3, **values)
    inject(model, torch.Generator().manual_seed(0), rank=4, alpha=8.0, targets="all")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".lora_" in name or name.startswith("head.classify."):
                weight.copy_(0.1 * torch.randn(weight.shape, generator=generator))
    return merged(model).eval()


def test_peft_reads_back_what_is_written_onto_transformers(
    peft: Any, transformers: Any, tmp_path: Path
) -> None:
    vit(transformers, tmp_path / "base")
    model = tuned(tmp_path / "base")
    model.provenance["base"] = str(tmp_path / "base")  # as a run has it
    vitlab.save(model, tmp_path / "a", to="peft")
    base = classifier(transformers, tmp_path / "base")
    near(model, peft.PeftModel.from_pretrained(base, tmp_path / "a").eval())
    near(model, vitlab.load(tmp_path / "a"))
    small = (tmp_path / "a" / "adapter_model.safetensors").stat().st_size
    assert small < (tmp_path / "base" / "model.safetensors").stat().st_size / 2


@pytest.mark.parametrize("kind", ["Dinov2WithRegisters", "IJepa"])
def test_peft_reads_back_other_families(
    peft: Any, transformers: Any, tmp_path: Path, kind: str
) -> None:
    about = getattr(transformers, f"{kind}Config")(**SMALL)
    drawn(getattr(transformers, f"{kind}Model")(about)).save_pretrained(tmp_path / "base")
    model = tuned(tmp_path / "base", **({"pool": "both"} if "Dino" in kind else {}))
    vitlab.save(model, tmp_path / "a", to="peft", base=tmp_path / "base")
    own = getattr(transformers, f"{kind}ForImageClassification")
    base = own.from_pretrained(tmp_path / "base", num_labels=3)
    near(model, peft.PeftModel.from_pretrained(base, tmp_path / "a").eval())
    near(model, vitlab.load(tmp_path / "a"))


def test_peft_reads_back_what_is_written_onto_timm_and_ours(peft: Any, tmp_path: Path) -> None:
    base = drawn(vitlab.create("ViT(width=48,depth=2,heads=3,mlp=192)/16", 7, 32))
    base = vitlab.load(vitlab.save(base, tmp_path / "ours"))
    vitlab.save(base, tmp_path / "base", to="timm")
    model = tuned(tmp_path / "base")
    vitlab.save(model, tmp_path / "a", to="peft", base=tmp_path / "base")
    timm, source = peers.timm(), f"local-dir:{tmp_path / 'base'}"
    peer = timm.create_model(source, pretrained=True, num_classes=3)
    near(model, peft.PeftModel.from_pretrained(peer, tmp_path / "a").eval())
    near(model, vitlab.load(tmp_path / "a"))
    vitlab.save(model, tmp_path / "b", to="peft", base=tmp_path / "ours")
    peer = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True, num_classes=3)
    near(model, peft.PeftModel.from_pretrained(peer, tmp_path / "b").eval())
    near(model, vitlab.load(tmp_path / "b"))


def test_what_an_adapter_cannot_represent(tmp_path: Path) -> None:
    base = drawn(vitlab.create("ViT(width=48,depth=2,heads=3,mlp=192)/16", 3, 32))
    vitlab.save(base, tmp_path / "base")
    model = tuned(tmp_path / "base")
    said = {}
    for name in ("blocks.0.mlp.0.body.expand.weight", "norm.weight", "token"):
        other = copy.deepcopy(model)
        with torch.no_grad():
            other.get_parameter(name).add_(0.1 * torch.randn(other.get_parameter(name).shape))
        with pytest.raises(WeightsError) as caught:
            vitlab.save(other, tmp_path / "a", to="peft", base=tmp_path / "base")
        said[name] = str(caught.value)
    assert "not of low rank: use tune=lora" in said["blocks.0.mlp.0.body.expand.weight"]
    assert "the change of norm.weight" in said["norm.weight"]
    assert "the change of cls_token" in said["token"]
    with pytest.raises(
        WeightsError, match=r"no LoRA to export: it has every layer of .*--to vitlab, timm"
    ):
        vitlab.save(base, tmp_path / "a", to="peft", base=tmp_path / "base")
    with pytest.raises(WeightsError, match=r"needs the base that was tuned: give --base"):
        vitlab.save(model, tmp_path / "a", to="peft")
    assert not (tmp_path / "a").exists()
