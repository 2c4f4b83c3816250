"""ViTLab's own folder, which timm and transformers open too if they have the same model."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from vitlab.errors import UserError, WeightsError
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.unlike import NAMES, OLD, Unlike
from vitlab.weights.assembly import empty
from vitlab.weights.containers.open import open_source
from vitlab.weights.formats.catalog import format_named
from vitlab.weights.formats.entries import Entry, same
from vitlab.weights.formats.format_api import Files, Hints, Reading, Writing
from vitlab.weights.formats.transformers.processor import write_processor
from vitlab.weights.identity import (
    check_provenance,
    checked,
    checksum,
    checksums,
    described,
    description,
)
from vitlab.weights.sharded import CONFIG, PREPROCESSOR, UNLIKE, Fields, beside
from vitlab.weights.source import StoredTensors

VERSION = "vitlab-1"
NAMED = "vitlab-2"  # the same with the names and keys of another library, which `names` says
REWRITTEN = "transformers_version"  # a key of what transformers saved: our checksums are no more
FIRST = "blocks.0.attention.0.body.qkv.weight"  # which only our Vision Transformers have
# Stems and positions that a state dict does not explain, as others are by the names of `dialects`.
ODD = re.compile(r"(.*\.)?(positions\.(?!0\.table$)|stem\.(?!layers\.)).*")


def reads(source: StoredTensors, hints: Hints) -> Reading | None:
    """Recognize a folder that `vitlab.save` wrote, or transformers' `Trainer` with our adapter.

    What transformers wrote of another library's form of such a folder is theirs alone.

    Raises:
        WeightsError: it is damaged or of another version.
    """
    first = next((n for n in sorted(source.shapes, key=len) if n.endswith(FIRST)), "")
    folder = source.path if source.path.is_dir() else source.path.parent
    content = source.config or (beside(folder)["config"] if first else {})
    version, rewritten = str(content.get("format", "")), REWRITTEN in content
    if not version.startswith("vitlab-") or (rewritten and content["model_type"] != "vitlab"):
        if first and (odd := next(filter(ODD.fullmatch, source.shapes), "")):
            raise WeightsError(
                f"{source.path} is of ViTLab, but tensors alone do not explain {odd}: save the "
                "model with vitlab.save(model, FOLDER)"
            )
        return None
    file = folder / CONFIG
    if version not in (VERSION, NAMED):
        raise WeightsError(
            f"{file} has format {version!r}, but this version of ViTLab reads formats up to "
            f"{NAMED!r}: pip install -U vitlab"
        )
    try:
        config = described(content, hints.choices)
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{file} describes no model: {error}") from error
    summed = "sha256" in content and not rewritten  # who edits a file removes it
    if summed and sealed(content)["sha256"] != content["sha256"]:
        raise WeightsError(
            f"{file} does not match its checksum: copy it again, or remove sha256 from it if it "
            "was edited on purpose"
        )
    prefix = first.removesuffix(FIRST) if first else "model." * rewritten
    entries: Sequence[Entry] = [same(name, prefix + name) for name in empty(config)]
    unlike = None
    notes: tuple[str, ...] = ()
    if source.config == content and not (prefix or rewritten):  # else a state dict, or a module
        entries = _checked(entries, content, source)
        if (folder / UNLIKE).is_file() and isinstance(sums := content.get("tensors"), dict):
            unlike = read_unlike(open_source(folder / UNLIKE), config, sums)
            notes = note_old(source, sums)
    provenance = content.get("provenance")
    return Reading(
        "ViTLab",
        config,
        entries,
        {f"(?!{re.escape(prefix)}).*": "outside the model"} if prefix else {},
        origins=dict.fromkeys(config.as_dict(), "file"),
        notes=notes,
        exact=True,
        provenance=None if provenance is None else check_provenance(provenance, file),
        unlike=unlike,
    )


def read_unlike(source: StoredTensors, config: ModelConfig, sums: Fields) -> Unlike | None:
    """Return what a file keeps of the training images; None if nothing.

    Args:
        source: a delta, or the file beside a folder's tensors
        config: of the model
        sums: the sha256 of all tensors that were saved

    Raises:
        WeightsError: it is damaged, or does not fit the model.
    """
    if NAMES[0] not in sums:
        return None
    layer, *tensors = read_checked(source, NAMES, sums)
    shapes = [tuple(each.shape) for each in tensors]
    number = int(layer) if layer.dtype == torch.int64 and layer.numel() == 1 else 0
    width = config.layer_width(number)
    axes = (*shapes[1], 0, 0)[1]
    count = (*shapes[3], 0)[0]
    wanted = [(width,), (width, axes), (axes + 1,), (count, width), (1,)]
    if not width or not axes or not count or shapes != wanted:
        raise WeightsError(
            f"{source.path}: {NAMES[2]} {shapes[1]} of layer {number} does not fit {config.name}"
        )
    real = all(each.dtype == torch.float32 and each.isfinite().all() for each in tensors)
    if not real or not tensors[-1] > 0:
        raise WeightsError(f"{source.path}: {NAMES[2]} and {NAMES[5]} are no axes and no distance")
    return Unlike(number, *tensors)


def note_old(source: StoredTensors, sums: Fields) -> tuple[str, ...]:
    """Return the line for a file with the distance that models had before; none for others."""
    if OLD not in sums:
        return ()
    return (
        f"{source.path}: how far an image is from the training images is left out, since it is "
        "measured otherwise now: vitlab probe or vitlab finetune, once more, gives a model with it",
    )


def read_checked(source: StoredTensors, names: tuple[str, ...], sums: Fields) -> list[Tensor]:
    """Return tensors beside a model's, which are compared with their sha256.

    Raises:
        WeightsError: one is damaged.
    """
    entry = checked(Entry(names, names, list, list), sums, str(source.path))
    return entry.read([source.read(name, exact=True) for name in names])


def _checked(entries: Sequence[Entry], content: Fields, source: StoredTensors) -> Sequence[Entry]:
    """The tensors of a folder by its writer's names, each compared with its checksum."""
    ours = {name for entry in entries for name in entry.theirs}
    if content["format"] == NAMED and not ours <= source.shapes.keys():
        entries = _named(content)
    sums = content.get("tensors")
    if not isinstance(sums, dict):
        return entries
    advice = (
        ": copy the file again, or remove tensors and sha256 from its config.json if it was "
        "changed on purpose"
    )
    return [checked(entry, sums, str(source.path), advice) for entry in entries]


