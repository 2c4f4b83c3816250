"""`vitlab.load`: any released ViT as our one model, with the original implementation's outputs."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from vitlab.errors import HubError, UserError, WeightsError
from vitlab.files import MODEL_FOLDER
from vitlab.images import Size
from vitlab.keywords import CreateKeywords
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.create import ANY_KIND, SomeModel, of_kind
from vitlab.models.model import Model
from vitlab.public_calls import public
from vitlab.recorded_paths import base_of_run, places, read_agreeing
from vitlab.weights.adapters import unaltered, with_adapter, with_base
from vitlab.weights.assembly import empty, fitted, whole_state
from vitlab.weights.containers.open import dropped, open_source
from vitlab.weights.delta_base import DeltaBase
from vitlab.weights.formats.catalog import FORMATS
from vitlab.weights.formats.format_api import Hints, Reading
from vitlab.weights.formats.records import warning, whole, words
from vitlab.weights.hub import describe, fetch, is_hub_name, missing, not_here
from vitlab.weights.identity import base_of, fingerprint
from vitlab.weights.matching import collect, unused, with_channels
from vitlab.weights.on_base import check_base, merged
from vitlab.weights.sharded import CONFIG, Fields
from vitlab.weights.source import StoredTensors, readable
from vitlab.weights.state import StateDict

OF_HEAD = words(  # in a provenance
    "temperature calibration thresholds thresholds_chosen multi_label metrics"
)
DEEPEST = 8  # a delta's base may be a delta


@public(source=(str, Path))
def load(
    source: str | Path,
    classes: int | None = None,
    image_size: Size | None = None,
    *,
    kind: type[SomeModel] = ANY_KIND,  # type: ignore[assignment]
    name: str = "",
    part: str = "",
    drop: str | Sequence[str] = (),
    revision: str | None = None,
    base: Model | str | Path | None = None,
    **choices: Unpack[CreateKeywords],
) -> SomeModel:
    """Load a model from a file, a folder or the Hugging Face Hub, in evaluation mode.

    Args:
        source: a run folder, a saved folder, a folder of transformers or timm, or a file:
            `.safetensors`, Google's `.npz`, `.pth`, `.pt` or `.bin`; a delta; or `user/name` on
            the Hub. Its format is recognized by its content.
        classes: replaces the head by a zero classifier with this many outputs (ViT paper,
            section 3.2)
        image_size: the usual input size. Positions stay as published, and are resampled in the
            forward pass as the model's family does
        kind: the model's class, such as `vitlab.ResNet`, for type checkers, to which it is a
            `VisionTransformer` otherwise; another kind of model is refused
        name: the model, if the file does not name it: `ViT-B/16`, or timm's `vit_base_patch16_224`
        part: which model of a file that holds several: `teacher`, `student`
        drop: tensors to leave out, by name or pattern (`head_aux.*`)
        revision: branch, tag or commit on the Hub
        base: of a delta or a LoRA adapter whose base is not where it says: where to load it
            from; of a delta also a model
        choices: any field of the configuration that the file does not say or that should
            differ: heads, mean, std, labels, …; for other `channels` than the file's, the first
            kernel is repeated and scaled, as in timm

    Raises:
        OptionError: a choice that no model has, or a model of another kind.
        WeightsError: no model there, an unsupported format, or a damaged file; the message
            names the tensor or the place and says what would work.
        HubError: the Hub does not have it, or cannot be reached.
    """
    chosen: Fields = {**choices}
    labels = chosen.pop("labels", ()) if classes is not None else ()  # of the new classifier
    hints = Hints(name, chosen, image_size, part, drop)
    path = place_of(source, revision)
    on_hub = is_hub_name(source)
    reading, tensors = _read(path, hints, base)
    for note in reading.notes:
        logging.getLogger("vitlab").warning(note)
    size = reading.image_size if image_size is None else image_size
    model = fitted(reading.config, tensors, classes, size, tuple(labels))
    about = dict(reading.provenance or {})
    if on_hub or reading.provenance is None:
        about |= {"source": str(source)} | (describe(path) if on_hub else {})
    if classes is not None:  # what is said of the old classifier
        about = {key: value for key, value in about.items() if key not in OF_HEAD}
    model.provenance = about
    model.source = str(source)
    model.seen = reading.seen
    model.unlike = reading.unlike if classes is None else None
    return of_kind(model, kind)


def recognize(
    path: Path, hints: Hints, base: Model | str | Path | None = None
) -> tuple[StoredTensors, Reading]:
    """Open a file or folder, with the base of an adapter, and find its format.

    Raises:
        WeightsError: no model there, an unsupported format, or a damaged file.
    """
    source = open_source(path, hints.part)
    with readable(path):
        source = with_adapter(
            source,
            base,
            lambda *at: open_source(place_of(*at)),
            lambda path: fingerprint(load(path)),
        )
        source = dropped(source, hints.drop)
    with unaltered(source), readable(path):
        for each in sorted(FORMATS.values(), key=lambda each: each.kind != source.kind):
            if (reading := each.reads(source, hints, empty)) is not None:
                reading = with_channels(reading, source) if "channels" in hints.choices else reading
                origins = {**reading.origins, **dict.fromkeys(hints.choices, "option")}
                doubts = warning(path, reading.config, origins)
                notes = filter(None, (doubts, *source.notes, *reading.notes))
                seen = reading.seen if len(reading.seen) else source.seen
                return source, replace(reading, origins=origins, notes=tuple(notes), seen=seen)
        names = ", ".join(sorted(source.shapes)[:3])
        raise WeightsError(
            f"{path}: unsupported weight format (tensors {names}, …): docs/weights.md lists what "
            "loads"
        )


@dataclass(frozen=True)
class TensorSource:
    """Where tensors of a model come from.

    Attributes:
        ours: names in the model's state dict
        theirs: names in the file; empty if the value follows from the configuration
        shapes: of theirs
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class LoadCheck:
    """A source that was recognized, and whose tensors were all read and checked.

    Attributes:
        source: the argument
        format: the format that was recognized
        model: the papers' notation
        config: every field of the resulting model
        origins: where each field comes from: option, file, tensors, name, family or assumed
        tensors: where each tensor comes from, in the model's order
        left_out: names in the file that the model does not need, and why
        notes: what was assumed, and how to settle it
    """

    source: str
    format: str
    model: str
    config: Fields
    origins: dict[str, str]
    tensors: tuple[TensorSource, ...]
    left_out: dict[str, str]
    notes: tuple[str, ...]

    def as_dict(self) -> Fields:
        """Return the fields as JSON can hold them."""
        return asdict(self)


