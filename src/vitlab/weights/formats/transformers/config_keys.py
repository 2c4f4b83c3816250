"""Keys of config.json: what each class takes for one that is left out, and which have no effect.

Released files leave out what equals the class's default. Every key of a class is in one of the
tables; any other key is refused, because it may change what the model computes.

Source: the configuration classes of transformers 5.23, and keys of files that older versions wrote.
"""

from collections.abc import Collection

from vitlab.errors import WeightsError
from vitlab.weights.formats.transformers.family import Content

_VIT: Content = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "image_size": 224,
    "patch_size": 16, "num_channels": 3, "qkv_bias": True,
}  # fmt: skip
_POOLER: Content = {"pooler_output_size": None, "pooler_act": "tanh"}
_BEIT: Content = {key: value for key, value in _VIT.items() if key != "qkv_bias"} | {
    "use_absolute_position_embeddings": False, "use_relative_position_bias": False,
    "use_shared_relative_position_bias": False, "layer_scale_init_value": 0.1,
    "use_mean_pooling": True,
}  # fmt: skip
_DINOV2: Content = {key: value for key, value in _VIT.items() if key != "intermediate_size"} | {
    "layer_norm_eps": 1e-6, "patch_size": 14, "mlp_ratio": 4, "layerscale_value": 1.0,
    "use_swiglu_ffn": False,
}  # fmt: skip
_CLIP: Content = {key: value for key, value in _VIT.items() if key != "qkv_bias"} | {
    "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "patch_size": 32, "projection_dim": 512,
}  # fmt: skip
_TOWER: Content = {key: value for key, value in _CLIP.items() if key != "projection_dim"} | {
    "patch_size": 16,
}  # fmt: skip
_IDEFICS: Content = {key: value for key, value in _VIT.items() if key != "qkv_bias"} | {
    "hidden_size": 1152, "num_attention_heads": 16, "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6, "patch_size": 32,
}  # fmt: skip
_SIGLIP: Content = {key: value for key, value in _VIT.items() if key != "qkv_bias"} | {
    "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "vision_use_head": True,
}  # fmt: skip
# What each class takes for a key that config.json leaves out; all of them are read.
DEFAULTS: dict[str, Content] = {
    "aimv2_vision_model": {k: v for k, v in _VIT.items() if k != "layer_norm_eps"} | {
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 8,
        "intermediate_size": 2816, "patch_size": 14, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "qkv_bias": False, "mlp_bias": False, "use_head": True, "is_native": False,
    },
    "altclip_vision_model": _CLIP,
    "beit": _BEIT,
    "chinese_clip_vision_model": _CLIP,
    "clip_vision_model": _CLIP,
    "clipseg_vision_model": {k: v for k, v in _CLIP.items() if k != "projection_dim"},
    "data2vec-vision": _BEIT,
    "deit": _VIT | _POOLER,
    "dinov2": _DINOV2,
    "dinov2_with_registers": _DINOV2 | {"patch_size": 16, "num_register_tokens": 4},
    "dinov3_vit": {key: value for key, value in _VIT.items() if key != "qkv_bias"} | {
        "hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 6,
        "layer_norm_eps": 1e-5, "layerscale_value": 1.0, "use_gated_mlp": False,
        "num_register_tokens": 0, "rope_theta": 100.0, "rope_parameters": None,
        "query_bias": True, "key_bias": False, "value_bias": True, "proj_bias": True,
        "mlp_bias": True,
    },
    "git_vision_model": _TOWER,
    "idefics2_vision": _IDEFICS | {"hidden_size": 768, "num_attention_heads": 12},
    "idefics3_vision": _IDEFICS,
    "ijepa": _VIT,
    "intern_vit_6b": _VIT | {
        "layer_norm_eps": 1e-6, "patch_size": 14, "norm_type": "layer_norm", "qkv_bias": False,
    },
    "internvl_vision": {key: value for key, value in _VIT.items() if key != "qkv_bias"} | {
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
        "intermediate_size": 4096, "layer_norm_eps": 1e-6, "image_size": [448, 448],
        "patch_size": [14, 14], "attention_bias": False, "norm_type": "layer_norm",
        "layer_scale_init_value": 0.1, "use_mean_pooling": True,
        "use_absolute_position_embeddings": True,
    },
    "metaclip_2_vision_model": _CLIP,
    "owlv2_vision_model": _TOWER | {"image_size": 768},
    "owlvit_vision_model": _TOWER | {"image_size": 768, "patch_size": 32},
    "siglip_vision_model": _SIGLIP,
    "siglip2_vision_model": {k: v for k, v in _SIGLIP.items() if k != "image_size"} | {
        "num_patches": 256,
    },
    "tipsv2_vision_model": _DINOV2 | {"image_size": 448, "num_register_tokens": 1},
    "smolvlm_vision": _IDEFICS,
    "vit": _VIT | _POOLER,
    "vit_mae": _VIT,
    "vit_msn": _VIT | {"layer_norm_eps": 1e-6},
    "vitpose_backbone": {key: value for key, value in _VIT.items() if key != "intermediate_size"}
    | {"image_size": [256, 192], "patch_size": [16, 16], "mlp_ratio": 4},
}  # fmt: skip
# Keys of a class that no output of the model depends on: of training, of another head, of stages
# of a backbone, or a second name of something that is stored.
_TRAINED = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "dropout",
    "initializer_range", "initializer_factor", "drop_path_rate",
)  # fmt: skip
_STAGES = ("stage_names", "out_features", "out_indices", "reshape_hidden_states")
_HEADS = (
    "pool_scales", "use_auxiliary_head", "auxiliary_loss_weight",
    "auxiliary_channels", "auxiliary_num_convs", "auxiliary_concat_input",
    "semantic_loss_ignore_index", "segmentation_indices", "add_fpn", "use_mask_token",
)  # fmt: skip
_DECODER = (
    "decoder_num_attention_heads", "decoder_hidden_size", "decoder_num_hidden_layers",
    "decoder_intermediate_size", "mask_ratio", "norm_pix_loss",
)  # fmt: skip
IDLE: dict[str, tuple[str, ...]] = {
    "aimv2_vision_model": ("projection_dropout",),
    "beit": (*_STAGES, *_HEADS),
    "clipseg_vision_model": ("projection_dim",),
    "data2vec-vision": (*_STAGES, *_HEADS),
    "dinov2": (*_STAGES, "apply_layernorm", "use_mask_token", "intermediate_size"),
    "dinov2_with_registers": (
        *_STAGES, "apply_layernorm", "intermediate_size", "interpolate_antialias",
        "interpolate_offset",
    ),
    "dinov3_vit": (
        *_STAGES, "apply_layernorm", "pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale",
        "return_class_token",
    ),
    "ijepa": ("pooler_output_size", "pooler_act", "mlp_ratio"),
    "intern_vit_6b": ("use_flash_attn",),
    "internvl_vision": ("projection_dropout", "use_mask_token"),
    "siglip_vision_model": ("projection_dim", "projector_hidden_act", "num_image_tokens"),
    "siglip2_vision_model": ("projection_dim",),
    "tipsv2_vision_model": (*_STAGES, "apply_layernorm"),
    "vit_mae": _DECODER,
    "vitpose_backbone": (*_STAGES, "part_features"),
}  # fmt: skip
# Keys of every class: of bookkeeping, of tasks, and of text generation.
BOOKKEEPING = frozenset(
    (
        *_TRAINED, "_commit_hash", "_name_or_path", "name_or_path", "transformers_version",
        "architectures", "model_type", "auto_map", "torch_dtype", "dtype", "id2label", "label2id",
        "num_labels", "problem_type", "finetuning_task", "task_specific_params",
        "chunk_size_feed_forward", "output_hidden_states", "output_attentions", "return_dict",
        "use_return_dict", "use_cache", "torchscript", "use_bfloat16", "gradient_checkpointing",
        "encoder_stride", "vocab_size", "_attn_implementation", "_attn_implementation_autoset",
        "_attn_implementation_internal",
        "attn_implementation", "tf_legacy_loss", "tokenizer_class", "prefix",
        "is_encoder_decoder", "is_decoder", "add_cross_attention", "cross_attention_hidden_size",
        "tie_encoder_decoder", "tie_word_embeddings", "tie_last_hidden_states",
        "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "decoder_start_token_id",
        "diversity_penalty", "do_sample", "early_stopping", "encoder_no_repeat_ngram_size",
        "eos_token_id", "exponential_decay_length_penalty", "forced_bos_token_id",
        "forced_eos_token_id", "length_penalty", "max_length", "min_length",
        "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences",
        "output_scores", "pad_token_id", "remove_invalid_values", "repetition_penalty",
        # ours, in a folder of `vitlab.save` that transformers opened and saved again
        "format", "names", "name", "kind", "model", "provenance", "tensors", "sha256",
        "return_dict_in_generate", "sep_token_id", "suppress_tokens", "temperature", "top_k",
        "top_p", "typical_p",
    )
)  # fmt: skip
# Keys that some files have, and the only values that ours has.
NEUTRAL: Content = {
    "pruned_heads": ({}, None), "quantization_config": (None,), "use_bias": (False,),
    "use_qk_norm": (False,), "qk_normalization": (False,), "num_experts": (1,),
}  # fmt: skip


def check_keys(model_type: str, content: Content, known: Collection[str]) -> None:
    """Refuse keys that are neither known nor bookkeeping.

    Raises:
        WeightsError: the first of them.
    """
    for key, value in content.items():
        if key not in known and key not in BOOKKEEPING:
            raise WeightsError(
                f"config.json: unknown key {key} (value {value!r}) of {model_type}: if it has no "
                "effect on the model's outputs, remove it from the file"
            )


def completed(model_type: str, content: Content) -> Content:
    """Return every key that matters, with the class's default where config.json leaves it out.

    Raises:
        WeightsError: a key that we do not know, or a value that is unsupported in any case.
    """
    defaults = DEFAULTS[model_type]
    for key, value in content.items():
        if key in NEUTRAL and value not in NEUTRAL[key]:
            raise WeightsError(f"config.json: unsupported {key}={value!r}")
    check_keys(model_type, content, {*defaults, *IDLE.get(model_type, ()), *NEUTRAL})
    return defaults | {
        key: defaults[key] if value is None else value
        for key, value in content.items()
        if key in defaults
    }
