"""preprocessor_config.json of transformers, read and written.

As in config.json, a key that is left out has the value of the class that the file names. Source:
the image processors of transformers 5.23.
"""

import re
from dataclasses import dataclass

from vitlab.data.decode.spectrograms import LOGARITHMS, RATE, normalization
from vitlab.errors import WeightsError
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.weights.formats.records import Facts, limits, record, records, words
from vitlab.weights.formats.transformers.config_json import Family
from vitlab.weights.sharded import Fields


def _theirs(content: Fields) -> Fields:
    """A record by their keys."""
    rest = {key: value for key, value in content.items() if key not in ("mean", "std")}
    return rest | {f"image_{name}": list(content[name]) for name in ("mean", "std")}


# What each class does if the file does not say. (`default_to_square`: what an integer `size` means;
# else it is the shorter side's.)
_CLASSES = """
    ViT
        @INCEPTION, resample 2, size {"height":224,"width":224}, do_center_crop false,
        crop_size {"height":224,"width":224}, do_normalize true, do_resize true, do_rescale true,
        rescale_factor 0.00392156862745098, default_to_square true
    Beit         @ViT, resample 3
    Bit
        @Beit, size {"shortest_edge":224}, default_to_square false, @OPENAI, do_center_crop true
    CLIP         @Bit
    ChineseCLIP  @Bit
    ConvNext     @Bit, @INCEPTION, do_center_crop false, size {"shortest_edge":384}, crop_pct 0.875
    DINOv3ViT    @ViT, @IMAGENET
    DeiT         @Beit, size {"height":256,"width":256}, do_center_crop true
    Siglip       @Beit, default_to_square false
    Siglip2      @ViT, size null, max_num_patches 256
    Tipsv2       @ViT, size {"height":448,"width":448}, do_normalize false
"""
CLASSES = {kind: _theirs(content) for kind, content in records(_CLASSES).items()}
# Keys that do not change an image of eight bits and three channels, or that are of other tasks.
IDLE = words("""
    image_processor_type feature_extractor_type processor_class auto_map _valid_processor_keys
    data_format input_data_format device return_tensors disable_grouping do_convert_rgb
    do_reduce_labels reduce_labels image_seq_length patch_size max_num_patches
    model_input_names
""")
# Keys that change images in a way that we do not follow, unless they are false.
OFF = words("""
    do_pad pad_size do_flip_channel_order do_thumbnail do_align_long_axis use_square_size
""")
SOUND = "AST"  # the processor of families that hear
FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # by Pillow's numbers
OWN_FILTERS = ("bilinear", "bicubic")
# Fields of ours by the keys that decide them.
DECIDED = limits("""
    interpolation resample, mean image_mean|do_normalize|do_rescale|rescale_factor,
    std image_std|do_normalize|do_rescale|rescale_factor,
    crop size|crop_size|do_center_crop|crop_pct, fit size|do_resize, tokens max_num_patches
""")


@dataclass(frozen=True)
class Preparation:
    """How a processor prepares images.

    Attributes:
        facts: fields of the configuration
        size: rows and columns of its results; None if the model's image size decides
        notes: what it does otherwise than we, a line each
    """

    facts: Facts
    size: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()


def read_processor(given: Fields, family: Family) -> Preparation:
    """Return what preprocessor_config.json states; the family's usual preparation without one."""
    if family.processor == SOUND:
        return _of_sounds(given)
    if not given:
        sure = family.model_type != "vit"  # many models are saved as this one
        return Preparation(Facts().put("family" if sure else "assumed", record(family.prepared)))
    stated = str(given.get("image_processor_type") or given.get("feature_extractor_type") or "")
    kind = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", stated)
    known = not kind or kind in CLASSES
    notes = [] if known else [f"unknown image processor {stated}: read as {family.processor}'s"]
    usual = CLASSES.get(kind, CLASSES[family.processor])
    content = usual | {key: value for key, value in given.items() if value is not None}
    followed = {*CLASSES["ViT"], *IDLE, "crop_pct", "rescale_offset", "offset"}
    notes += [
        f"{key}={value!r} is unsupported: images are prepared without it"
        for key, value in content.items()
        if key not in followed and (value or key not in OFF)
    ]
    number = content["resample"]
    resample = FILTERS[number] if number in range(len(FILTERS)) else "unknown"
    if resample not in OWN_FILTERS:
        notes.append(f"unsupported resample={number} ({resample}): bicubic takes its place")
    size, share, fit = _sizes(content, notes)
    fields = _normalization(content) | {"crop": share, "fit": fit, "interpolation": resample}
    if fit == "native":
        fields["tokens"] = content["max_num_patches"]
    facts = Facts().put("family" if known else "assumed", fields)
    told = {name for name, keys in DECIDED.items() if given.keys() & keys}
    facts.origins |= dict.fromkeys(told & fields.keys(), "file")
    if resample not in OWN_FILTERS:
        facts.put("assumed", "interpolation bicubic")
    return Preparation(facts, size, tuple(f"preprocessor_config.json: {note}" for note in notes))


