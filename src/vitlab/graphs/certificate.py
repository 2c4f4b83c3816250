"""The folder of an export: reference numbers, and the script that compares a runtime with them."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.graphs import check
from vitlab.graphs.complete import Traceable

REFERENCE = "reference.npz"
LIMITS = {"fp32": 1e-4, "fp16": 1e-3, "int8": 0.1}  # of a difference on the target
BLOCK = re.compile(r"'model\.blocks\.(\d+)'")
SCOPES = "pkg.torch.onnx.name_scopes"


def blocks_of(proto: Any) -> list[str]:
    """Return what leaves each block, by the notes of PyTorch's exporter on its operators."""
    last = dict[int, str]()
    for node in proto.graph.node:
        for note in node.metadata_props:
            if note.key == SCOPES and (found := BLOCK.search(note.value)):
                last[int(found[1])] = node.output[0]
    return [last[number] for number in sorted(last)]


def certify(
    file: Path,
    form: Traceable,
    images: NDArray[Any],
    blocks: list[str],
    limit: float,
    unit: Any = 1.0,
) -> None:
    """Write reference numbers and `check.py` beside a file that agrees with its model.

    Args:
        file: the ONNX file
        form: that it was traced from
        images: for its input
        blocks: names of what leaves each block
        limit: of the difference on a target
        unit: that differences count in, or larger numbers; of each column, (columns,)
    """
    graph, given, exact = file.read_bytes(), {form.input: images}, {check.EXACT: "1"}
    found = check.onnxruntime(graph, given, [*form.outputs], exact)
    watched = check.watching(graph, blocks)
    inner = check.onnxruntime(watched, given, blocks, exact) if blocks else {}
    stored: dict[str, Any] = {f"input:{form.input}": images, "limit": limit, "unit": unit}
    stored |= {f"output:{name}": each for name, each in found.items()}
    stored |= {f"block:{name}": each for name, each in inner.items()}
    np.savez(file.with_name(REFERENCE), allow_pickle=False, **stored)
    shutil.copyfile(check.__file__, file.with_name("check.py"))
