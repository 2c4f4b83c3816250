"""A model as a folder: our own `config.json` and `model.safetensors`, or in another format."""

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from vitlab.errors import DiskError, WeightsError
from vitlab.files import is_empty, staged_folder, write_text
from vitlab.models.model import Model
from vitlab.public_calls import public
from vitlab.recorded_paths import (
    base_of_run,
    last_name,
    places,
    read_agreeing,
    run_of,
    strip_places,
)
from vitlab.weights.adapters import BASE
from vitlab.weights.assembly import empty, whole_state
from vitlab.weights.containers.parts import some
from vitlab.weights.formats.catalog import PEFT, format_named
from vitlab.weights.formats.entry import Entry, written
from vitlab.weights.formats.format_api import Hints, Writing, cannot, check_kept
from vitlab.weights.formats.own import sealed
from vitlab.weights.formats.transformers.families import FAMILIES
from vitlab.weights.hub import CARD, is_hub_name
from vitlab.weights.identity import fingerprint
from vitlab.weights.load import load, place_of, recognize
from vitlab.weights.matching import collect
from vitlab.weights.seen_file import write_seen
from vitlab.weights.sharded import (
    ADAPTER,
    ADAPTER_TENSORS,
    CONFIG,
    LIMIT,
    UNLIKE,
    beside,
    write_tensors,
)
from vitlab.weights.state import StateDict, unwrapped
from vitlab.weights.write_adapter import adapter_of

ARCHIVE = "model.npz"
GIVE = "give --base (Python: base=…)"
PARTS = (".json", ".safetensors", ".npz", ".npy", CARD)  # ends of names in a saved model's folder


@public(model=nn.Module, folder=(str, Path))
def save(
    model: nn.Module,
    folder: str | Path,
    shard_bytes: int = LIMIT,
    to: str = "vitlab",
    base: str | Path = "",
) -> Path:
    """Write a model's configuration and weights; `vitlab.load` reads them back bit for bit.

    The folder appears whole or not at all; a model saved there before is replaced.

    Args:
        model: any that is not fused; also in a wrapper of `torch.compile` or
            `DistributedDataParallel`
        folder: new, empty, or with a saved model
        shard_bytes: weights of more bytes are split into several files (5 GB)
        to: the format: `vitlab`, our own; `timm` or `transformers`, a folder that their loaders
            read; or `google`, one `model.npz`. Other formats than our own are read back and
            compared. `peft` is what LoRA changed, and the classifier, by the names of the library
            that the base is of
        base: that the model was tuned from, for `peft`; where the run says that it is, if not given

    What is written names data and base by their last names: no folders of this machine.

    Raises:
        OptionError: no such format.
        WeightsError: the folder contains other files too, or the format cannot represent the model.
        DiskError: the folder cannot be written.
    """
    model = unwrapped(model)
    folder = Path(folder)
    before = _find_base(model, base) if to == PEFT else None
    chosen = format_named(_library(before.source) if before else to)
    check_replaced(folder)
    state = whole_state(model)
    writing = chosen.writes(model.config, strip_places(model.provenance), empty)
    if writing.stored is not None and writing.stored != model.config:
        model = model.remade(writing.stored, state)
        state = model.state_dict()
    with staged_folder(folder) as draft:
        files = writing.files
        if before:
            family = FAMILIES.get(files[CONFIG].get("model_type", ""))
            spellings = family.spellings if family else {}
            head = model.head_names[0]
            old = before.state_dict()
            tensors, about = adapter_of(writing.entries, state, old, head, spellings)
            header = {"format": "pt", BASE: fingerprint(before)}
            save_file(tensors, draft / ADAPTER_TENSORS, metadata=header)
            files |= {ADAPTER: about | {"base_model_name_or_path": last_name(before.source)}}
        else:
            _write(draft, writing, state, shard_bytes)
        if to == "vitlab":
            if kept := model.unlike.tensors if model.unlike else {}:
                save_file(kept, draft / UNLIKE)
            files |= {CONFIG: sealed(files[CONFIG], state | kept)}
        write_seen(model.seen, draft)
        for name, content in files.items():
            (draft / name).write_text(_as_text(content), encoding="utf-8")
        if to not in ("vitlab", PEFT):
            _compare(model, writing.entries, draft, to)
    return folder


def check_replaced(folder: Path) -> None:
    """Refuse a folder with something else than a saved model, which would be lost.

    Raises:
        WeightsError: it says what is there.
    """
    if not folder.name:
        raise WeightsError(f"{folder} is the place of a folder: give the folder's name")
    if is_empty(folder):
        return
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    others = [each.name for each in inside if not (each.is_file() and each.name.endswith(PARTS))]
    if others or not {CONFIG, ARCHIVE, ADAPTER}.intersection(each.name for each in inside):
        what = some(others) or "no saved model"
        raise WeightsError(f"{folder} exists and contains {what}: choose a new or empty folder")


