"""Folders and state dicts of transformers, random weights: its outputs, or one line why not."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitlab
from made_models import noisy, pixels
from oracles import peers
from vitlab.errors import UserError, WeightsError
from vitlab.weights.formats.transformers.config_json import DEFAULTS, IDLE, NEUTRAL
from vitlab.weights.formats.transformers.families import FAMILIES
from vitlab.weights.load import load_check

SMALL: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
TEXT = {**SMALL, "vocab_size": 11, "max_position_embeddings": 7, "bos_token_id": 1,
        "eos_token_id": 2}  # fmt: skip
BIASED = {"use_relative_position_bias": True}
SHARED = {"use_shared_relative_position_bias": True}
LAST, POOLED = "last_hidden_state", "pooler_output"
# Class, choices, and the output that ours gives. Choices differ from defaults where a key counts.
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("ViTModel", {"num_attention_heads": 2, "num_hidden_layers": 2}, POOLED),
    ("ViTForImageClassification", {"num_labels": 5, "layer_norm_eps": 0.1}, "logits"),
    ("ViTForImageClassification", {"hidden_act": "gelu_new", "qkv_bias": False}, "logits"),
    ("DeiTModel", {"num_attention_heads": 1}, POOLED),
    ("DeiTForImageClassificationWithTeacher", {"num_labels": 5}, "logits"),
    ("BeitModel", BIASED, POOLED),
    ("BeitModel", {**SHARED, "num_hidden_layers": 2}, POOLED),
    ("BeitModel", {**BIASED, "layer_scale_init_value": 0.0}, POOLED),
    ("BeitModel", {**BIASED, "use_mean_pooling": False}, POOLED),
    ("BeitForImageClassification", BIASED, "logits"),
    ("BeitForImageClassification", {**BIASED, "use_absolute_position_embeddings": True}, "logits"),
    ("Data2VecVisionModel", BIASED, LAST),
    ("Dinov2Model", {"mlp_ratio": 2, "hidden_act": "quick_gelu"}, POOLED),
    ("Dinov2Model", {"use_swiglu_ffn": True}, POOLED),
    ("Dinov2ForImageClassification", {"num_labels": 5}, "logits"),
    ("Dinov2WithRegistersModel", {"num_register_tokens": 3}, POOLED),
    ("Dinov2WithRegistersForImageClassification", {}, "logits"),
    ("DINOv3ViTModel", {"num_register_tokens": 4, "rope_theta": 3.0}, POOLED),
    ("DINOv3ViTModel", {"num_register_tokens": 0, "key_bias": True}, POOLED),
    ("DINOv3ViTModel", {"use_gated_mlp": True, "hidden_act": "silu"}, POOLED),
    ("IJepaModel", {}, LAST),
    ("IJepaForImageClassification", {}, "logits"),
    ("ViTMAEModel", {"mask_ratio": 0.0}, LAST),
    ("ViTMSNModel", {}, LAST),
    ("CLIPVisionModel", {"layer_norm_eps": 0.1}, POOLED),
    ("CLIPVisionModelWithProjection", {"projection_dim": 6}, "image_embeds"),
    ("MetaClip2VisionModelWithProjection", {"projection_dim": 6}, "image_embeds"),
    ("ChineseCLIPVisionModel", {}, POOLED),
    ("AltCLIPVisionModel", {}, POOLED),
    ("CLIPSegVisionModel", {}, POOLED),
    ("SiglipVisionModel", {"num_attention_heads": 8, "hidden_act": "gelu"}, POOLED),
    ("SiglipVisionModel", {"vision_use_head": False}, LAST),
    ("Siglip2VisionModel", {"num_patches": 16}, POOLED),
    ("Tipsv2VisionModel", {}, POOLED),
    ("Aimv2VisionModel", {"use_head": False}, LAST),
    ("GitVisionModel", {}, LAST),
    ("Owlv2VisionModel", {}, POOLED),
    ("Idefics3VisionTransformer", {}, LAST),
    ("InternVLVisionModel", {"attention_bias": True}, LAST),
]  # fmt: skip
FIRST = {name: choices for name, choices, _ in reversed(CASES)}  # one of each class
# Its first norm is after the pool, or there is none after the blocks: the last states differ.
UNNORMED = ("CLIP", "Clip", "Owl")


def made(name: str, **choices: Any) -> nn.Module:
    """A model of transformers with random tensors, by the name of its class."""
    kind = getattr(peers.transformers(), name)
    alien = {"Siglip2": "image_size", "Tipsv2": "intermediate_size"}
    unused = {key for start, key in alien.items() if name.startswith(start)}
    config = kind.config_class(**{k: v for k, v in SMALL.items() if k not in unused} | choices)
    config._attn_implementation = "eager"
    return noisy(kind(config), 0.1)


def both(name: str, **choices: Any) -> nn.Module:
    """A model that has a text tower too."""
    kind = getattr(peers.transformers(), name)
    config = kind.config_class(text_config=TEXT, vision_config={**SMALL, **choices})
    return noisy(kind(config), 0.1)


def close(got: Tensor, want: Any) -> None:
    want = getattr(want, "pooler_output", want)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5 * max(1.0, float(want.abs().max())))


def edited(folder: Path, **changes: Any) -> None:
    """Change keys of config.json; None takes one out."""
    file = folder / "config.json"
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def patches_of(images: Tensor) -> dict[str, Tensor]:
    """What SigLIP 2 takes: patches in which channels come last, and their places."""
    count = images.shape[-1] // 8
    cut = images.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 4, 5, 1)
    return {
        "pixel_values": cut.reshape(len(images), count**2, -1),
        "pixel_attention_mask": torch.ones(len(images), count**2, dtype=torch.int64),
        "spatial_shapes": torch.tensor([[count, count]] * len(images)),
    }


def outputs(other: Any, images: Tensor, **more: Any) -> Any:
    """What transformers gives for images."""
    name = type(other).__name__
    if "MAE" in name:
        more["noise"] = torch.arange(16.0).expand(len(images), -1)
    with torch.inference_mode():
        if name.startswith("Siglip2"):
            return other(**patches_of(images))
        return other(images, **more)


@torch.inference_mode()
def agree(model: Any, name: str, want: Any, output: str, images: Tensor) -> None:
    """Our outputs are those of a class."""
    whole = output == LAST and want[output].ndim == 3
    close(model.encode(images) if whole else model(images), want[output])
    if output == POOLED:
        close(model.features(images), want[output])
        if not any(part in name for part in UNNORMED):
            close(model.encode(images), want[LAST])


@pytest.mark.parametrize(("name", "choices", "output"), CASES)
def test_outputs_are_transformers(
    name: str, choices: dict[str, Any], output: str, tmp_path: Path
) -> None:
    other, images = made(name, **choices), pixels(32)
    other.save_pretrained(tmp_path)
    model, want = vitlab.load(tmp_path), outputs(other, images, output_hidden_states=True)
    agree(model, name, want, output, images)
    if name in ("ViTModel", "DeiTModel", "Dinov2WithRegistersModel", "DINOv3ViTModel"):
        close(model.intermediates(images, [0])[0], want.hidden_states[0])


# Without a configuration nothing tells SigLIP 2's grid, other heads, or which GELU it is.
ALONE = [
    "ViTForImageClassification", "DeiTForImageClassificationWithTeacher",
    "BeitForImageClassification", "Data2VecVisionModel", "Dinov2ForImageClassification",
    "Dinov2WithRegistersModel", "IJepaModel", "DINOv3ViTModel", "CLIPVisionModelWithProjection",
    "Aimv2VisionModel", "InternVLVisionModel", "Owlv2VisionModel",
]  # fmt: skip
PREFIXES = ("", "model.", "lightning.net.")


@pytest.mark.parametrize(("number", "name"), [*enumerate(ALONE)])
def test_a_state_dict_alone(
    number: int, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By torch.save, and by Lightning with other tensors beside it; heads must be said."""
    choices, output = next(rest for kind, *rest in CASES if kind == name)
    choices = {k: v for k, v in choices.items() if k != "rope_theta"}  # which no tensor shows
    other, prefix, images = made(name, **choices), PREFIXES[number % 3], pixels(32)
    state = {prefix + key: tensor for key, tensor in other.state_dict().items()}
    file = tmp_path / "last.ckpt"
    torch.save({"state_dict": state | {"loss.weight": torch.ones(7)}} if prefix else state, file)
    eps = getattr(other.config, "layer_norm_eps", 1e-5)
    agree(vitlab.load(file, heads=4, norm_eps=eps), name, outputs(other, images), output, images)
    origins = load_check(file).origins
    assert {origins[key] for key in ("norm_eps", "mean", "crop")} == {"assumed"}
    assert origins["heads"] == ("tensors" if choices.keys() & {*BIASED, *SHARED} else "assumed")
    assert {origins[key] for key in ("width", "depth", "mlp", "patch")} == {"tensors"}
    assert "does not say, so these are assumed" in caplog.text


