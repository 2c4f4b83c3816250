"""A family of transformers, and its config.json as fields of ours, and back: keys, their defaults.

Every key of a class is in `DEFAULTS`, `NEUTRAL` or `IDLE`; any other is refused, because it may
change what the model computes. Source: the configuration and modeling classes of transformers 5.23,
and keys of files that older versions wrote.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from vitlab.errors import WeightsError
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.weights.formats.entries import Names, table
from vitlab.weights.formats.names import first_name, found, parts_of, placed
from vitlab.weights.formats.records import Facts, limits, record, records
from vitlab.weights.sharded import Fields
from vitlab.weights.source import Shape

# What a class takes for a key that config.json leaves out, as released files do; null: it has none.
_OF_CLASSES = records("""
    BASE
        hidden_size 768, num_hidden_layers 12, num_attention_heads 12, intermediate_size 3072,
        hidden_act gelu, layer_norm_eps 1e-12, image_size 224, patch_size 16, num_channels 3
    VIT     @BASE, qkv_bias true
    POOLED  @VIT, pooler_output_size 0, pooler_act tanh
    RATIO   @VIT, intermediate_size null, mlp_ratio 4
    TOWER   @BASE, hidden_act quick_gelu, layer_norm_eps 1e-5
    TANH    @BASE, hidden_act gelu_pytorch_tanh, layer_norm_eps 1e-6
    WIDE    @TANH, hidden_size 1152, num_attention_heads 16, patch_size 32
    MEAN
        use_absolute_position_embeddings false, layer_scale_init_value 0.1, use_mean_pooling true
    audio-spectrogram-transformer
        @VIT, image_size null, num_channels null, frequency_stride 10, time_stride 10,
        max_length 1024, num_mel_bins 128
    aimv2_vision_model
        @VIT, hidden_size 1024, num_hidden_layers 24, num_attention_heads 8,
        intermediate_size 2816, patch_size 14, hidden_act silu, layer_norm_eps null,
        rms_norm_eps 1e-5, qkv_bias false, mlp_bias false, use_head true
    beit
        @BASE, @MEAN, use_relative_position_bias false, use_shared_relative_position_bias false
    data2vec-vision    @beit
    blip_vision_model  @BASE, image_size 384, layer_norm_eps 1e-5
    blip_2_vision_model
        @VIT, hidden_size 1408, num_hidden_layers 39, num_attention_heads 16,
        intermediate_size 6144, patch_size 14, layer_norm_eps 1e-6
    instructblip_vision_model  @blip_2_vision_model
    clip_vision_model          @TOWER, patch_size 32, projection_dim 512
    altclip_vision_model       @clip_vision_model
    chinese_clip_vision_model  @clip_vision_model
    metaclip_2_vision_model    @clip_vision_model
    clipseg_vision_model       @TOWER, patch_size 32
    git_vision_model           @TOWER
    owlv2_vision_model         @TOWER, image_size 768
    owlvit_vision_model        @TOWER, image_size 768, patch_size 32
    deit                       @POOLED
    dpt                        @POOLED, image_size 384
    dinov2
        @RATIO, layer_norm_eps 1e-6, patch_size 14, layerscale_value 1.0, use_swiglu_ffn false
    dinov2_with_registers      @dinov2, patch_size 16, num_register_tokens 4
    tipsv2_vision_model        @dinov2, image_size 448, num_register_tokens 1
    dinov3_vit
        @BASE, hidden_size 384, intermediate_size 1536, num_attention_heads 6,
        layer_norm_eps 1e-5, layerscale_value 1.0, use_gated_mlp false, num_register_tokens 0,
        rope_theta 100.0, rope_parameters {}, query_bias true, key_bias false, value_bias true,
        proj_bias true, mlp_bias true
    idefics2_vision            @TANH, patch_size 32
    idefics3_vision            @WIDE
    smolvlm_vision             @WIDE
    siglip_vision_model        @TANH, vision_use_head true
    siglip2_vision_model       @siglip_vision_model, image_size null, num_patches 256
    ijepa                      @VIT
    intern_vit_6b
        @VIT, layer_norm_eps 1e-6, patch_size 14, norm_type layer_norm, qkv_bias false
    internvl_vision
        @BASE, @MEAN, hidden_size 1024, num_hidden_layers 24, num_attention_heads 16,
        intermediate_size 4096, layer_norm_eps 1e-6, image_size [448,448], patch_size [14,14],
        attention_bias false, norm_type layer_norm, use_absolute_position_embeddings true
    vit                        @POOLED
    vit_mae                    @VIT
    vit_msn                    @VIT, layer_norm_eps 1e-6
