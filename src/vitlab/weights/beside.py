"""Heads beside a model: a run's own file of tensors, with the checksums of both.

Such a file may come from anybody. One reader checks the facts in its header (names, types, counts,
texts), then the names and shapes of its tensors, then their numbers, before a head is made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

from torch import Tensor

from vitlab.documents import parse_json
from vitlab.errors import OptionError, WeightsError
from vitlab.files import check_regular
from vitlab.models.model import Model
from vitlab.values import conform, described, fits, shown
from vitlab.weights.containers.arrays import Content, Stored, read_safetensors
from vitlab.weights.identity import checksum, checksums, fingerprint
from vitlab.weights.load import load
from vitlab.weights.sharded import HEADER, MOST
from vitlab.weights.source import all_finite, readable

Facts = TypeVar("Facts")
MARKS = {"model", "sha256", "checksum"}  # in the header, beside the facts


@dataclass(frozen=True)
class HeadFile(Generic[Facts]):
    """What the file of a kind of head holds.

    Attributes:
        name: of the file, in a run's folder
        facts: a dataclass of what the head is, which refuses by an OptionError what cannot be
        expected: returns the tensors of such a head of a model, on the device `meta`; refuses by an
            OptionError a model that cannot have it
        command: that makes such runs
    """

    name: str
    facts: type[Facts]
    expected: Callable[[Model, Facts], Mapping[str, Tensor]]
    command: str


def load_beside(run: str | Path, kind: HeadFile[Facts]) -> tuple[Model, Facts, dict[str, Tensor]]:
    """Return a run's model, and the facts and tensors that `save_head` wrote beside it.

    Args:
        run: its folder
        kind: of head

    Raises:
        WeightsError: none is there, it is damaged or of another model, or it is no such head.
    """
    file = Path(run) / kind.name
    if not file.is_file():
        raise WeightsError(f"{run} has no {kind.name}: run {kind.command} first")
    with readable(file):
        check_regular(file)
        content = read_safetensors(file)
    header = _read_header(file, content)
    facts = _read_facts(file, header, kind.facts)
    model = load(run)
    if fingerprint(model) != header["model"]:
        raise WeightsError(
            f"{run}/{kind.name} is of another model than {run}/model: copy the run again"
        )
    try:
        expected = kind.expected(model, facts)
    except OptionError as error:
        raise WeightsError(f"{file} does not fit {model.config.name}: {error}") from None
    return model, facts, _read_tensors(file, content.root, expected, header["sha256"])


def _read_header(file: Path, content: Content) -> dict[str, Any]:
    """Return the facts and marks in a file's header, which are as they were written."""
    if content.metadata.keys() != {"about"}:
        raise WeightsError(
            f"{file} does not describe a head: its header must have the entry about alone"
        )
    header = parse_json(content.metadata["about"], str(file), WeightsError, HEADER)
    own = {key: each for key, each in header.items() if key != "checksum"}
    if lacks := sorted(MARKS - header.keys()):
        raise WeightsError(f"{file} does not describe a head: {lacks[0]} is missing")
    if checksum(own) != header["checksum"]:
        raise WeightsError(f"{file} does not match its checksum: copy it again")
    sums = header["sha256"]
    if not isinstance(sums, dict) or sums.keys() != content.root.keys() or len(sums) > MOST:
        raise WeightsError(f"{file} does not describe a head: its tensors are not those it lists")
    return header


def _read_facts(file: Path, header: dict[str, Any], kind: type[Facts]) -> Facts:
    """Return the facts in a header, each of its type."""
    types = get_type_hints(kind)
    own = {key: each for key, each in header.items() if key not in MARKS}
    if wrong := sorted(own.keys() ^ types.keys()):
        state = "unknown" if wrong[0] in own else "missing"
        raise WeightsError(f"{file} does not describe a head: {shown(wrong[0])} is {state}")
    facts = dict[str, Any]()
    for name, hint in types.items():
        if not fits(own[name], hint):
            raise WeightsError(
                f"{file} does not describe a head: {name} is {shown(own[name])}, not "
                f"{described(hint)}"
            )
        facts[name] = conform(own[name], hint)
    try:
        return kind(**facts)
    except OptionError as error:
        raise WeightsError(f"{file} does not describe a head: {error}") from None


def _read_tensors(
    file: Path, stored: dict[str, Stored], expected: Mapping[str, Tensor], sums: dict[str, Any]
) -> dict[str, Tensor]:
    """Return tensors of the names, shapes and types that are expected, finite and undamaged."""
    if wrong := sorted(stored.keys() ^ expected.keys()):
        state = "unknown" if wrong[0] in stored else "missing"
        raise WeightsError(f"{file} is no such head: tensor {shown(wrong[0])} is {state}")
    for name, want in expected.items():
        if stored[name].shape != tuple(want.shape):
            raise WeightsError(
                f"{file}: tensor {name} has the shape {stored[name].shape}, not "
                f"{tuple(want.shape)}, as the model and its header say"
            )
    tensors = dict[str, Tensor]()
    for name, want in expected.items():
        with readable(file, name):
            tensors[name] = stored[name].read().clone()
        if tensors[name].dtype != want.dtype:
            raise WeightsError(f"{file}: tensor {name} is {tensors[name].dtype}, not {want.dtype}")
        if not all_finite(tensors[name]):
            raise WeightsError(f"{file}: tensor {name} contains NaN or infinite numbers")
    if checksums(tensors) != sums:
        raise WeightsError(f"{file} does not match its checksum: copy it again")
    return tensors