@pytest.mark.parametrize("name", ["ViTForImageClassification", "BeitModel", "DINOv3ViTModel"])
def test_names_that_tensors_have_in_memory(name: str, tmp_path: Path) -> None:
    """A state dict saved by itself has transformers 5's names, which its files do not."""
    choices = SHARED if name == "BeitModel" else {}
    other, images = made(name, **choices), pixels(32)
    other.config.architectures = [name]
    other.config.save_pretrained(tmp_path)
    torch.save(other.state_dict(), tmp_path / "pytorch_model.bin")
    output = "logits" if "Class" in name else POOLED
    agree(vitlab.load(tmp_path), name, outputs(other, images), output, images)


RESIZED: list[tuple[str, dict[str, Any], tuple[int, int], dict[str, Any]]] = [
    ("ViTForImageClassification", {}, (48, 48), {"interpolate_pos_encoding": True}),
    ("Dinov2Model", {}, (48, 48), {}),
    ("Tipsv2VisionModel", {}, (48, 48), {}),
    ("Idefics3VisionTransformer", {}, (24, 40), {}),
    ("Siglip2VisionModel", {"num_patches": 16}, (16, 16), {}),
]


@pytest.mark.parametrize(("name", "choices", "size", "asked"), RESIZED)
def test_other_sizes_as_transformers_interpolates(
    name: str, choices: dict[str, Any], size: tuple[int, int], asked: dict[str, Any], tmp_path: Path
) -> None:
    other, images = made(name, **choices), pixels(2, 3, *size)
    other.save_pretrained(tmp_path)
    output = "logits" if "Class" in name else LAST if "Idefics" in name else POOLED
    model = vitlab.load(tmp_path, image_size=size)
    agree(model, name, outputs(other, images, **asked), output, images)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_defaults_are_those_of_the_class(model_type: str) -> None:
    """And every key of the class is read, or reviewed as without effect."""
    peers.transformers()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    content = CONFIG_MAPPING[model_type]().to_dict()
    table = DEFAULTS[model_type]
    rest = content.keys() - table.keys()
    assert not [key for key in rest - NEUTRAL.keys() if not IDLE.fullmatch(key)]
    for key in rest & NEUTRAL.keys():
        assert content[key] in (*NEUTRAL[key], None), key
    for key in table.keys() & content.keys() - {"pooler_output_size"}:
        assert table[key] == content[key], key
    assert table.keys() - content.keys() <= {"rope_parameters", "num_channels"}  # BLIP has 3