def load_check(
    source: str | Path,
    *,
    name: str = "",
    image_size: Size | None = None,
    part: str = "",
    drop: str | Sequence[str] = (),
    base: str | Path | None = None,
    **choices: Any,
) -> LoadCheck:
    """Recognize a source and check it as `vitlab.load` does, with the same arguments.

    Raises:
        WeightsError: as `vitlab.load`.
    """
    hints = Hints(name, choices, image_size, part, drop)
    found, reading = recognize(place_of(source), hints, base)
    collect(reading, found)
    config = reading.config
    if image_size is None and reading.image_size is not None:
        config = config.sized(reading.image_size)
    return LoadCheck(
        source=str(source),
        format=reading.format,
        model=config.name,
        config=config.as_dict(),
        origins=whole(config, reading.origins),
        tensors=tuple(
            TensorSource(ours, tuple(map(found.in_file, theirs)), tuple(map(found.shape, theirs)))
            for ours, theirs, *_ in reading.entries
        ),
        left_out={found.in_file(name): why for name, why in unused(reading, found).items()},
        notes=reading.notes,
    )


def place_of(source: str | Path, revision: str | None = None) -> Path:
    """Return where a source is on this machine: a run's model is in it.

    Raises:
        WeightsError: no such file or folder.
        HubError: the Hub does not have it, or cannot be reached.
    """
    if is_hub_name(source):
        try:
            return fetch(str(source), revision)
        except HubError as error:
            raise not_here(source, error) from error
    path = Path(source).expanduser()
    if (path / MODEL_FOLDER / CONFIG).is_file():  # of a run
        return path / MODEL_FOLDER
    if not path.exists():
        raise missing(path)
    if not path.is_dir() and not path.is_file():
        raise WeightsError(f"{path} is not a regular file")
    return path


