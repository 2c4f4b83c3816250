"""How exactly weights of other libraries load: largest differences to timm and transformers.

`OMP_NUM_THREADS=1 python benchmarks/exactness.py --depth 2`

Each model has the width, heads, patches and image size of a published one, and random numbers in
every tensor. The library itself writes the folder; then it and ViTLab load it and compute the same
image in float32. A line gives the largest difference of the logits, features or tokens, relative to
the largest number. Needs torch alone; a library that is not installed is left out.
"""

import argparse
import importlib
import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from measuring import machine, peer
from published import function_for, outputs, picture_for

import vitlab

# Family, and an architecture of timm with arguments beside `depth`.
TIMM: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("ViT, AugReg", "vit_small_patch16_224", {}),
    ("ViT, mean of the patches, registers", "vit_medium_patch16_reg1_gap_256", {}),
    ("hybrid", "vit_small_r26_s32_224", {}),
    ("DeiT, distilled", "deit_small_distilled_patch16_224", {}),
    ("DeiT III", "deit3_small_patch16_224", {}),
    ("two parallel branches", "vit_small_patch16_18x2_224", {}),
    ("BEiT", "beit_base_patch16_224", {}),
    ("BEiT-3", "beit3_base_patch16_224", {}),
    ("DINOv2", "vit_small_patch14_dinov2", {"img_size": 224}),
    ("DINOv2, registers", "vit_small_patch14_reg4_dinov2", {"img_size": 224}),
    ("DINOv2, SwiGLU", "vit_giant_patch14_dinov2", {"img_size": 112}),
    ("DINOv3", "vit_small_patch16_dinov3", {}),
    ("DINOv3, SwiGLU", "vit_small_plus_patch16_dinov3", {}),
    ("CLIP", "vit_base_patch32_clip_224", {}),
    ("CLIP, quick GELU", "vit_base_patch32_clip_quickgelu_224", {}),
    ("SigLIP", "vit_base_patch16_siglip_224", {}),
    ("EVA", "eva_large_patch14_196", {}),
    ("EVA-02", "eva02_small_patch14_224", {}),
    ("Perception Encoder, core", "vit_pe_core_tiny_patch16_384", {"img_size": 224}),
    ("Perception Encoder, spatial", "vit_pe_spatial_tiny_patch16_512", {"img_size": 224}),
    ("RoPE-ViT, axial", "vit_small_patch16_rope_224", {}),
    ("RoPE-ViT, axial and learned", "vit_small_patch16_rope_ape_224", {}),
    ("AIMv2", "aimv2_large_patch14_224", {}),
    ("norms after attention and MLP", "vit_base_patch16_rpn_224", {}),
)
# Family, class and fields of its configuration beside `num_hidden_layers`.
TRANSFORMERS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("ViT", "ViTForImageClassification", {}),
    ("DeiT with teacher", "DeiTForImageClassificationWithTeacher", {}),
    ("BEiT", "BeitForImageClassification", {"use_relative_position_bias": True}),
    ("data2vec", "Data2VecVisionForImageClassification", {"use_relative_position_bias": True}),
    ("MSN", "ViTMSNModel", {}),
    ("I-JEPA", "IJepaModel", {}),
    ("DINOv2", "Dinov2ForImageClassification", {}),
    ("DINOv2, registers", "Dinov2WithRegistersModel", {}),
    ("DINOv3", "DINOv3ViTModel", {"num_register_tokens": 4}),
    ("CLIP", "CLIPVisionModelWithProjection", {}),
    ("MetaCLIP 2", "MetaClip2VisionModelWithProjection", {}),
    ("SigLIP", "SiglipVisionModel", {}),
    ("SigLIP, classifier", "SiglipForImageClassification", {}),
)


def randomize(model: torch.nn.Module) -> None:
    """Add noise to every tensor, so that no zero or one hides a mistake."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))


def write_timm(name: str, arguments: dict[str, Any], folder: Path) -> None:
    """Write a folder as timm publishes them."""
    timm = importlib.import_module("timm")
    model = timm.create_model(name, **arguments)
    randomize(model)
    timm.models.save_for_hf(model, folder, model_args=arguments)


def write_transformers(name: str, fields: dict[str, Any], folder: Path) -> None:
    """Write a folder as transformers saves them."""
    kind = getattr(importlib.import_module("transformers"), name)
    config = kind.config_class(**fields)
    if hasattr(config, "vision_config"):
        for key, value in fields.items():
            setattr(config.vision_config, key, value)
    model = kind(config)
    randomize(model)
    model.save_pretrained(folder)


def difference(library: str, folder: Path) -> tuple[str, float]:
    """Return what was compared, and the largest difference relative to the largest number."""
    model = vitlab.load(folder)
    images = picture_for(model)
    compared, theirs = outputs(library, folder, images)
    with torch.inference_mode():
        result = function_for(model, compared)(images)
    return compared, float((result - theirs).abs().max() / theirs.abs().max())


def line(library: str, family: str, name: str, arguments: dict[str, Any]) -> str:
    """Return a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        write = write_timm if library == "timm" else write_transformers
        write(name, arguments, Path(folder))
        try:
            compared, most = difference(library, Path(folder))
        except vitlab.UserError as error:
            text = str(error).replace(f"{folder}/", "").replace(folder, "the folder")
            return f"| {family} | {library}, `{name}` | refused: {text} |"
    return f"| {family} | {library}, `{name}` | {most:.0e} of the {compared} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=2, help="blocks of each model")
    parser.add_argument("--only", default="", help="part of a family's name")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print(f"{machine('cpu')}, {args.depth} blocks\n")
    print("| family | written by | largest difference |\n| --- | --- | --- |")
    for library, table, key in (
        ("timm", TIMM, "depth"), ("transformers", TRANSFORMERS, "num_hidden_layers"),
    ):  # fmt: skip
        if peer(library) is None:
            continue
        for family, name, arguments in table:
            if args.only in family:
                print(line(library, family, name, arguments | {key: args.depth}), flush=True)


if __name__ == "__main__":
    main()