KEYED = [name for name in FIRST if "ForImage" not in name] + ["ViTForImageClassification"]
OTHER = {  # values that differ from those of the models above
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 16, "intermediate_size": 40,
    "image_size": 40, "patch_size": 4, "num_channels": 1, "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-3, "mlp_ratio": 3, "pooler_output_size": 8, "pooler_act": "relu",
    "projection_dim": 7, "num_patches": 25, "num_register_tokens": 2, "rope_theta": 50.0,
    "rope_parameters": {"rope_theta": 10.0}, "layer_scale_init_value": 0.0,
    "layerscale_value": 0.5, "rms_norm_eps": 1e-3, "norm_type": "rms_norm", "num_experts": 2,
    "pruned_heads": {"0": [1]}, "quantization_config": {"bits": 4},
}  # fmt: skip
# Keys of parts that a class does not have.
PARTS = {"projection_dim": ("VisionModel",), "pooler_act": ("Classification",)}


def another(value: Any) -> Any:
    """Another number or flag; what is neither stays."""
    match value:
        case bool():
            return not value
        case int():
            return 2 * value
        case float():
            return value / 2 + 0.1
    return value


@pytest.mark.parametrize("name", KEYED)
def test_no_key_is_ignored_or_it_changes_nothing(name: str, tmp_path: Path) -> None:
    """Whatever changes in config.json, the model changes too, or is refused; unless idle there."""
    before, images = made(name, **FIRST[name]), pixels(32)
    before.save_pretrained(tmp_path)
    plain = json.loads((tmp_path / "config.json").read_text())
    read, defaults = load_check(tmp_path).config, DEFAULTS[plain["model_type"]]
    neutral = {key: values[0] for key, values in NEUTRAL.items() if values}
    keys = {**dict.fromkeys(NEUTRAL), **neutral, **defaults}
    for key, default in keys.items():
        if name.endswith(PARTS.get(key.replace("output_size", "act"), ())):
            continue
        old = plain.get(key, default)
        new = "gelu" if old == "quick_gelu" else OTHER.get(key)
        edited(tmp_path, **{key: not old if isinstance(old, bool) else new})
        try:
            assert load_check(tmp_path).config != read, key
        except UserError as error:
            assert "\n" not in str(error)
        (tmp_path / "config.json").write_text(json.dumps(plain))
    edited(tmp_path, surprising=1)
    with pytest.raises(WeightsError, match=r"unknown key surprising \(value 1\) of .*remove it"):
        load_check(tmp_path)
    content = before.config.to_dict()
    switches = {"return_dict", "output_hidden_states", "output_attentions"}
    for key in content.keys() - defaults.keys() - NEUTRAL.keys() - switches:
        assert IDLE.fullmatch(key)
        content[key] = another(content[key])
    content |= {"add_fpn": False, "mask_ratio": 0.0}  # needs stages; a call drops patches anyway
    config = type(before.config)(**content)
    config._attn_implementation = "eager"
    other = type(before)(config).eval()
    other.load_state_dict(before.state_dict(), strict=False)
    want, got = outputs(before, images)[0], outputs(other, images)[0]
    close(*(each[0] if isinstance(each, tuple) else each for each in (got, want)))