def in_own_names(source: StoredTensors) -> StoredTensors:
    """Return a folder of `NAMED` by our names, which an adapter around our own model has."""
    entries = {name: entry for entry in _named(source.config) for name in entry.ours}

    def numbers(name: str) -> Tensor:
        entry = entries[name]
        made = entry.read([source.numbers(each) for each in entry.theirs])
        return made[entry.ours.index(name)]

    shapes = {
        name: tuple(tensor.shape) for name, tensor in empty(described(source.config, {})).items()
    }
    return replace(source, shapes=shapes, stored={}, numbers=numbers)


def _named(content: Fields) -> Sequence[Entry]:
    """Our tensors by the names that another library's writer gives them."""
    return format_named(content["names"]).writes(described(content, {}), {}).entries


def writes(config: ModelConfig, provenance: Fields) -> Writing:
    """Represent any model: by the names of timm or transformers if it opens there as the same."""
    content = description(config) | {"provenance": dict(provenance)}
    for name in ("timm", "transformers"):
        with suppress(UserError):
            theirs = format_named(name).writes(config, {})
            if _is_same(config, theirs):
                both = {"format": NAMED, "names": name} | content | theirs.files[CONFIG]
                return Writing(theirs.entries, theirs.files | {CONFIG: both})
    files: Files = {CONFIG: {"format": VERSION, "model_type": "vitlab"} | content}
    if isinstance(config, ViTConfig) and config.fit != "native":  # for transformers' pipelines
        files[PREPROCESSOR] = write_processor(config)
    return Writing([same(name, name) for name in empty(config)], files)


def _is_same(config: ModelConfig, theirs: Writing) -> bool:
    """Whether another library's form has the model's positions at every size, and all its bits."""
    if not isinstance(config, ViTConfig) or theirs.stored != config.at_positions:
        return False
    keyless = config.qkv_bias and "bias" in config.positions  # BEiT's, but for the bias of keys
    stored = {name for entry in theirs.entries if entry.theirs for name in entry.ours}
    return not keyless and stored == empty(config).keys()


def sealed(content: Fields, tensors: Mapping[str, Tensor] | None = None) -> Fields:
    """Return the content of config.json with checksums, by which damage is recognized.

    Args:
        content: without checksums, or with older ones
        tensors: of the model; None if those are the same as before
    """
    rest = {key: value for key, value in content.items() if key != "sha256"}
    if tensors is not None:
        rest["tensors"] = checksums(tensors)
    return rest | {"sha256": checksum(rest)}