""")
DEFAULTS = {
    model_type: {key: value for key, value in keys.items() if value is not None}
    for model_type, keys in _OF_CLASSES.items()
    if not model_type.isupper()
}
# Keys that some files have, and the only values that ours has, beside null.
# (`is_native`: else positions are computed for each image; `is_hybrid`: DPT on a BiT ResNet)
NEUTRAL = limits("""
    use_bias false, use_qk_norm false, qk_normalization false, num_experts 1, is_native false,
    is_hybrid false, pruned_heads {}
""") | {"quantization_config": ()}
# Keys that no output of a class depends on, where `DEFAULTS` of the class does not have them.
IDLE = re.compile(
    r"""
    # bookkeeping, and what a call of the model returns
    _.*|name_or_path|transformers_version|architectures|model_type|auto_map|
    (torch_)?dtype|use_bfloat16|torchscript|attn_implementation|use_flash_attn|
    chunk_size_feed_forward|output_(attentions|hidden_states|scores)|use_cache|
    return_(dict|dict_in_generate|class_token)|use_return_dict|
    # tasks, training, and heads and stages around an encoder
    id2label|label2id|num_labels|problem_type|finetuning_task|task_specific_params|
    dropout|(hidden_|attention_|projection_)dropout(_prob)?|drop_path_rate|
    attention_probs_dropout_prob|initializer_(range|factor)|gradient_checkpointing|
    mask_ratio|norm_pix_loss|use_mask_token|pos_embed_(shift|jitter|rescale)|
    stage_names|out_(features|indices)|reshape_hidden_states|apply_layernorm|
    pool_scales|add_fpn|segmentation_indices|semantic_loss_ignore_index|part_features|
    use_auxiliary_head|auxiliary_(loss_weight|channels|num_convs|concat_input)|
    readout_type|reassemble_factors|neck_.*|fusion_hidden_size|head_in_index|backbone.*|
    use_(batch_norm|bias)_in_fusion_residual|add_projection|semantic_classifier_dropout|
    encoder_stride|interpolate_(antialias|offset)|pooler_(output_size|act)|
    intermediate_size|mlp_ratio|projection_dim|projector_hidden_act|num_image_tokens|
    # text and its generation
    vocab_size|tokenizer_class|prefix|tf_legacy_loss|(.*_)?(bos|eos|pad|sep)_token_id|
    is_(encoder_)?decoder|decoder_.*|(add_)?cross_attention(_hidden_size)?|
    tie_(encoder_decoder|word_embeddings|last_hidden_states)|num_beam(s|_groups)|
    .*_penalty|(max|min)_length|(encoder_)?no_repeat_ngram_size|num_return_sequences|
    do_sample|early_stopping|remove_invalid_values|temperature|top_[kp]|typical_p|
    bad_words_ids|(begin_)?suppress_tokens|
    # ours, in a folder of `vitlab.save` that transformers opened and saved again
    format|names|name|kind|model|provenance|tensors|sha256
    """,
    re.VERBOSE,
)
_GATED = {False: "mlp", True: "swiglu"}
# Words of config.json and ours, by key; of several that mean the same, the first is written.
WORDS: dict[str, dict[Any, str]] = {
    "hidden_act": record("""
        gelu exact, gelu_python exact, gelu_pytorch_tanh tanh, gelu_new tanh, gelu_fast tanh,
        gelu_accurate tanh, gelu_python_tanh tanh, quick_gelu quick
    """),
    "norm_type": record("layer_norm layer, rms_norm rms"),
    "use_gated_mlp": _GATED,
    "use_swiglu_ffn": _GATED,
}  # fmt: skip
# Keys and the fields of ours with the same meaning; of several, the last decides.
KEYS = record("""
    hidden_size width, num_hidden_layers depth, num_attention_heads heads,
    intermediate_size mlp, image_size image_size, patch_size patch, num_channels channels,
    num_register_tokens registers, layer_norm_eps norm_eps, rms_norm_eps norm_eps,
    norm_type norm, rope_theta rope_base, hidden_act gelu, use_gated_mlp ffn,
    use_swiglu_ffn ffn, layerscale_value layer_scale, layer_scale_init_value layer_scale,
    attention_bias qkv_bias, key_bias qkv_bias, query_bias qkv_bias, value_bias qkv_bias,
    qkv_bias qkv_bias, proj_bias bias, mlp_bias bias
