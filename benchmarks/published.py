"""Published weights: downloaded, and compared with the library they were published for.

`python benchmarks/published.py google/vit-base-patch16-224`, or `all`

The tests of this package use random numbers in the published layouts, because they run without a
network. This is the other half, for a machine that has one: the published numbers themselves. A row
per model: format, largest difference, eight of our outputs, seconds; `--json` prints all of it.
"""

import argparse
import hashlib
import importlib
import json
import sys
import time
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import machine, peer
from torch import Tensor

from vitlab.errors import HubError, OptionError, PackageError, UserError, WeightsError
from vitlab.models.model import Model
from vitlab.options import nearest
from vitlab.weights.hub import UNREACHABLE, fetch
from vitlab.weights.load import load, load_check

ALL = "all"
SIDE = 256  # of the part of the picture whose checksum is known
PICTURE = "780de5c4bb5a80a423ebbac3b64ec0cd4290a11f2552fe753d63478ee7362cd7"
SHOWN = 8  # outputs that are recorded, evenly spaced
DIGITS = 3  # decimals of each
CLOSE = 1e-4  # largest difference to the other library, relative to its largest output
AS_RECORDED = 5e-3  # likewise, to outputs recorded on another machine
# Kinds of outputs, and their names in transformers, in order of preference.
KINDS = (
    ("logits", "logits"),
    ("embedding", "image_embeds"),
    ("tokens", "last_hidden_state"),
)


@dataclass(frozen=True)
class Published:
    """One published model.

    Attributes:
        name: on the Hub
        library: that it was published for
        outputs: of ours on the picture, as somebody measured them; empty until somebody did
        commit: of the repository at that time
    """

    name: str
    library: str
    outputs: tuple[float, ...] = ()
    commit: str = ""


@dataclass(frozen=True)
class Verified:
    """What came of one model.

    Attributes:
        name: on the Hub
        library: that it was compared with
        commit: of the repository
        format: that was recognized
        compared: logits, embedding, features or tokens; empty if they could not be compared
        difference: largest difference between both libraries' outputs, relative to the largest
        outputs: some of ours, rounded
        agrees: the difference is below 1e-4
        recorded: ours are those that were recorded; None if none were
        seconds: for loading and running it in both libraries
        problem: why it could not be compared
    """

    name: str
    library: str
    commit: str = ""
    format: str = ""
    compared: str = ""
    difference: float | None = None
    outputs: tuple[float, ...] = ()
    agrees: bool = False
    recorded: bool | None = None
    seconds: float = 0.0
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them."""
        return asdict(self)


@cache
def published() -> dict[str, Published]:
    """Return the models that can be verified, by name."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["model"]
    models = (Published(**row | {"outputs": tuple(row["outputs"])}) for row in rows)
    return {model.name: model for model in models}


def verify(name: str, tell: Callable[[str], None] = lambda line: None) -> list[Verified]:
    """Compare a published model, or all that are listed, with the library it is from.

    Args:
        name: on the Hub, one of `published()`; or `all`
        tell: called with a line before each model

    Raises:
        OptionError: an unknown name.
        HubError: there is no network, or the Hub does not have the one model.
        PackageError: the library of the one model is not installed.
    """
    wanted = list(published().values()) if name == ALL else [_named(name)]
    results: list[Verified] = []
    for each in wanted:
        tell(f"{each.name}: downloading it, and comparing with {each.library}")
        try:
            results.append(verify_one(each))
        except UserError as error:
            if isinstance(error, HubError) and UNREACHABLE in str(error):
                raise _offline(wanted[len(results) :], error) from error
            if name != ALL:
                raise
            results.append(Verified(each.name, each.library, problem=str(error)))
    return results


def _named(name: str) -> Published:
    if name in published():
        return published()[name]
    raise OptionError(
        f"unknown published model {name!r}: {nearest(name, [ALL, *published()])}; for weights of "
        "your own, use `vitlab load-check`"
    )


def _offline(left: Iterable[Published], error: HubError) -> HubError:
    names = ", ".join(each.name for each in left)
    return HubError(f"a network is needed to fetch {names} ({error})")


def verify_one(wanted: Published) -> Verified:
    """Download one model, run it in both libraries, and compare the outputs.

    Raises:
        HubError: the Hub does not have it, or cannot be reached.
        WeightsError: it does not load.
        PackageError: its library is not installed.
    """
    folder = fetch(wanted.name)
    start = time.perf_counter()
    model = load(folder)
    images = picture_for(model)
    compared, theirs = outputs(wanted.library, folder, images)
    with torch.inference_mode():
        ours = function_for(model, compared)(images)
    if ours.shape != theirs.shape:
        shapes = f"{tuple(ours.shape)}, theirs {tuple(theirs.shape)}"
        raise WeightsError(f"{wanted.name}: the shape of our {compared} is {shapes}")
    difference = float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-6))
    some = digest(ours)
    return Verified(
        name=wanted.name,
        library=wanted.library,
        commit=folder.name,
        format=load_check(folder).format,
        compared=compared,
        difference=difference,
        outputs=some,
        agrees=difference < CLOSE,
        recorded=same(some, wanted.outputs) if wanted.outputs else None,
        seconds=time.perf_counter() - start,
    )


