"""The folder of an export: reference numbers, and the script that compares a runtime with them."""

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.graphs import check
from vitlab.graphs.agreement import SMALLEST
from vitlab.graphs.complete import Traceable

REFERENCE = "reference.npz"
LIMITS = {"fp32": 1e-4, "fp16": 1e-3, "int8": 0.1}  # of an image's largest answer, on the target
BLOCK = re.compile(r"'(?:module\.)*model\.blocks\.(\d+)'")
SCOPES = "pkg.torch.onnx.name_scopes"


def blocks_of(proto: Any) -> list[str]:
    """Return what leaves each block, by the notes of PyTorch's exporter on its operators."""
    last = dict[int, str]()
    for node in proto.graph.node:
        for note in node.metadata_props:
            if note.key == SCOPES and (found := BLOCK.search(note.value)):
                last[int(found[1])] = node.output[0]
    return [last[number] for number in sorted(last)]


@dataclass(frozen=True)
class CertifiedParts:
    """What is compared of a file beside its outputs, and how.

    Attributes:
        blocks: names of what leaves each block
        limit: of the difference on a target
        units: of answers that have one of their own
    """

    blocks: list[str]
    limit: float
    units: Mapping[str, NDArray[Any]]


def certify(
    file: Path, form: Traceable, images: Sequence[NDArray[Any]], how: CertifiedParts
) -> None:
    """Write reference numbers and `check.py` beside a file that agrees with its model.

    Args:
        file: the ONNX file
        form: that it was traced from
        images: batches for its input
        how: what else is compared
    """
    graph, setting = file.read_bytes(), check.Setting("CPU", {check.EXACT: "1"})
    inner = [*form.inner, *how.blocks]
    texts = [name for name in ("labels", "label") if name in check.texts_of(graph)["outputs"]]
    stored: dict[str, Any] = {"limit": how.limit}
    for name in (*form.outputs, *form.inner):
        stored[f"unit:{name}"] = how.units.get(name, SMALLEST)
    for number, batch in enumerate(images):
        given = {form.input: batch}
        stored[f"{number}:input:{form.input}"] = batch
        found = check.onnxruntime(graph, given, [*form.outputs, *texts], setting)
        for name, each in found.items():
            kind = "text" if name in texts else "output"
            stored[f"{number}:{kind}:{name}"] = (
                check.pack_texts([*each]) if kind == "text" else each
            )
        if inner:
            watched = check.onnxruntime(check.watching(graph, inner), given, inner, setting)
            for name, each in watched.items():
                kind = "inner" if name in form.inner else "block"
                stored[f"{number}:{kind}:{name}"] = each
    stored["texts"] = check.pack_texts(check.texts_of(graph))
    np.savez_compressed(file.with_name(REFERENCE), allow_pickle=False, **stored)
    shutil.copyfile(check.__file__, file.with_name("check.py"))
