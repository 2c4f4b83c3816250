"""Check of an exported model where it will run: `python check.py RUNTIME` in its folder.

NumPy and a runtime are all that it needs. The file is run at the runtime's own settings on the
reference images, and compared with the numbers that it gave when it was exported: ends with status
1 if they differ by more than the limit, and names the first block that deviates.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

COSINE = 0.99  # of a block's tokens with the reference; below, it deviates
EXACT = "session.x64quantprecision"  # of ONNX Runtime: no sums of int8 in 16 bits
Numbers = dict[str, NDArray[Any]]


def main() -> int:
    """Compare, and print one line for the answers and one for the blocks."""
    options = arguments()
    stored = dict(np.load(options.folder / "reference.npz", allow_pickle=False))
    given, wanted, blocks = (part(stored, kind) for kind in ("input", "output", "block"))
    graph = (options.folder / "model.onnx").read_bytes()
    run, settings = RUNTIMES[options.runtime], dict(each.split("=", 1) for each in options.set)
    found = run(graph, given, [*wanted], settings)
    unit = stored["unit"]
    away = float(np.max([difference(found[name], wanted[name], unit) for name in wanted]))
    limit = float(stored["limit"]) if options.limit is None else options.limit
    print(f"{options.runtime}: largest difference {away:.2g} (limit {limit:g})")
    inner = run(watching(graph, [*blocks]), given, [*blocks], settings) if blocks else {}
    cosines = [cosine(inner[name], blocks[name]) for name in blocks]
    # NaN is not within any limit
    deviating = [number for number, each in enumerate(cosines) if not each >= COSINE]
    if deviating:
        first = deviating[0]
        print(f"block {first + 1} of {len(blocks)} deviates first: cosine {cosines[first]:.4f}")
    elif blocks:
        print(f"no block of {len(blocks)} deviates: cosine at least {min(cosines):.6f}")
    if away <= limit and not deviating:
        return 0
    if options.runtime == "onnxruntime" and b".int8" in graph and EXACT not in settings:
        print(f"sums of int8 overflow on a processor without VNNI: try --set {EXACT}=1")
    return 1


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runtime", nargs="?", choices=[*RUNTIMES], default="onnxruntime")
    parser.add_argument("--limit", type=float, help="instead of that of the export")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="of the runtime")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    return parser.parse_args()


def part(stored: Mapping[str, NDArray[Any]], kind: str) -> Numbers:
    """Return the arrays of one kind by the names of the graph's tensors, in their order."""
    return {key[len(kind) + 1 :]: each for key, each in stored.items() if key.startswith(kind)}


def difference(found: NDArray[Any], wanted: NDArray[Any], unit: NDArray[Any]) -> float:
    """Return the largest difference in a unit, or relative to the largest number if above it.

    A unit of each column, (columns,), compares each by itself.
    """
    largest = np.abs(wanted).max(0 if unit.ndim else None)
    return float((np.abs(found - wanted) / np.maximum(unit, largest)).max())


def cosine(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """Return the cosine between all numbers of a block."""
    a, b = (each.astype(np.float64).ravel() for each in (found, wanted))
    return float(a @ b) / max(float(np.sqrt((a @ a) * (b @ b))), 1e-30)


def watching(graph: bytes, names: Sequence[str]) -> bytes:
    """Return an ONNX file with further float tensors among its outputs.

    Protocol buffers that follow each other are merged, so the outputs are written behind the file.
    """
    value = [field(1, name.encode()) + field(2, field(1, b"\x08\x01")) for name in names]
    return graph + field(7, b"".join(field(12, each) for each in value))


def field(number: int, content: bytes) -> bytes:
    """Return one field of a protocol buffer."""
    size, head = len(content), bytes([number << 3 | 2])
    while size > 127:
        head, size = head + bytes([size & 127 | 128]), size >> 7
    return head + bytes([size]) + content


def onnxruntime(
    graph: bytes, given: Numbers, names: list[str], settings: dict[str, str]
) -> Numbers:
    """Run a graph by ONNX Runtime on a processor; settings are of the session."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    for key, value in settings.items():
        options.add_session_config_entry(key, value)
    session = onnxruntime.InferenceSession(graph, options, ["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, given), strict=True))


def openvino(graph: bytes, given: Numbers, names: list[str], settings: dict[str, str]) -> Numbers:
    """Run a graph by OpenVINO on the device that it chooses."""
    import openvino

    core = openvino.Core()
    compiled = core.compile_model(core.read_model(graph), "AUTO", settings)
    found = compiled(given)
    return {name: found[compiled.output(name)] for name in names}


RUNTIMES = {"onnxruntime": onnxruntime, "openvino": openvino}

if __name__ == "__main__":
    sys.exit(main())
