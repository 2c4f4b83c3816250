"""A delta as a file: safetensors with a checksum over everything, and the way back to its base.

The header's only entry, `vitlab-delta-1`, is a JSON object: the base's identity, the model's
configuration and provenance, the sha256 of every tensor, and the sha256 of all that. (One entry,
because safetensors writes several in any order, and the same delta should be the same bytes.)
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitlab.errors import UserError
from vitlab.files import staged_file
from vitlab.models.config import ModelConfig
from vitlab.models.create import Model
from vitlab.weights.delta import Base, Delta
from vitlab.weights.fingerprint import fingerprint, tensor_sha256
from vitlab.weights.formats.own import KINDS
from vitlab.weights.hub import fetch, is_hub_name
from vitlab.weights.save import description, whole_state
from vitlab.weights.sharded import HEADER, stored_names

FORMAT = "vitlab-delta-1"
_MARK = FORMAT.rstrip("1").encode()
DEEPEST = 8  # a delta's base may be a delta
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def write(delta: Delta, file: Path) -> Path:
    """Write a delta; the same one gives the same bytes."""
    base = asdict(replace(delta.base, nearby=_nearby(delta.base.source, file)))
    about = description(delta.config)
    content = {
        "base": base,
        "kind": about["kind"],
        "model": about["model"],
        "provenance": delta.provenance,
        "tensors": {name: tensor_sha256(tensor) for name, tensor in delta.tensors.items()},
    }
    text = json.dumps({"content": content, "sha256": _checksum(content)}, ensure_ascii=False)
    if len(text.encode()) > HEADER // 2:
        raise UserError(f"the provenance of {about['name']} is too long for the header of a delta")
    with staged_file(file) as draft:
        save_file(delta.tensors, draft, metadata={FORMAT: text})
    return file


def is_delta(source: str | Path) -> bool:
    """Whether this is a file that `Delta.save` wrote, of this version or another, whole or not."""
    try:
        if not Path(source).is_file():
            return False
        with Path(source).open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            return _MARK in stream.read(min(length, HEADER))
    except (OSError, ValueError):  # no name for a file, or one that cannot be read
        return False


def read(file: Path) -> Delta:
    """A delta, if every bit of it is as it was written.

    Raises:
        ValueError: the file is damaged or of another version.
    """
    names = stored_names(file)
    try:
        with safe_open(file, framework="pt") as stored:
            content = _content(stored.metadata() or {})
            if sorted(names) != sorted(content["tensors"]):
                raise UserError("its tensors are not those that were written")
            # copies: the file may change while the model is in use
            tensors = {name: stored.get_tensor(name).clone() for name in sorted(names)}
        _check(tensors, content["tensors"])
        config: ModelConfig = KINDS[content["kind"]].from_dict(content["model"])
        return Delta(config, tensors, _base(content["base"]), dict(content["provenance"]))
    except (*DAMAGE, SafetensorError) as error:
        raise UserError(f"{file} is a damaged delta: {_line(error)}") from error


def load_delta(file: str | Path, base: Model | str | Path | None = None) -> Any:
    """The model of a delta, in evaluation mode.

    Args:
        file: what `Delta.save` wrote
        base: the model it was made from, or where that is; None for where it was then: the same
            path or hub name, the same place as seen from the delta, or beside the delta

    Raises:
        ValueError: the file is damaged, or its base is not found or is another.
    """
    return _load(Path(file), base, ())


def _load(file: Path, base: Model | str | Path | None, above: tuple[Path, ...]) -> Model:
    found, here = read(file), file.resolve()
    if here in above or len(above) == DEEPEST:
        raise UserError(f"{file} is a delta of deltas without end")
    if base is not None and not isinstance(base, str | Path):
        return found.apply(base)
    reason = "it was not found"
    for source in [base] if base is not None else _candidates(found.base, file):
        try:
            for number, model in enumerate(_attempts(source, found.base, (*above, here))):
                if fingerprint(model) == found.base.fingerprint:
                    return found.onto(whole_state(model))
                if not number:
                    reason = f"{source} is {Base.of(model)}"
        except UserError as error:
            reason = str(error)
    raise UserError(f"{file} needs its base {found.base}: {reason}; say where it is with base=")


def _candidates(base: Base, file: Path) -> Iterator[str | Path]:
    """Where the base may be: files and folders that exist, or its name on the hub."""
    if base.source is None:
        return
    folder = file.parent
    places = [Path(base.source), folder / base.source, folder / Path(base.source).name]
    if base.nearby is not None:
        places.insert(1, folder / base.nearby)
    kept = [place for place in places if place.is_dir() or place.is_file()]
    yield from {place.resolve(): place for place in kept}.values()
    if is_hub_name(base.source):
        yield base.source


def _attempts(source: str | Path, base: Base, above: tuple[Path, ...]) -> Iterator[Model]:
    """The model there; then with the input size, and the zero head, that the base had."""
    from vitlab.weights.load import load  # it loads deltas, and so builds on this file

    if is_hub_name(source):
        source = fetch(str(source), base.commit if str(source) == base.source else None)
    model = _load(Path(source), None, above) if is_delta(source) else load(source)
    yield model
    with suppress(UserError):  # not every model can be changed so
        yield load(source, image_size=base.image_size)
        yield load(source, image_size=base.image_size, classes=base.classes)


def _nearby(source: str | None, file: Path) -> str | None:
    """A path as seen from the folder of a file."""
    if source is None or not Path(source).exists():
        return None
    return os.path.relpath(Path(source).resolve(), file.parent.resolve())


def _content(metadata: dict[str, str]) -> dict[str, Any]:
    if set(metadata) != {FORMAT}:
        raise UserError(f"its header holds {', '.join(map(repr, sorted(metadata)))}, not {FORMAT}")
    whole = json.loads(metadata[FORMAT])
    if set(whole) != {"content", "sha256"} or _checksum(whole["content"]) != whole["sha256"]:
        raise UserError("its header does not match its checksum")
    return dict(whole["content"])


def _base(values: dict[str, Any]) -> Base:
    """Whom a file names as its base; nothing in it is trusted."""
    size = values["image_size"]
    size = tuple(size) if isinstance(size, list) else size
    texts = [values[key] for key in ("fingerprint", "name")]
    texts += [values[key] for key in ("source", "commit", "nearby") if values[key] is not None]
    numbers = [values["classes"] + 1, *(size if isinstance(size, tuple) else (size,))]
    if not all(isinstance(text, str) and text.isprintable() for text in texts):
        raise UserError("its base is not named by text")
    if not all(isinstance(number, int) and number > 0 for number in numbers):
        raise UserError("its base has no number of classes or pixels")
    return Base(**values | {"image_size": size})


def _checksum(content: dict[str, Any]) -> str:
    plain = json.loads(json.dumps(content))  # keys as JSON has them
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _check(tensors: dict[str, Tensor], checksums: dict[str, str]) -> None:
    for name, tensor in tensors.items():
        if tensor_sha256(tensor) != checksums[name]:
            raise UserError(f"tensor {name!r} does not match its checksum")
        if not torch.isfinite(tensor).all():
            raise UserError(f"tensor {name!r} holds NaN or infinite numbers")


def _line(error: BaseException) -> str:
    """An error's message in one line."""
    return " ".join(str(error).split()) or type(error).__name__
