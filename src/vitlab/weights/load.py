"""Any released ViT as our one model, with the outputs of its original implementation."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitlab.errors import HubError, UserError, WeightsError
from vitlab.files import MODEL_FOLDER
from vitlab.images import Size
from vitlab.models.model import Model
from vitlab.weights.adapters import is_adapter, unaltered, with_adapter
from vitlab.weights.assembly import fitted, whole_state
from vitlab.weights.containers.open import dropped, open_source
from vitlab.weights.deltas import Delta, check_base, merged
from vitlab.weights.formats.catalog import FORMATS
from vitlab.weights.formats.origins import Origin, warning
from vitlab.weights.formats.room import Hints, Reading, names_of
from vitlab.weights.hub import PREFIXES, describe, fetch, is_hub_name, missing
from vitlab.weights.identity import Base, fingerprint
from vitlab.weights.matching import collect
from vitlab.weights.sharded import CONFIG
from vitlab.weights.source import Source, readable

OF_HEAD = ("temperature", "calibration", "thresholds", "thresholds_chosen")  # in a provenance
DEEPEST = 8  # a delta's base may be a delta


def load(
    source: str | Path,
    classes: int | None = None,
    image_size: Size | None = None,
    *,
    name: str = "",
    part: str = "",
    drop: str | Sequence[str] = (),
    revision: str | None = None,
    base: Model | str | Path | None = None,
    **choices: Any,
) -> Model:
    """Load a model from a file, a folder or the Hugging Face Hub, in evaluation mode.

    Args:
        source: a run folder, a saved folder, a folder of transformers or timm, or a file:
            `.safetensors`, Google's `.npz`, `.pth`, `.pt` or `.bin`; a delta; or `user/name` on
            the Hub. Its format is recognized by its content.
        classes: replaces the head by a zero classifier with this many outputs (ViT paper,
            section 3.2)
        image_size: the usual input size. Positions stay as published, and are resampled in the
            forward pass as the model's family does
        name: what the file may not say: `ViT-B/16`, or timm's `vit_base_patch16_224`
        part: which model of a file that holds several: `teacher`, `student`
        drop: tensors to leave out, by name or pattern (`head_aux.*`)
        revision: branch, tag or commit on the Hub
        base: of a delta or a LoRA adapter whose base is not where it says: where to load it
            from; of a delta also a model
        choices: any field of the configuration that the file does not say or that should
            differ: heads, mean, std, labels, …

    Raises:
        OptionError: a choice that no model has.
        WeightsError: no model there, an unsupported format, or a damaged file; the message
            names the tensor or the place and says what would work.
        HubError: the Hub does not have it, or cannot be reached.
    """
    labels = choices.pop("labels", ()) if classes is not None else ()  # of the new classifier
    hints = Hints(name, choices, image_size, part, names_of(drop))
    path, on_hub = place_of(source, revision)
    reading, tensors = _read(path, hints, base)
    for note in remarks(path, reading):
        logging.getLogger("vitlab").warning(note)
    size = reading.image_size if image_size is None else image_size
    model = fitted(reading.config, tensors, classes, size, tuple(labels))
    model.provenance = dict(reading.provenance or {})
    if on_hub or reading.provenance is None:
        model.provenance |= {"source": str(source)} | (describe(path) if on_hub else {})
    if classes is not None:  # the new classifier is not calibrated
        model.provenance = {k: v for k, v in model.provenance.items() if k not in OF_HEAD}
    model.source = str(source)
    return model


def load_delta(file: str | Path) -> Delta | None:
    """Return a delta as it was saved, without its base; None for a model of any other format.

    Raises:
        WeightsError: no model there, or a damaged file.
    """
    path, _ = place_of(file)
    source, reading = recognize(path, Hints())
    if reading.base is None:
        return None
    tensors = collect(reading, source)
    return Delta(reading.config, tensors, reading.base, dict(reading.provenance or {}))


def load_base(of: Delta, file: str | Path) -> Model:
    """Load the base of a delta from where the delta says that it is.

    Args:
        of: the delta
        file: that it was read from

    Raises:
        WeightsError: it is not there, or is another model.
    """
    path, _ = place_of(file)
    model = _base_model(of.base, path, None, (path.resolve(),))
    model.source = str(of.base.source)
    return model


def recognize(
    path: Path, hints: Hints, base: Model | str | Path | None = None
) -> tuple[Source, Reading]:
    """Open a file or folder, with the base of an adapter, and find its format.

    Raises:
        WeightsError: no model there, an unsupported format, or a damaged file.
    """
    source = open_source(path, hints.part)
    with readable(path):
        if is_adapter(source):
            source = with_adapter(source, base, lambda *at: open_source(place_of(*at)[0]))
        source = dropped(source, hints.drop)
    with unaltered(source), readable(path):
        for each in FORMATS:
            if (reading := each.reads(source, hints)) is not None:
                given = dict.fromkeys(hints.choices, Origin.OPTION)
                notes = (*source.notes, *reading.notes)
                origins = {**reading.origins, **given}
                return source, replace(reading, origins=origins, notes=notes)
        names = ", ".join(sorted(source.shapes)[:3])
        raise WeightsError(
            f"{path}: unsupported weight format (tensors {names}, …): docs/weights.md lists what "
            "loads"
        )


def remarks(path: Path, reading: Reading) -> list[str]:
    """Return what the user should know of a file that was recognized, a line each."""
    doubts = warning(path, reading.config, reading.origins)
    return [*([doubts] if doubts else []), *reading.notes]


def place_of(source: str | Path, revision: str | None = None) -> tuple[Path, bool]:
    """Return where a source is on this machine, and whether it came from the Hub.

    Raises:
        WeightsError: no such file or folder.
        HubError: the Hub does not have it, or cannot be reached.
    """
    if not is_hub_name(source):
        return _located(Path(source)), False
    try:
        return fetch(str(source), revision), True
    except HubError as error:
        if str(source).startswith(PREFIXES):
            raise
        raise HubError(f"no such file or folder: {source}; on the Hub: {error}") from error


def _located(source: Path) -> Path:
    """The file, the folder itself, or the saved model in a run folder."""
    if (source / MODEL_FOLDER / CONFIG).is_file():
        return source / MODEL_FOLDER
    if not source.exists():
        raise missing(source)
    if not source.is_dir() and not source.is_file():
        raise WeightsError(f"{source} is not a regular file")
    return source


def _read(
    path: Path, hints: Hints, base: Model | str | Path | None = None, above: tuple[Path, ...] = ()
) -> tuple[Reading, dict[str, Tensor]]:
    """What a file or folder says, and all tensors of its model; `above` are deltas based on it."""
    source, reading = recognize(path, hints, base)
    tensors = collect(reading, source)
    if reading.base is not None:
        here = path.resolve()
        if here in above or len(above) == DEEPEST:
            raise WeightsError(f"{path}: the chain of deltas is circular or longer than {DEEPEST}")
        model = _base_model(reading.base, path, base, (*above, here))
        tensors = merged(reading.config, tensors, whole_state(model))
    return reading, tensors


def _base_model(
    wanted: Base, file: Path, given: Model | str | Path | None, above: tuple[Path, ...]
) -> Model:
    """The base of a delta: the model or place given, or where it was."""
    if given is not None and not isinstance(given, str | Path):
        check_base(wanted, given)
        return given
    reason = "it was not found"
    for source in [given] if given is not None else _candidates(wanted, file):
        try:
            for number, model in enumerate(_attempts(source, wanted, above)):
                if fingerprint(model) == wanted.fingerprint:
                    return model
                if not number:
                    reason = f"{source} is {Base.of(model)}"
        except UserError as error:
            reason = str(error)
    raise WeightsError(f"{file} needs its base {wanted}: {reason}; give its location with base=")


def _candidates(base: Base, file: Path) -> Iterator[str | Path]:
    """Where the base may be: files and folders that exist, or its name on the Hub."""
    if base.source is None:
        return
    folder = file.parent
    places = [Path(base.source), folder / base.source, folder / Path(base.source).name]
    if base.nearby is not None:
        places.insert(1, folder / base.nearby)
    existing = [place for place in places if place.is_dir() or place.is_file()]
    yield from {place.resolve(): place for place in existing}.values()
    if is_hub_name(base.source):
        yield base.source


def _attempts(source: str | Path, base: Base, above: tuple[Path, ...]) -> Iterator[Model]:
    """The models there; then with positions of their own size, as loading gave them before."""
    for model in _as_it_is(source, base, above):
        yield model
        if (settled := model.config.settled) != model.config:
            yield model.remade(settled, model.state_dict())


def _as_it_is(source: str | Path, base: Base, above: tuple[Path, ...]) -> Iterator[Model]:
    """The model there; then with the input size, and the zero head, that the base had."""
    path, _ = place_of(source, base.commit if str(source) == base.source else None)
    reading, tensors = _read(path, Hints(), None, above)
    yield fitted(reading.config, tensors, image_size=reading.image_size)
    with suppress(UserError):  # not every model can be changed this way
        for classes in (None, base.classes):
            reading, tensors = _read(path, Hints(image_size=base.image_size), None, above)
            yield fitted(reading.config, tensors, classes, base.image_size)
