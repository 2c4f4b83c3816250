"""The int8 form of a model for the service, with the scales that its export has measured."""

import copy
import json
import logging
import shlex
import statistics
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitlab.documents import read_json
from vitlab.errors import DiskError, OptionError, UserError
from vitlab.files import write_text
from vitlab.graphs.agreement import opened
from vitlab.graphs.complete import Bare, traceable
from vitlab.graphs.narrowing import Scales, products_of, quantize
from vitlab.models.fast.accelerate import accelerate, pass_seconds
from vitlab.models.fast.engines import patterns
from vitlab.models.model import Model
from vitlab.precision import Engine
from vitlab.recorded_paths import strip_places
from vitlab.values import fits
from vitlab.weights.identity import fingerprint

RECORD = "int8.json"  # beside the weights
ROUNDS, BATCH = 7, 8  # of timing


def keep_scales(model: Model, found: dict[str, Any]) -> None:
    """Move scales from what an export has found to a file beside the weights, if they have any."""
    kept = {"fingerprint": fingerprint(model), "scales": found.pop("scales")}
    stated = ("agreement", "images", "data", "split")
    kept |= {key: strip_places(found[key]) for key in stated if key in found}
    if (folder := _folder(model)) is not None:
        with suppress(DiskError):  # weights that cannot be written to are exported all the same
            write_text(folder / RECORD, json.dumps(kept))


def int8_form(model: Model, engine: Engine = "auto") -> Model:
    """Return a copy of a model that computes features in int8 by ONNX Runtime, as its export does.

    Args:
        model: on the processor, from a folder
        engine: that computes it in fp32 otherwise; this form is returned if it is faster here

    Raises:
        OptionError: no scales of these weights.
    """
    from vitlab.graphs.onnx_file import traced

    scales, form = _scales(model), copy.deepcopy(model).float()
    outputs = ("features",) if form.unlike is None else ("features", "inner")
    bare = Bare(form, trunk=True).eval()
    trunk = replace(traceable(form, bare=True), module=bare, outputs=outputs, inner=())
    proto, _ = traced(form, trunk)
    quantize(proto, scales[: len(products_of(proto.graph))])
    session = opened(proto.SerializeToString())
    plain = form.features
    looking = form.features_with_inner

    def run(images: Any, names: list[str]) -> list[Tensor]:
        found = session.run(names, {"images": images.contiguous().numpy()})
        return [*map(torch.from_numpy, found)]

    def is_usual(images: Any) -> bool:
        usual = isinstance(images, Tensor) and images.shape[2:] == model.config.size
        return usual and len(images) > 0

    def features_int8(images: Any) -> Tensor:
        return run(images, ["features"])[0] if is_usual(images) else plain(images)

    def features_with_inner_int8(images: Any, layer: int) -> tuple[Tensor, Tensor]:
        if not is_usual(images) or form.unlike is None or layer != form.unlike.layer:
            return looking(images, layer)
        features, inner = run(images, ["features", "inner"])
        return features, inner

    form.features, form.engine = features_int8, "onnxruntime"  # type: ignore[method-assign]
    form.features_with_inner = features_with_inner_int8  # type: ignore[method-assign]
    form.computes = "int8"  # type: ignore[assignment]
    fp32 = accelerate(model, device="cpu", precision="fp32", engine=engine, batch=BATCH)
    images, gains = patterns(model, BATCH), list[float]()
    for number in range(ROUNDS):
        pair = [pass_seconds(each, images) for each in (fp32, form)]
        gains += [pair[0] / pair[1]] if number else []  # the first is a warm-up
    if (gain := statistics.median(gains)) > 1:
        return form
    logging.getLogger("vitlab").warning(
        "%s is computed in fp32: int8 would take %.1f times as long here", model.source, 1 / gain
    )
    return fp32


def _scales(model: Model) -> Scales:
    """Return what `keep_scales` has kept of these weights."""
    folder = _folder(model)
    with suppress(UserError, KeyError):
        kept = read_json(folder / RECORD, UserError) if folder else {}
        if kept["fingerprint"] == fingerprint(model):
            scales: Scales = kept["scales"]
            if fits(scales, tuple[tuple[float, int] | None, ...]):
                return scales
    source = shlex.quote(model.source or "WEIGHTS")
    raise OptionError(
        f"precision=int8 needs {RECORD} beside the weights: vitlab export {source} --to onnx "
        "--precision int8 --data DATA --out FOLDER writes it"
    )


def _folder(model: Model) -> Path | None:
    """Return the folder with a model's weights, if it comes from one of ours."""
    source = Path(model.source)
    folders = (each for each in (source / "model", source) if (each / "config.json").is_file())
    return next(folders, None) if model.source else None
