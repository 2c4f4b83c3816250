"""ViTLab's own folder, which timm and transformers open too if they have the same model."""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from torch import Tensor

from vitlab.errors import UserError, WeightsError
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.weights.containers.open import open_source
from vitlab.weights.formats.catalog import format_named
from vitlab.weights.formats.entry import Entry, same
from vitlab.weights.formats.format_api import Files, Hints, Reading, TensorsOf, Writing
from vitlab.weights.formats.own_names import NAMED, VERSION, entries_of_library
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
from vitlab.weights.unlike_file import note_old, read_unlike

REWRITTEN = "transformers_version"  # a key of what transformers saved: our checksums are no more
FIRST = "blocks.0.attention.0.body.qkv.weight"  # which only our Vision Transformers have
# Stems and positions that a state dict does not explain, as others are by the names of `dialects`.
ODD = re.compile(r"(.*\.)?(positions\.(?!0\.table$)|stem\.(?!layers\.)).*")


def reads(source: StoredTensors, hints: Hints, tensors_of: TensorsOf) -> Reading | None:
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
    entries: Sequence[Entry] = [same(name, prefix + name) for name in tensors_of(config)]
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


def _checked(entries: Sequence[Entry], content: Fields, source: StoredTensors) -> Sequence[Entry]:
    """The tensors of a folder by its writer's names, each compared with its checksum."""
    ours = {name for entry in entries for name in entry.theirs}
    if content["format"] == NAMED and not ours <= source.shapes.keys():
        entries = entries_of_library(content)
    sums = content.get("tensors")
    if not isinstance(sums, dict):
        return entries
    advice = (
        ": copy the file again, or remove tensors and sha256 from its config.json if it was "
        "changed on purpose"
    )
    return [checked(entry, sums, str(source.path), advice) for entry in entries]


def writes(config: ModelConfig, provenance: Fields, tensors_of: TensorsOf) -> Writing:
    """Represent any model: by the names of timm or transformers if it opens there as the same."""
    content = description(config) | {"provenance": dict(provenance)}
    for name in ("timm", "transformers"):
        with suppress(UserError):
            theirs = format_named(name).writes(config, {}, tensors_of)
            if _is_same(config, theirs, tensors_of(config)):
                both = {"format": NAMED, "names": name} | content | theirs.files[CONFIG]
                return Writing(theirs.entries, theirs.files | {CONFIG: both})
    files: Files = {CONFIG: {"format": VERSION, "model_type": "vitlab"} | content}
    if isinstance(config, ViTConfig) and config.fit != "native":  # for transformers' pipelines
        files[PREPROCESSOR] = write_processor(config)
    return Writing([same(name, name) for name in tensors_of(config)], files)


def _is_same(config: ModelConfig, theirs: Writing, ours: Collection[str]) -> bool:
    """Whether another library's form has the model's positions at every size, and all its bits."""
    if not isinstance(config, ViTConfig) or theirs.stored != config.at_positions:
        return False
    keyless = config.qkv_bias and "bias" in config.positions  # BEiT's, but for the bias of keys
    stored = {name for entry in theirs.entries if entry.theirs for name in entry.ours}
    return not keyless and stored == {*ours}


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