@pytest.mark.parametrize(
    ("kind", "reduced"),
    [("Siglip", {"image_size": 32, "patch_size": 8}), ("CLIP", {"image_size": 64})],
)
def test_towers_whose_config_leaves_out_the_defaults(
    kind: str, reduced: dict[str, Any], tmp_path: Path
) -> None:
    """As they are released: quick GELU is CLIP's, tanh SigLIP's; CLIP's patches have 32 pixels."""
    transformers = peers.transformers()
    vision = {"num_hidden_layers": 1, **reduced}
    config = getattr(transformers, f"{kind}Config")(text_config=TEXT, vision_config=vision)
    whole = noisy(getattr(transformers, f"{kind}Model")(config))
    whole.save_pretrained(tmp_path)
    edited(tmp_path, vision_config=vision)
    origins = load_check(tmp_path).origins
    assert (origins["gelu"], origins["depth"]) == ("family", "file")
    images = pixels(reduced["image_size"])
    with torch.inference_mode():
        close(vitlab.load(tmp_path)(images), whole.get_image_features(images))


def test_what_old_files_say_twice(tmp_path: Path) -> None:
    """CLIP's vision_config_dict takes precedence over vision_config, as in transformers."""
    both("CLIPModel", hidden_act="gelu").save_pretrained(tmp_path)
    edited(tmp_path, vision_config={"model_type": "clip_vision_model"},
           vision_config_dict={**SMALL, "hidden_act": "gelu"})  # fmt: skip
    same = peers.transformers().CLIPModel.from_pretrained(tmp_path).eval()
    with torch.inference_mode():
        close(vitlab.load(tmp_path)(pixels(32)), same.get_image_features(pixels(32)))


@pytest.mark.parametrize("kind", ["Siglip", "CLIP", "Siglip2"])
def test_classifiers_of_towers_average_the_patches(kind: str, tmp_path: Path) -> None:
    """With the attention pool of SigLIP, or the last norm of CLIP, in the file but unused."""
    other: Any
    if kind == "Siglip2":
        vision = {k: v for k, v in SMALL.items() if k != "image_size"} | {"num_patches": 16}
        transformers = peers.transformers()
        about = transformers.Siglip2Config(text_config=TEXT, vision_config=vision, num_labels=3)
        other = noisy(transformers.Siglip2ForImageClassification(about))
    else:
        other = both(f"{kind}ForImageClassification")
    other.save_pretrained(tmp_path)
    want = outputs(other, pixels(32)).logits
    for origin in ("file", "family"):
        model = vitlab.load(tmp_path)
        assert model.config.pool == "mean"
        with torch.inference_mode():
            close(model(pixels(32)), want)
        assert load_check(tmp_path).origins["pool"] == origin
        edited(tmp_path, architectures=None)