def outputs(library: str, folder: Path, images: Tensor) -> tuple[str, Tensor]:
    """Return what another library computes; no code from the folder is run.

    Args:
        library: `timm` or `transformers`
        folder: config.json and weights, as they were published
        images: (B, channels, rows, columns), normalized

    Returns:
        What it is (logits, embedding, features or tokens), and the numbers.

    Raises:
        PackageError: the library is not installed.
        WeightsError: the library cannot load the folder.
    """
    run = {"timm": _timm, "transformers": _transformers}[library]
    try:
        module = importlib.import_module(library)
    except (ImportError, RuntimeError) as error:  # torchvision's, of a build for another torch
        raise PackageError(
            f"to compare with {library}, install it: pip install {library} ({error})"
        ) from error
    try:
        with torch.inference_mode():
            return run(module, folder, images)
    except Exception as error:  # whatever another library may raise
        line = " ".join(str(error).split())[:200]
        raise WeightsError(f"{library} cannot run {folder}: {line}") from error


def _timm(timm: Any, folder: Path, images: Tensor) -> tuple[str, Tensor]:
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    return "logits" if model.num_classes else "features", model(images)


def _transformers(transformers: Any, folder: Path, images: Tensor) -> tuple[str, Tensor]:
    """Return logits of a classifier, what an image tower gives, or tokens of an encoder."""
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    kind = getattr(transformers, (config.architectures or ["AutoModel"])[0])
    model = kind.from_pretrained(folder).float().eval()
    if hasattr(model, "vision_model") and not kind.__name__.endswith("Classification"):
        pooled = model.vision_model(images).pooler_output  # beside a text model
        if hasattr(model, "visual_projection"):
            return "embedding", model.visual_projection(pooled)
        return "features", pooled
    result = model(images)
    for compared, name in KINDS:
        if getattr(result, name, None) is not None:
            return compared, getattr(result, name)
    raise WeightsError(f"unknown outputs of {kind.__name__}")


def function_for(model: Model, compared: str) -> Callable[[Tensor], Tensor]:
    """Return our function for what another library computes: `outputs` names it."""
    if compared == "tokens":
        return model.encode
    return model.features if compared == "features" else model


def digest(numbers: Tensor) -> tuple[float, ...]:
    """Return a few of a model's outputs, rounded.

    Numbers rather than a checksum: rounding differs from machine to machine in the last place.
    """
    flat = numbers.flatten()
    places = torch.linspace(0, len(flat) - 1, SHOWN).long()
    return tuple(round(float(number), DIGITS) for number in flat[places])


def same(found: tuple[float, ...], recorded: tuple[float, ...]) -> bool:
    """Return whether rounded outputs are those of another machine."""
    most = max(map(abs, recorded))
    pairs = zip(found, recorded, strict=True)
    return all(abs(one - other) <= AS_RECORDED * max(most, 1.0) for one, other in pairs)


def picture(rows: int, columns: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a picture made of whole numbers alone, the same on every machine.

    Rings, a slope and a grid of squares; a smaller picture is a part of a larger one.

    Args:
        rows: in pixels
        columns: in pixels

    Returns:
        (rows, columns, 3)
    """
    y, x = np.arange(rows)[:, None, None], np.arange(columns)[None, :, None]
    band = np.arange(3)[None, None]
    rings = ((y - 100) ** 2 + (x - 90 - 20 * band) ** 2) // (40 + 25 * band)
    squares = 80 * (((y // 24) + (x // 36) + band) % 2)
    return ((rings + squares + 2 * y + x * (band + 1) // 2) % 256).astype(np.uint8)


def picture_for(model: Model) -> Tensor:
    """Return the picture at a model's size and normalization: (1, channels, rows, columns).

    Raises:
        WeightsError: the picture is not the one that outputs were recorded with.
    """
    known = hashlib.sha256(picture(SIDE, SIDE).tobytes()).hexdigest()
    if known != PICTURE:
        raise WeightsError(f"the picture has the checksum {known}, not {PICTURE}")
    spec = model.config.images
    pixels = torch.from_numpy(picture(*spec.size)).permute(2, 0, 1)[None] / 255
    mean, std = (torch.tensor(each).reshape(1, -1, 1, 1) for each in (spec.mean, spec.std))
    normalized: Tensor = (pixels - mean) / std
    return normalized


def row(found: Verified) -> str:
    """Return a row of the table."""
    if found.problem:
        return f"| {found.name} | | not compared | {found.problem} | | |"
    verdict = "agrees" if found.agrees else "DIFFERS"
    numbers = " ".join(f"{number:g}" for number in found.outputs)
    return (
        f"| {found.name} | {found.format} | {verdict} | {found.difference:.1e} of "
        f"{found.compared} | {numbers} | {found.seconds:.1f} |"
    )


def main() -> None:
    """Print a row per published model, and how many have no recorded outputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="on the Hub, as published.toml lists it, or: all")
    parser.add_argument("--json", action="store_true", help="print an object per model")
    args = parser.parse_args()
    peer("timm"), peer("transformers")
    try:
        results = verify(args.name, lambda line: print(line, file=sys.stderr))
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    if args.json:
        print(json.dumps([each.as_dict() for each in results], indent=2))
        return
    print(f"{machine('cpu')}\n")
    print("| model | format | verdict | largest difference | some of our outputs | seconds |")
    print("| --- | --- | --- | --- | --- | --- |")
    print("\n".join(map(row, results)))
    new = sum(each.recorded is None and not each.problem for each in results)
    if new:
        print(f"\noutputs of {new} were never recorded: compared with the library alone")
    for each in results:
        if each.recorded is False:
            print(f"\n{each.name}: not the outputs that were recorded")


if __name__ == "__main__":
    main()
