"""Deltas: what fine-tuning changed, without the base it started from; in memory and as a file.

A model whose attention alone was fine-tuned shares two thirds of its weights with its base (Three
things, section 4): one base and a small file per task store them all.

The file is safetensors. The header's only entry, `vitlab-delta-1`, is a JSON object: the base's
identity, the model's configuration and provenance, the sha256 of every tensor, and the sha256 of
all that. (One entry, because safetensors writes several in any order, and the same delta should be
the same bytes.)
"""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import get_type_hints

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from vitlab.documents import parse_json
from vitlab.errors import WeightsError
from vitlab.files import staged_file
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.create import assemble
from vitlab.models.model import Model
from vitlab.models.seen import NOTHING, Seen
from vitlab.models.unlike import PREFIX, Unlike
from vitlab.progress import say
from vitlab.public_calls import public
from vitlab.recorded_paths import last_name, run_of, seen_by_others, strip_places
from vitlab.values import conform
from vitlab.weights.assembly import whole_state
from vitlab.weights.delta_base import DeltaBase
from vitlab.weights.formats.entry import same
from vitlab.weights.formats.format_api import Hints, Reading, TensorsOf
from vitlab.weights.identity import (
    as_bytes,
    base_of,
    check_provenance,
    checked,
    checksum,
    checksums,
    described,
    description,
)
from vitlab.weights.on_base import check_base, merged
from vitlab.weights.sharded import HEADER, Fields
from vitlab.weights.source import StoredTensors
from vitlab.weights.state import StateDict
from vitlab.weights.unlike_file import note_old, read_checked, read_unlike

VERSION = "vitlab-delta-1"
SEEN = "seen"  # beside the tensors: Model.seen, as int64
TYPES = get_type_hints(DeltaBase)


@dataclass(frozen=True, eq=False)
class Delta:
    """The tensors of a model that differ, in any bit, from those of its base.

    Attributes:
        config: the whole configuration of the model
        tensors: on the CPU; one whose shape or type changed is stored whole
        base: the model that the other tensors come from
        provenance: of the model
        seen: what the model has learned from
        unlike: how far an image is from that; None if it is not known
    """

    config: ModelConfig
    tensors: StateDict
    base: DeltaBase
    provenance: Fields
    seen: Seen = field(default_factory=lambda: NOTHING)
    unlike: Unlike | None = None

    @property
    def bytes(self) -> int:
        """Size of the tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def save(self, file: str | Path) -> Path:
        """Write one safetensors file, whole or not at all; `vitlab.load` reads it.

        Raises:
            DiskError: the file cannot be written; the message says why.
            WeightsError: the provenance is too long.
        """
        file = Path(file)
        source = self.base.source
        nearby = None
        if source is not None:
            nearby = seen_by_others(file.parent, source)
            if last_name(source) != source and nearby is None and run_of(str(file)) is None:
                say(
                    f"{file} names its base by its last name and fingerprint alone: keep it beside "
                    "the delta, or load that with --base (Python: base=…; to train or serve, first "
                    "vitlab export FILE --base BASE --to vitlab --out DIR)"
                )
        tensors = self.tensors | (self.unlike.tensors if self.unlike else {})
        if len(self.seen):
            tensors = tensors | {SEEN: torch.from_numpy(self.seen.view(np.int64).copy())}
        content = description(self.config) | {
            "base": asdict(replace(self.base, source=source and last_name(source), nearby=nearby)),
            "provenance": strip_places(self.provenance),
            "tensors": checksums(tensors),
        }
        name = content.pop("name")
        text = json.dumps({"content": content, "sha256": checksum(content)}, ensure_ascii=False)
        if len(text.encode()) > HEADER // 2:
            raise WeightsError(f"the provenance of {name} is too long for a delta: shorten it")
        with staged_file(file) as draft:
            save_file(tensors, draft, metadata={VERSION: text})
        return file

    def apply(self, base: Model) -> Model:
        """Return the model, in evaluation mode, on the base's device; the base does not change.

        Raises:
            WeightsError: this is not the base that the delta was made from.
        """
        check_base(self.base, base)
        whole = whole_state(base)
        device = next(iter(whole.values())).device
        tensors = merged(self.config, self.tensors, whole)
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        model = assemble(self.config, copies)
        model.provenance = dict(self.provenance)
        model.seen = self.seen
        model.unlike = self.unlike
        return model.to(device)


@public(model=Model, base=Model)
def delta(model: Model, base: Model) -> Delta:
    """Return what a model has that its base does not have.

    Args:
        model: fine-tuned from the base; its head, input size or type may differ
        base: as it was loaded; its source is taken from its provenance

    Returns:
        A `Delta`, independent of both: `.save(file)`, `.apply(base)`; `vitlab.load(file)`.

    Raises:
        WeightsError: one of them is fused.
    """
    theirs = whole_state(base)
    changed = {
        name: tensor.detach().to("cpu", copy=True).contiguous()
        for name, tensor in whole_state(model).items()
        if name not in theirs or not _equal(tensor, theirs[name])
    }
    about = dict(model.provenance)
    return Delta(model.config, changed, base_of(base), about, model.seen, model.unlike)


def reads(source: StoredTensors, hints: Hints, tensors_of: TensorsOf) -> Reading | None:
    """Recognize a file that `Delta.save` wrote; tensors that are not in it come from its base.

    Raises:
        WeightsError: it is damaged or of another version.
    """
    if not any(key.startswith(VERSION[:-1]) for key in source.metadata):
        return None
    try:
        if set(source.metadata) != {VERSION}:
            found = ", ".join(map(repr, sorted(source.metadata)))
            raise WeightsError(f"its header has the entries {found}, not {VERSION}")
        whole = parse_json(source.metadata[VERSION], "its header", WeightsError, HEADER)
        content = whole["content"]
        if whole != {"content": content, "sha256": checksum(content)}:
            raise WeightsError("its header does not match its checksum")
        sums = content["tensors"]
        if sorted(source.shapes) != sorted(sums):
            raise WeightsError("its tensors are not those in its header")
        base = DeltaBase(
            **{name: conform(content["base"][name], kind) for name, kind in TYPES.items()}
        )
        config = described(content, hints.choices)
        provenance = check_provenance(content["provenance"], "it")
    except Exception as error:  # a file may be hostile whatever its checksum says
        reason = str(error) or type(error).__name__
        raise WeightsError(f"{source.path} is a damaged delta: {reason}") from error
    seen = NOTHING
    if SEEN in sums:
        seen = read_checked(source, (SEEN,), sums)[0].numpy().view(np.uint64)
    return Reading(
        f"delta from {base.name}",
        config,
        [
            checked(same(name, name), sums, f"{source.path} is a damaged delta")
            for name in sums
            if name != SEEN and not name.startswith(PREFIX)
        ],
        {SEEN: "the images that it learned from", f"{PREFIX}.*": "how far an image is from them"},
        notes=note_old(source, sums),
        origins=dict.fromkeys(config.as_dict(), "file"),
        exact=True,
        provenance=provenance,
        base=base,
        seen=seen,
        unlike=read_unlike(source, config, sums),
    )


def _equal(one: Tensor, other: Tensor) -> bool:
    """Equality of every bit: a NaN equals itself, and -0 differs from 0."""
    alike = one.dtype == other.dtype and one.shape == other.shape
    return alike and torch.equal(as_bytes(one), as_bytes(other))