@pytest.mark.parametrize("kind", ["CLIP", "Siglip", "ChineseCLIP", "AltCLIP"])
def test_the_tower_of_images_beside_one_of_texts(kind: str, tmp_path: Path) -> None:
    """In a folder; of CLIP and SigLIP also the state dict alone."""
    transformers = peers.transformers()
    vision = getattr(transformers, f"{kind}VisionConfig")(**SMALL).to_dict()
    more = {} if kind == "Siglip" else {"projection_dim": 6}
    config = getattr(transformers, f"{kind}Config")(vision_config=vision, text_config=TEXT, **more)
    whole = noisy(getattr(transformers, f"{kind}Model")(config))
    whole.save_pretrained(tmp_path / "m")
    state = {f"clip.{name}": tensor for name, tensor in whole.state_dict().items()}
    torch.save(state, tmp_path / "both.pth")
    with torch.inference_mode():
        want = whole.get_image_features(pixels(32))
        close(vitlab.load(tmp_path / "m")(pixels(32)), want)
        if kind in ("CLIP", "Siglip"):
            close(vitlab.load(tmp_path / "both.pth", heads=4)(pixels(32)), want)


def test_a_name_settles_a_state_dict(tmp_path: Path) -> None:
    transformers = peers.transformers()
    config = transformers.ViTConfig(num_hidden_layers=1, num_labels=3, layer_norm_eps=1e-6)
    other = noisy(transformers.ViTForImageClassification(config))
    torch.save(other.state_dict(), tmp_path / "vit.pth")
    found = load_check(tmp_path / "vit.pth", name="vit_base_patch16_224")
    assert {found.origins[key] for key in ("heads", "gelu", "norm_eps", "mean")} == {"name"}
    assert not any("does not say" in note for note in found.notes)
    model = vitlab.load(tmp_path / "vit.pth", name="vit_base_patch16_224")
    images = torch.randn(1, 3, 224, 224)
    with torch.inference_mode():
        close(model(images), other(images).logits)


def test_image_models_inside_of_larger_ones(tmp_path: Path) -> None:
    """A language model that sees, a reader, a depth estimator: their encoder is read."""
    transformers = peers.transformers()
    text = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        vocab_size=9, num_key_value_heads=2,
    )  # fmt: skip
    vision = transformers.SiglipVisionConfig(**SMALL)
    llava = transformers.LlavaConfig(vision_config=vision, text_config=text)
    reader = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**SMALL),
        transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=9, n_positions=8,
                                add_cross_attention=True, bos_token_id=1, eos_token_id=2),
    )  # fmt: skip
    models = {
        "llava": (transformers.LlavaForConditionalGeneration(llava), "model.vision_tower"),
        "reader": (transformers.VisionEncoderDecoderModel(reader), "encoder"),
    }
    four = {**SMALL, "num_hidden_layers": 4, "intermediate_size": 1}
    stages = {"out_indices": [1, 2, 3, 4], "reshape_hidden_states": False}
    dpt = transformers.DPTConfig(
        backbone_config=transformers.Dinov2Config(**four | stages), neck_hidden_sizes=[8] * 4,
        fusion_hidden_size=8,
    )  # fmt: skip
    owl = transformers.Owlv2Config(vision_config=SMALL, text_config=TEXT)
    git = transformers.GitConfig(
        vision_config=SMALL, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, vocab_size=9,
    )  # fmt: skip
    blip = transformers.BlipConfig(vision_config=SMALL, text_config=TEXT)
    models |= {
        "dpt": (transformers.DPTForDepthEstimation(dpt), "backbone"),
        "blip": (transformers.BlipModel(blip), "vision_model"),
        "blip2": (transformers.Blip2VisionModel(transformers.Blip2VisionConfig(**SMALL)), ""),
        "git": (transformers.GitForCausalLM(git), "git.image_encoder"),
    }
    for name, (whole, place) in models.items():
        noisy(whole).save_pretrained(tmp_path / name)
        inner = whole.get_submodule(place)
        with torch.inference_mode():
            want = inner(pixels(32))
            last = want.feature_maps[-1] if name == "dpt" else want.last_hidden_state
            close(vitlab.load(tmp_path / name).encode(pixels(32)), last)
    detector = noisy(transformers.Owlv2ForObjectDetection(owl))
    detector.save_pretrained(tmp_path / "owl")
    with torch.inference_mode():
        want = detector.owlv2.get_image_features(pixels(32))
        close(vitlab.load(tmp_path / "owl")(pixels(32)), want)