""")
# Keys that decide a field together with others.
DECIDING = record("""
    mlp_ratio mlp, num_patches image_size, use_relative_position_bias positions,
    use_shared_relative_position_bias positions_at
""")


# Suffixes of classes whose outputs our model has; of others only the backbone is read.
CLASSIFIERS = (
    "ForImageClassification", "ForImageClassificationWithTeacher", "ForAudioClassification",
)  # fmt: skip


@dataclass(frozen=True)
class StatedModel:
    """The image model of a file, as its family reads it.

    Attributes:
        family: of its model_type
        given: its part of config.json
        content: every key of the family, those that the file leaves out with the class's default
        prefix: of its tensors
        stored: the file's names by the family's; `/name` is outside of the backbone
        shapes: by the family's names
        architecture: the class that it was saved by; empty if the file does not say
        projection: width of the projection that both towers share
        tower: it is one of several models in the file
    """

    family: "Family"
    given: Fields
    content: Fields
    prefix: str
    stored: dict[str, str]
    shapes: dict[str, Shape]
    architecture: str = ""
    projection: int = 512
    tower: bool = False

    @property
    def classifies(self) -> bool:
        """Whether it has a classifier."""
        return "/classifier.weight" in self.shapes or self.architecture.endswith(CLASSIFIERS)

    def in_file(self, name: str) -> str:
        """Return the name that a tensor has, or would have, in the file."""
        outside = self.prefix.removesuffix("vision_model.") + name[1:]
        there = outside if name.startswith("/") else self.prefix + name
        return self.stored.get(name, there)


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model_type: its names, and its config.json.

    Attributes:
        title: its model_type, and names of its classes, the most specific last; the first has no
            classifier
        names: of its tensors; `/name` is outside of the backbone
        gated: of gated MLPs, where they have others
        classified: transformers has a class with a classifier
        fits: it has a model of this configuration, if no family before it has
        prefix: of the backbone, in classes with a classifier
        spellings: names that some versions write, by patterns, and what they stand for
        key_bias: the key that says that keys have biases
        register_rows: registers have positions
        any_size: transformers runs it at the size of its processor, whatever config.json says
        square: transformers runs it on square images only
        resampling: how transformers resizes its positions
        reads: further fields, or a record of them
        writes: further keys of config.json
        processor: the class of its image processor, without `ImageProcessor`
        prepared: record of the preprocessing of the released models; used if no file says it
    """

    title: str
    names: Names
    gated: Names = field(default_factory=dict)
    classified: bool = True
    fits: Callable[[ViTConfig], bool] = lambda config: False
    prefix: str = ""
    spellings: dict[str, str] = field(default_factory=dict)
    key_bias: str = ""
    register_rows: bool = False
    any_size: bool = False
    square: bool = False
    resampling: str = "bicubic"
    reads: Callable[[StatedModel], Fields] | str = ""
    writes: Callable[[ViTConfig], Fields] = lambda config: {}
    processor: str = "ViT"
    prepared: str

    @property
    def model_type(self) -> str:
        """The key of config.json."""
        return self.title.split()[0]

    @property
    def classes(self) -> list[str]:
        """The names of its classes."""
        return self.title.split()[1:]

    @property
    def patch(self) -> str:
        """The name of the kernel of patches."""
        return first_name(self.names, "patch.weight")

    @property
    def has_projection(self) -> bool:
        """Whether its classes without a classifier have a projection into a space of texts."""
        return self.classes[-1].endswith("WithProjection")


def names_of(
    family: Family, config: ViTConfig, shapes: dict[str, Shape] | None = None, key_bias: bool = True
) -> Names:
    """Return the names of a model's tensors; of those of a file if there is one."""
    names = {**family.names, **(family.gated if config.ffn == "swiglu" else {})}
    if shapes is not None:
        names = found(shapes, names).names
    if not key_bias:
        query, _, value = parts_of(family.names, "qkv.bias")
        names |= table(f"qkv.bias keyless({query} {value})")
    return placed(names, True, True) if family.register_rows and config.registers else names


def derived(family: Family, names: str, title: str, **changes: Any) -> Family:
    """Return another family, whose names differ from this one's in some parts."""
    return replace(family, names=family.names | table(names), title=title, **changes)