def _of_sounds(given: Fields) -> Preparation:
    """What ASTFeatureExtractor states: logarithms of mel energies, as ours.

    Raises:
        WeightsError: another sampling rate.
    """
    if (rate := given.get("sampling_rate", RATE)) != RATE:
        raise WeightsError(f"unsupported sampling_rate={rate}: {RATE} is")
    mean, std = given.get("mean", LOGARITHMS["mean"]), 2 * given.get("std", LOGARITHMS["std"] / 2)
    if not given.get("do_normalize", True):
        mean, std = 0.0, 1.0
    return Preparation(Facts().put("file" if given else "family", normalization(mean, std)))


def _normalization(content: Fields) -> Fields:
    """Mean and std of pixels in [0, 1], whatever range they are rescaled to."""
    factor: float = 255 * (content["rescale_factor"] if content["do_rescale"] else 1)
    factor = 1.0 if abs(factor - 1) < 1e-6 else factor
    shift = float(bool(content.get("rescale_offset") or content.get("offset")))
    mean, std = content["image_mean"], content["image_std"]
    if not content["do_normalize"]:
        mean, std = 0.0, 1.0
    means, stds = (each if isinstance(each, list | tuple) else [each] for each in (mean, std))
    return {
        "mean": tuple((each + shift) / factor for each in means),
        "std": tuple(each / factor for each in stds),
    }


def _sizes(content: Fields, notes: list[str]) -> tuple[tuple[int, int] | None, float, str]:
    """Size of the results, their share of the resized image, and how that was resized."""
    size = content["size"]
    if size is None:
        return None, 1.0, "native"
    if isinstance(size, int):
        keys = ("height", "width") if content["default_to_square"] else ("shortest_edge",)
        size = dict.fromkeys(keys, size)
    elif isinstance(size, list):
        size = {"height": size[0], "width": size[1]}
    if not content["do_resize"]:
        notes.append("do_resize is false, but images are resized to the model's size here")
    edge = size.get("shortest_edge")
    resized, fit = (
        ((edge, edge), "crop") if edge else ((size.get("height"), size.get("width")), "squash")
    )
    if edge and size.get("longest_edge"):
        notes.append(
            f"longest_edge of size={size!r} is unsupported: images keep their shorter side"
        )
    if not edge and not size.get("height"):
        notes.append(f"size={size!r} is unsupported: images are fitted to the model's size")
        return None, 1.0, "crop"
    if edge and "crop_pct" in content:  # ConvNeXt's: no crop from 384 pixels on
        if edge >= 384:
            return resized, 1.0, "squash"
        return resized, edge / int(edge / content["crop_pct"]), fit
    if not content["do_center_crop"]:
        if edge:
            notes.append("without a crop, images keep their aspect; here they are center-cropped")
        return resized, 1.0, fit
    inner = content["crop_size"]
    sides = (inner, inner) if isinstance(inner, int) else (inner["height"], inner["width"])
    share = min(sides) / min(resized)
    if share > 1 or (not edge and sides[0] * resized[1] != sides[1] * resized[0]):
        notes.append(f"crop_size={inner!r} of size={size!r} is unsupported: fitted instead")
    return (sides[0], sides[1]), min(share, 1.0), fit


def write_processor(config: ViTConfig) -> Fields:
    """Return the file's content for a model; its crop is a share of the shorter side."""
    shape = dict(zip(("height", "width"), config.size, strict=True))
    cropped = config.fit == "crop"
    plain = not cropped and config.crop == 1
    kind = "CLIP" if cropped else "ViT" if plain else "DeiT"
    switches = ("do_resize", "do_rescale", "rescale_factor", "do_normalize")
    content = {
        "image_processor_type": f"{kind}ImageProcessor",
        **{key: CLASSES["ViT"][key] for key in switches},
        **_theirs({"mean": config.mean, "std": config.std}),
        "resample": FILTERS.index(config.interpolation),
    }
    if plain:
        return content | {"size": shape}
    whole = {name: int(side / config.crop + 1e-6) for name, side in shape.items()}
    size = {"shortest_edge": min(whole.values())} if cropped else whole
    return content | {"size": size, "do_center_crop": True, "crop_size": shape}