def test_internvit_by_its_own_names(tmp_path: Path) -> None:
    """Of OpenGVLab's code: as transformers' tower of InternVL, whose tensors have other names."""
    other = made("InternVLVisionModel", attention_bias=True)
    words = (
        (r"\.cls_token", ".class_embedding"), (r"patch_embeddings\.projection", "patch_embedding"),
        (r"position_embeddings", "position_embedding"), (r"encoder\.layer\.", "encoder.layers."),
        (r"attention\.projection_layer", "attn.proj"), (r"layernorm_before", "norm1"),
        (r"layernorm_after", "norm2"), (r"lambda_(\d)", r"ls\1"),
    )  # fmt: skip
    state: dict[str, Tensor] = {}
    for name, tensor in other.state_dict().items():
        for pattern, word in words:
            name = re.sub(pattern, word, name)
        state[name] = tensor
    for part in ("weight", "bias"):
        apart = [state.pop(f"encoder.layers.0.attention.{n}_proj.{part}") for n in "qkv"]
        state[f"encoder.layers.0.attn.qkv.{part}"] = torch.cat(apart)
    torch.save(state, tmp_path / "pytorch_model.bin")
    content = {
        **SMALL, "model_type": "intern_vit_6b", "qkv_bias": True, "qk_normalization": False,
        "norm_type": "layer_norm", "use_flash_attn": True, "layer_norm_eps": 1e-6,
        "architectures": ["InternVisionModel"], "initializer_factor": 0.1,
        "auto_map": {"AutoModel": "modeling_intern_vit.InternVisionModel"},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(content))
    with torch.inference_mode():
        close(vitlab.load(tmp_path).encode(pixels(32)), other(pixels(32)).last_hidden_state)
    assert not any("auto_map" in note for note in load_check(tmp_path).notes), "that code is ours"
    edited(tmp_path, qk_normalization=True)
    with pytest.raises(WeightsError, match="unsupported qk_normalization=True"):
        vitlab.load(tmp_path)


def test_parts_of_other_tasks_are_left_out(tmp_path: Path) -> None:
    transformers = peers.transformers()
    about = transformers.ViTMAEConfig(**SMALL, mask_ratio=0.0)
    mae = transformers.ViTMAEForPreTraining(about).eval()
    mae.save_pretrained(tmp_path / "mae")
    with torch.inference_mode():
        want = outputs(mae.vit, pixels(32)).last_hidden_state
        close(vitlab.load(tmp_path / "mae").encode(pixels(32)), want)
    about = transformers.BeitConfig(**SMALL, **SHARED)
    transformers.BeitForMaskedImageModeling(about).save_pretrained(tmp_path / "beit")
    assert vitlab.load(tmp_path / "beit").config.classes == 0
    for normed in (True, False):
        how = {"out_indices": [1], "reshape_hidden_states": False, "apply_layernorm": normed}
        other = made("Dinov2Backbone", **how)
        other.save_pretrained(tmp_path / "backbone")
        with torch.inference_mode():
            want = other(pixels(32)).feature_maps[-1]
            close(vitlab.load(tmp_path / "backbone").encode(pixels(32)), want)
        assert not any("model." in note for note in load_check(tmp_path / "backbone").notes)
    choices = {**BIASED, "num_hidden_layers": 4, "out_indices": [0, 1, 2, 3]}
    made("BeitForSemanticSegmentation", **choices, use_mean_pooling=False).save_pretrained(
        tmp_path / "dense"
    )
    found = load_check(tmp_path / "dense")
    assert any("segmentation head is left out" in note for note in found.notes)
    assert "of dense prediction" in found.left_out.values()
    assert found.config["classes"] == 0


def test_preprocessing_labels_and_shards(tmp_path: Path) -> None:
    labels = {0: "ant", 1: "bee", 2: "cat", 3: "dog", 4: "eel"}
    other = made("Dinov2ForImageClassification", id2label=labels)
    other.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    told = {
        "do_center_crop": True, "crop_size": {"height": 24, "width": 24}, "do_normalize": True,
        "size": {"shortest_edge": 32}, "resample": 2, "image_mean": [0.1, 0.2, 0.3],
        "image_std": [0.3, 0.2, 0.1],
    }  # fmt: skip
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(told))
    model = vitlab.load(tmp_path)
    config = model.config
    assert (config.mean, config.std) == ((0.1, 0.2, 0.3), (0.3, 0.2, 0.1))
    assert (config.crop, config.fit, config.interpolation) == (0.75, "crop", "bilinear")
    assert config.labels == tuple(labels.values())
    with torch.inference_mode():
        close(model(pixels(24)), outputs(other, pixels(24)).logits)