def _find_base(model: Model, given: str | Path) -> Model:
    """The base of an adapter: what the user gives, or that of the model's run, wherever it is.

    Raises:
        WeightsError: it is not known or not there, it is another model, or has the same layers.
    """
    about = model.provenance
    run = run_of(model.source) if model.source else None
    typed = str(about.get("base", ""))
    name = run or model.source or "the model"
    wanted = str(about.get("base_fingerprint") or "")
    revision = about.get("base_commit")
    found: list[Any] = [given] if given else []
    if not given and run is not None:
        typed, found = base_of_run(run)
    elif not given and typed:
        folder = Path(model.source).parent if model.source else Path()
        found = places(typed, None, folder, folder)
    if not given and is_hub_name(typed):
        found.append(typed)
    if not found:
        which = f"of {name}, and {typed} is not there" if typed else "that was tuned"
        raise WeightsError(f"to=peft needs the base {which}: {GIVE}")

    def read(place: str | Path) -> Model:
        return load(place, revision=revision if place == typed and is_hub_name(typed) else None)

    base, agrees = read_agreeing(
        found, read, lambda each: not wanted or fingerprint(each) == wanted
    )
    if not agrees:
        line = (
            f"{base.source} (fingerprint {fingerprint(base)[:12]}) is another model than the one "
            f"that {name} was tuned from ({wanted[:12]})"
        )
        if not given:
            raise WeightsError(f"{line}: {GIVE}")
        logging.getLogger("vitlab").warning(line)
    _check_tuned(model, base, name)
    return base


def _check_tuned(model: Model, base: Model, name: object) -> None:
    """Refuse a model that has all layers of its base, so that an adapter would have nothing."""
    mine = whole_state(model)
    theirs = whole_state(base)
    head = model.head_names[0]
    if all(
        key in theirs and torch.equal(each.cpu(), theirs[key])
        for key, each in mine.items()
        if not key.startswith(head)
    ):
        kept = "head_start" in model.provenance
        fitted = ", the one that was fitted to the base's features and kept" if kept else ""
        other = "; vitlab finetune --head-start zero keeps what LoRA changes" if kept else ""
        raise WeightsError(
            f"{name} has no LoRA to export: it has every layer of {base.source}, and a classifier"
            f"{fitted}; --to vitlab, timm or transformers writes base and classifier as one model"
            f"{other}"
        )


def _library(base: str | Path) -> str:
    """The format of a base, in whose names its adapters are written."""
    _, reading = recognize(place_of(base), Hints())
    kind = reading.format.partition(",")[0].lower()
    return kind if kind in ("vitlab", "transformers") else "timm"


def _write(draft: Path, writing: Writing, state: StateDict, shard_bytes: int) -> None:
    """Write a model's tensors under the other format's names."""
    tensors = written(writing.entries, state)
    if writing.archive:
        arrays: Any = {name: _as_array(each) for name, each in tensors.items()}
        np.savez(draft / writing.archive, **arrays)
    else:
        write_tensors(draft, tensors, shard_bytes)


def _as_array(tensor: Tensor) -> NDArray[Any]:
    """A tensor for NumPy, which has no bfloat16: float32 holds each of its numbers."""
    tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    return tensor.contiguous().cpu().numpy()


def _compare(model: Model, entries: Sequence[Entry], draft: Path, to: str) -> None:
    """Read a folder back: what the format could not represent is an error or a warning."""
    config = model.config
    source, reading = recognize(draft, Hints(image_size=config.image_size))
    lost = check_kept(to, config, reading.config)
    stored = collect(replace(reading, config=config, entries=entries, exact=True), source)
    again = collect(reading, source)  # as `load` will have them
    for name, own in model.state_dict().items():
        for found in (stored[name], again.get(name)):
            if found is None or found.shape != own.shape:  # with the other pool, which is zero
                continue
            kind = torch.promote_types(found.dtype, own.dtype)
            pair = [found.to(kind), own.cpu().to(kind)]
            if name.endswith(".qkv.bias") and not found.chunk(3)[1].any():  # void, or none
                pair = [torch.cat(each.chunk(3)[::2]) for each in pair]
            if not torch.equal(*pair):
                raise cannot(to, f"the values of {name} in this model{_round_numbers(pair)}")
    own = {
        f"temperature={model.temperature:.4g}": model.temperature != 1,
        "the thresholds of its classes": "thresholds" in model.provenance,
        "how far an image is from its training images": model.unlike,
    }
    lost += [what for what, there in own.items() if there]
    if lost:
        message = f"{to} cannot represent {', '.join(lost)}: left out"
        logging.getLogger("vitlab").warning(message)


def _round_numbers(pair: Sequence[Tensor]) -> str:
    """Why tensors of float64 differ, if rounding is all; files of others are read as float32."""
    read, own = pair
    if own.dtype != torch.float64 or not torch.equal(read.float(), own.float()):
        return ""
    return ", which need float64: save model.float(), or in our own format"


def own_folder(source: str | Path) -> Path:
    """Return the folder of a run's model, or of a saved one, whose provenance can be changed.

    Raises:
        WeightsError: it is something else; the message says how to save such a folder.
        DiskError: the folder cannot be written to.
    """
    path = Path(source) if is_hub_name(source) else place_of(source)
    content = beside(path)["config"] if path.is_dir() else {}
    if not str(content.get("format")).startswith("vitlab-"):
        raise WeightsError(
            f"{source} is neither a run nor a folder saved by vitlab, so that nothing can be kept "
            f"with it: run vitlab export {source} --to vitlab --out FOLDER, then use FOLDER"
        )
    if not os.access(path, os.W_OK):
        raise DiskError(f"cannot write {path}: permission denied; copy the folder first")
    return path


def save_provenance(model: Model, folder: Path) -> None:
    """Write a model's provenance into the folder that it was loaded from; the weights stay.

    Args:
        model: loaded from the folder
        folder: from `own_folder`

    Raises:
        DiskError: the folder cannot be written to; what was in it is intact.
    """
    content = beside(folder)["config"] | {"provenance": strip_places(model.provenance)}
    write_text(folder / CONFIG, _as_text(sealed(content)))


def _as_text(content: object) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