def completed(model_type: str, content: Fields) -> Fields:
    """Return every key that matters, with the class's default where config.json leaves it out.

    Raises:
        WeightsError: a key that we do not know, or a value that is unsupported in any case.
    """
    defaults = DEFAULTS[model_type]
    for key, value in content.items():
        if key in NEUTRAL and value not in (*NEUTRAL[key], None):
            raise WeightsError(f"config.json: unsupported {key}={value!r}")
        if key not in {*defaults, *NEUTRAL} and not IDLE.fullmatch(key):
            raise WeightsError(
                f"config.json: unknown key {key} (value {value!r}) of {model_type}: if it has no "
                "effect on the model's outputs, remove it from the file"
            )
    given = {key: value for key, value in content.items() if value is not None}
    return {key: given.get(key, usual) for key, usual in defaults.items()}


def refuse(when: object, what: str) -> None:
    """Raise an error about what our model cannot represent, if it is so."""
    if when:
        raise WeightsError(f"unsupported {what}")


def our_value(key: str, value: Any) -> Any:
    """Return the value that our field has for a key's.

    Raises:
        WeightsError: our field has none.
    """
    if key in WORDS:
        words = WORDS[key]
        refuse(value not in [*words], f"{key}={value!r}: {', '.join(map(str, words))} are")
        return words[value]
    if not isinstance(value, list):
        return value
    if key == "patch_size":
        refuse(len(set(value)) != 1, f"{key}={value!r}: patches must be square")
        return value[0]
    return tuple(value)


def their_value(key: str, value: Any) -> Any:
    """Return the value of a key for our field's."""
    if key in WORDS:
        return next(word for word, own in WORDS[key].items() if own == value)
    return list(value) if isinstance(value, tuple) else value


def read_fields(stated: StatedModel) -> Facts:
    """Return the configuration that config.json and the tensors describe.

    Raises:
        WeightsError: it asks for something that our model cannot represent.
    """
    reads = stated.family.reads
    own = record(reads) if isinstance(reads, str) else reads(stated)
    fields = _shared_fields(stated.family, stated) | own
    facts = Facts().put("tensors", fields)
    for origin, keys in (("family", stated.content), ("file", stated.given)):
        told = {own for key, own in (KEYS | DECIDING).items() if key in keys}
        facts.origins |= dict.fromkeys(told & fields.keys(), origin)
    facts.origins["resampling"] = "family"
    return facts


def _shared_fields(family: Family, stated: StatedModel) -> Fields:
    """What keys mean in every family that has them."""
    content, shapes = stated.content, stated.shapes
    always = not family.gated and len(parts_of(family.names, "expand.weight")) > 1
    gated = always or any(content.get(key) for key in ("use_gated_mlp", "use_swiglu_ffn"))
    if gated and "use_swiglu_ffn" not in content:  # where config.json has no say
        act = content["hidden_act"]
        refuse(act != "silu", f"hidden_act={act!r} of a gated MLP: silu is")
    fields: Fields = {
        "ffn": "swiglu" if gated else "mlp",
        "resampling": family.resampling,
        "classes": shapes.get("/classifier.weight", (0,))[0],
        "pool": "token",
    }
    for key, own in KEYS.items():
        if key in content and not (gated and own == "gelu"):
            fields[own] = our_value(key, content[key])
    if "layer_scale" in fields:
        there = first_name(family.names, "scale1").format(n=0) in shapes
        fields["layer_scale"] = float(fields["layer_scale"]) or float(there)
    if "mlp_ratio" in content:
        hidden = int(content["hidden_size"] * content["mlp_ratio"])
        fields["mlp"] = (int(hidden * 2 / 3) + 7) // 8 * 8 if gated else hidden
    if "num_patches" in content:
        patches = content["num_patches"]
        side = round(patches**0.5)
        refuse(side**2 != patches, f"num_patches={patches}: no square")
        fields["image_size"] = side * fields["patch"]
    return fields


def write_content(family: Family, config: ViTConfig) -> Fields:
    """Return the config.json of a model.

    Raises:
        WeightsError: the family cannot represent the model.
    """
    model_type = family.model_type
    position = 2 if config.pool == "prefix" else int(config.classes > 0)
    if position >= len(family.classes):
        raise WeightsError(f"transformers' {model_type} has no classifier: save with classes=0")
    content = {"architectures": [family.classes[position]], "model_type": model_type}
    keys = {key: own for key, own in KEYS.items() if key in DEFAULTS[model_type]}
    content |= {key: their_value(key, getattr(config, own)) for key, own in keys.items()}
    return content | family.writes(config)