def test_a_processor_of_another_size_decides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """DINOv2: positions for 518 pixels, images of 224."""
    for name in ("Dinov2Model", "Dinov2WithRegistersModel"):
        other = made(name)
        other.save_pretrained(tmp_path / name)
        prepared = {"size": {"shortest_edge": 28}, "crop_size": {"height": 24, "width": 24},
                    "image_processor_type": "BitImageProcessor"}  # fmt: skip
        (tmp_path / name / "preprocessor_config.json").write_text(json.dumps(prepared))
        model = vitlab.load(tmp_path / name)
        assert model.config.image_size == 24
        assert model.config.crop == pytest.approx(24 / 28)
        assert model.config.positions_size == 32  # type: ignore[attr-defined]
        assert not caplog.text
        with torch.inference_mode():
            close(model(pixels(24)), other(pixels(24)).pooler_output)
        assert vitlab.load(tmp_path / name, image_size=32).config.image_size == 32
        assert load_check(tmp_path / name).config["image_size"] == 24


def test_a_size_that_the_patches_do_not_divide(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in siglip-so400m-patch14-384: the patches leave out the last pixels."""
    other = made("SiglipVisionModel", image_size=37)
    other.save_pretrained(tmp_path)
    model = vitlab.load(tmp_path)
    assert model.config.image_size == 32
    assert model.config.crop == pytest.approx(32 / 37)
    assert "patch_size 8 does not divide image_size 37" in caplog.text
    images = pixels(37)
    with torch.inference_mode():
        close(model(images[:, :, :32, :32]), other(images).pooler_output)


@pytest.mark.parametrize("pool", ["token", "both"])
def test_a_classifier_that_transformers_does_not_have(pool: str, tmp_path: Path) -> None:
    """The width of its input shows what it sees, but not for certain: that is told."""
    other = made("DINOv3ViTModel")
    other.config.architectures = ["DINOv3ViTForImageClassification"]
    other.config.save_pretrained(tmp_path)
    wide = 64 if pool == "both" else 32
    classifier = {"classifier.weight": torch.randn(3, wide), "classifier.bias": torch.randn(3)}
    torch.save({**other.state_dict(), **classifier}, tmp_path / "pytorch_model.bin")
    found = load_check(tmp_path)
    assert (found.config["pool"], found.origins["pool"]) == (pool, "assumed")
    assert any("--pool" in note for note in found.notes)


def test_code_of_its_own_is_told_but_not_beside_a_class_of_transformers(tmp_path: Path) -> None:
    made("Dinov2ForImageClassification").save_pretrained(tmp_path)
    for own, origin in ((False, "file"), (True, "assumed")):
        more = {"architectures": ["MyModel"]} if own else {}
        edited(tmp_path, auto_map={"AutoModel": "own.MyModel"}, **more)
        found = load_check(tmp_path)
        assert found.origins["pool"] == origin
        for word in ("auto_map", "--pool"):
            assert any(word in note for note in found.notes) is own


REFUSED = [
    ("Aimv2VisionModel", {}, "unsupported use_head=True: attention pooling"),
    ("DINOv3ViTModel", {"query_bias": False}, "query_bias=False, key_bias=False, value_bias=True"),
    ("DINOv3ViTModel", {"proj_bias": False}, "proj_bias=False with mlp_bias=True"),
    ("BeitModel", {**BIASED, **SHARED}, "a table of relative positions per block and one for all"),
    ("ViTModel", {"pooler_act": "relu"}, "unsupported pooler_act='relu'"),
    ("ViTModel", {"hidden_act": "relu"}, "unsupported hidden_act='relu': gelu, "),
    ("ViTForImageClassification", {"num_labels": 3},
     r"names 2 classes \(id2label\).*classifier has 3"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "choices", "message"), REFUSED)
def test_what_is_unsupported_is_named(
    name: str, choices: dict[str, Any], message: str, tmp_path: Path
) -> None:
    made(name, **choices).save_pretrained(tmp_path)
    changes = {"id2label": {"0": "cat", "1": "dog"}, "label2id": None}
    edited(tmp_path, **changes if choices == {"num_labels": 3} else {})
    with pytest.raises(WeightsError, match=message):
        vitlab.load(tmp_path)
