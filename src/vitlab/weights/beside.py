"""Heads beside a model: a run's own file of tensors, with the checksums of both."""

import json
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import save_file
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.files import staged_file
from vitlab.models.model import Model
from vitlab.weights.containers.open import open_source
from vitlab.weights.identity import checksum, checksums, fingerprint
from vitlab.weights.load import load

About = TypeVar("About")


def save_beside(
    file: Path, model: Model, about: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Write the tensors of a head into a run, whose model is saved.

    Args:
        file: in the run's folder
        model: that the head is of
        about: what else it is, as JSON values
        tensors: by name

    Raises:
        DiskError: it cannot be written.
    """
    tensors = {name: each.detach().cpu().contiguous() for name, each in tensors.items()}
    about = about | {"model": fingerprint(model), "sha256": checksums(tensors)}
    with staged_file(file) as draft:
        text = json.dumps(about | {"checksum": checksum(about)})
        save_file(tensors, draft, metadata={"about": text})  # several have no fixed order


def load_beside(
    run: str | Path, name: str, kind: type[About], command: str
) -> tuple[Model, About, dict[str, Any]]:
    """Return a run's model, and what `save_beside` wrote beside it, as `read_beside` does.

    Raises:
        WeightsError: none is there, or it is damaged or of another model.
    """
    known, tensors, base = read_beside(run, name, kind, command)
    if fingerprint(model := load(run)) != base:
        raise WeightsError(f"{run}/{name} is of another model than {run}/model: copy the run again")
    return model, known, tensors


def read_beside(
    run: str | Path, name: str, kind: type[About], command: str
) -> tuple[About, dict[str, Any], str]:
    """Return what `save_beside` wrote, and the fingerprint of its model.

    Args:
        run: its folder
        name: of the file
        kind: a dataclass of what else the head is
        command: that makes such runs

    Raises:
        WeightsError: none is there, or it is damaged.
    """
    file = Path(run) / name
    if not file.is_file():
        raise WeightsError(f"{run} has no {name}: run {command} first")
    source = open_source(file)
    try:
        about = json.loads(source.metadata["about"])
        given = about.pop("checksum")
        whole = checksum(about) == given
        base, sums = about.pop("model"), about.pop("sha256")
        tensors: dict[str, Any] = {each: source.read(each, exact=True) for each in sums}
        known = kind(
            **{key: tuple(each) if isinstance(each, list) else each for key, each in about.items()}
        )
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{file} does not describe a head: {error!r}") from None
    if not whole or checksums(tensors) != sums:
        raise WeightsError(f"{file} does not match its checksum: copy it again")
    return known, tensors, base