def _read(
    path: Path, hints: Hints, base: Model | str | Path | None = None, above: tuple[Path, ...] = ()
) -> tuple[Reading, StateDict]:
    """What a file or folder says, and all tensors of its model; `above` are deltas based on it."""
    source, reading = recognize(path, hints, base)
    tensors = collect(reading, source)
    if reading.base is not None:
        here = path.resolve()
        if here in above or len(above) == DEEPEST:
            raise WeightsError(f"{path}: the chain of deltas is circular or longer than {DEEPEST}")
        model = base_model(reading.base, path, base, (*above, here), reading.config)
        tensors = merged(reading.config, tensors, whole_state(model))
        reading = replace(reading, seen=np.union1d(reading.seen, model.seen))
    return reading, tensors


def base_model(
    wanted: DeltaBase,
    file: Path,
    given: Model | str | Path | None,
    above: tuple[Path, ...],
    tuned: ModelConfig,
) -> Model:
    """The base of a delta, from which a model was tuned: that given, or where it was."""
    if given is not None and not isinstance(given, str | Path):
        check_base(wanted, given)
        return given
    where = [given] if given is not None else _places(wanted, file)

    def read(place: str | Path) -> tuple[Model, bool]:
        """The model there in the form that is wanted, or any form of another one, and which."""
        others = list[Model]()
        try:
            for model in _variants(place, wanted, above, tuned.settled == tuned):
                model.source = str(place)
                if fingerprint(model) == wanted.fingerprint:
                    return model, True
                others = others or [model]
        except UserError:  # not every model can have another size or another head
            if not others:
                raise
        return others[0], False

    reason = "it was not found"
    try:
        if where:
            (model, is_base), _ = read_agreeing(where, read, lambda found: found[1])
            if is_base:
                return model
            reason = f"{model.source} is {base_of(model)}"
    except UserError as error:
        reason = str(error)
    raise WeightsError(
        f"{file} needs its base {wanted}: {reason}; give its location {with_base(file)}"
    )


def _places(base: DeltaBase, file: Path) -> list[str | Path]:
    """Where the base may be: files and folders that exist, or its name on the Hub."""
    if base.source is None:
        return []
    found = places(base.source, base.nearby, file.parent, file.parent)
    _, of_run = base_of_run(file.parent)
    local = dict.fromkeys(map(Path, (*found, *of_run)))
    return [*local, *([base.source] if is_hub_name(base.source) else [])]


def _variants(
    source: str | Path, base: DeltaBase, above: tuple[Path, ...], settled: bool
) -> Iterator[Model]:
    """The model there as the base may have been loaded, first as what is known of it says.

    That is from one reading, with the head that is there or one of zeros, and with positions as
    they are stored or of its own grid; only if none of these is it, it is read for another size.
    """
    path = place_of(source, base.commit if str(source) == base.source else None)
    _, usual = recognize(path, Hints())
    sizes = [None, base.image_size]
    if (usual.image_size or usual.config.image_size) != base.image_size:
        sizes.reverse()
    for size in sizes:
        reading, tensors = _read(path, Hints(image_size=size), None, above)
        as_it_is = [None] if reading.config.classes == base.classes else []
        for classes in (*as_it_is, base.classes):
            model = fitted(reading.config, tensors, classes, size or reading.image_size)
            own = model.config
            for grid in dict.fromkeys((own.settled, own) if settled else (own, own.settled)):
                yield model if grid == own else model.remade(grid, model.state_dict())
