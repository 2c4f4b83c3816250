"""Check of an exported model where it will run: `python check.py RUNTIME` in its folder.

NumPy and a runtime are all that it needs. The file is run on the reference images, at the runtime's
own settings or those that are given, and compared with the numbers that it gave when it was
exported, each relative to the image's largest; so are its class names and metadata. Ends with
status 1 if they differ by more than the limit, and names the first block that deviates.
"""

import argparse
import difflib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

COSINE = 0.99  # of a block's tokens with the reference; below, it deviates
EXACT = "session.x64quantprecision"  # of ONNX Runtime: no sums of int8 in 16 bits
# of ONNX Runtime's keys, those that begin with "session."
SESSION = (
    "collect_node_memory_stats_to_file", "debug_layout_transformation",
    "disable_aot_function_inlining", "disable_cpu_ep_fallback", "disable_double_qdq_remover",
    "disable_model_compile", "disable_prepacking", "disable_qdq_constant_folding",
    "disable_quant_qdq", "dynamic_block_base", "enable_dq_matmulnbits_fusion",
    "enable_quant_qdq_cleanup", "force_spinning_stop", "graph_optimizations_loop_level",
    "inter_op.allow_spinning", "intra_op.allow_spinning", "intra_op_thread_affinities",
    "load_model_format", "minimal_build_optimizations",
    "model_external_initializers_file_folder_path",
    "optimized_model_external_initializers_file_name",
    "optimized_model_external_initializers_min_size_in_bytes", "qdq_matmulnbits_accuracy_level",
    "qdq_matmulnbits_block_size", "qdqisint8allowed", "record_ep_graph_assignment_info",
    "resource_cuda_partitioning_settings", "save_external_prepacked_constant_initializers",
    "save_model_format", "set_denormal_as_zero", "strict_shape_type_inference",
    "use_device_allocator_for_initializers", "use_env_allocators", "use_memory_mapped_ort_model",
    "use_ort_model_bytes_directly", "use_ort_model_bytes_for_initializers", "x64quantprecision",
)  # fmt: skip
OTHERS = ("ep.", "mlas.", "optimization.", "memory.")  # beginnings of its other keys
Numbers = dict[str, NDArray[Any]]


class Setting:
    """How a graph is run.

    Attributes:
        device: of the runtime; empty for its usual one, and the one that it took afterwards
        values: the runtime's own settings
    """

    def __init__(self, device: str = "", values: Mapping[str, str] | None = None) -> None:
        self.device = device
        self.values = dict(values or {})


class RefusalError(Exception):
    """A line about what cannot be run."""


def main() -> int:
    """Compare, and print one line for the answers and one for the blocks."""
    options = arguments()
    try:
        return compare_file(options)
    except RefusalError as refusal:
        print(f"{options.runtime}: {refusal}")
    except ImportError as error:
        print(f"{options.runtime} is not installed here: {error}")
    except Exception as error:  # a runtime's own, of many kinds
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"{options.runtime} refuses the file: {reason[-300:]}")
    return 1


def compare_file(options: argparse.Namespace) -> int:
    """Return the status."""
    stored = dict(np.load(options.folder / "reference.npz", allow_pickle=False))
    graph = (options.folder / "model.onnx").read_bytes()
    setting = Setting(options.device, settings_of(options.set))
    limit = float(stored["limit"]) if options.limit is None else options.limit
    away = 0.0
    cosines = dict[str, float]()
    other = difference_of_texts(graph, stored)
    for batch in iterate_batches(stored):
        found = ran(options.runtime, graph, batch, setting)
        kinds = {**batch["output"], **batch["inner"]}
        gaps = [
            difference(name, found[name], kinds[name], stored[f"unit:{name}"]) for name in kinds
        ]
        away = float(np.max([away, *gaps]))  # NaN stays
        other = other or name_other_classes(found, batch)
        for name, each in batch["block"].items():
            cosines[name] = float(np.min([cosines.get(name, 1.0), cosine(found[name], each)]))
    print(f"{options.runtime} on {setting.device}: largest difference {away:.2g} (limit {limit:g})")
    if other:
        print(other)
    # NaN is not within any limit
    deviating = [number for number, each in enumerate(cosines.values()) if not each >= COSINE]
    if deviating:
        first = deviating[0]
        lowest = [*cosines.values()][first]
        print(f"block {first + 1} of {len(cosines)} deviates first: cosine {lowest:.4f}")
    elif cosines:
        lowest = min(cosines.values())
        print(f"no block of {len(cosines)} deviates: cosine at least {lowest:.6f}")
    if away <= limit and not deviating and not other:
        return 0
    if options.runtime == "onnxruntime" and b".int8" in graph and EXACT not in setting.values:
        print(f"sums of int8 overflow on a processor without VNNI: try --set {EXACT}=1")
    return 1


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runtime", nargs="?", choices=[*RUNTIMES], default="onnxruntime")
    parser.add_argument("--limit", type=float, help="instead of that of the export")
    parser.add_argument("--device", default="", help="of the runtime, such as CPU, GPU, CUDA, AUTO")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="of the runtime")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    return parser.parse_args()


def settings_of(words: Sequence[str]) -> dict[str, str]:
    """Return settings by their keys."""
    for each in words:
        if "=" not in each:
            raise RefusalError(f"--set takes KEY=VALUE, not {each!r}")
    return dict(each.split("=", 1) for each in words)


Batch = dict[str, Numbers]


def iterate_batches(stored: Mapping[str, NDArray[Any]]) -> Iterator[Batch]:
    """Yield each batch of the reference: arrays by their names in the graph, by their kinds."""
    number = 0
    while any(key.startswith(f"{number}:") for key in stored):
        made: Batch = {kind: {} for kind in ("input", "output", "inner", "block", "text")}
        for key, each in stored.items():
            place, _, rest = key.partition(":")
            if place == str(number):
                kind, _, name = rest.partition(":")
                made[kind][name] = each
        yield made
        number += 1


def ran(runtime: str, graph: bytes, batch: Batch, setting: Setting) -> Numbers:
    """Return what a runtime computes of a batch, as the file is, and inside of it."""
    given = batch["input"]
    texts = [*batch["text"]] if runtime == "onnxruntime" else []
    found = RUNTIMES[runtime](graph, given, [*batch["output"], *texts], setting)
    if inner := [*batch["inner"], *batch["block"]]:
        found |= RUNTIMES[runtime](watching(graph, inner), given, inner, setting)
    return found


def name_other_classes(found: Numbers, batch: Batch) -> str:
    """Return a line if a runtime names other classes; a likeliest one may change with the limit."""
    wanted = {name: unpack_texts(each) for name, each in batch["text"].items()}
    if "labels" not in found:
        return ""
    labels = [str(each) for each in found["labels"]]
    likeliest = [labels[number] for number in found["probabilities"].argmax(-1)]
    if labels == wanted["labels"] and [str(each) for each in found["label"]] == likeliest:
        return ""
    return "it names other classes than at the export"


def difference_of_texts(graph: bytes, stored: Mapping[str, NDArray[Any]]) -> str:
    """Return a line about the first text of the file that is another than at the export."""
    wanted = unpack_texts(stored["texts"])
    found = texts_of(graph)
    for kind in wanted:
        before = wanted[kind]
        after = found[kind]
        for name in [*before, *(each for each in after if each not in before)]:
            if before.get(name) != after.get(name):
                what = {"metadata": "metadata", "tensors": "strings"}.get(kind, kind)
                return f"{what} {name!r}: {tell_difference(before.get(name), after.get(name))}"
    return ""


def tell_difference(before: Any, after: Any) -> str:
    """Return how two texts, or lists of them, differ."""
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = zip(before, after, strict=True)
        number, pair = next((n, each) for n, each in enumerate(pairs) if each[0] != each[1])
        return f"number {number + 1} is {pair[1]!r}, at the export {pair[0]!r}"
    for gone, there in ((after, "is missing"), (before, "was not there at the export")):
        if gone is None:
            return there
    return "differs from that of the export"


def pack_texts(value: Any) -> NDArray[np.uint8]:
    """Return texts as an array that can be loaded without unpickling."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def unpack_texts(array: NDArray[np.uint8]) -> Any:
    """Return what `pack_texts` was given."""
    return json.loads(array.tobytes())


def difference(name: str, found: NDArray[Any], wanted: NDArray[Any], unit: NDArray[Any]) -> float:
    """Return the largest difference, relative to an image's largest number or the unit above it.

    A unit of each column, (columns,), or the column's largest number, compares each by itself.
    Probabilities are compared as finely as the logits behind them: of a small one, a logit of -10
    say, the relative error is the logit's error, and that grows with the logit.
    """
    size = np.abs(wanted.astype(np.float64))
    largest = size.max(tuple(range(unit.ndim == 0, size.ndim)) if not unit.ndim else 0)
    if not unit.ndim:
        largest = largest.reshape(-1, *[1] * (size.ndim - 1))
    if name == "probabilities":
        largest = largest * np.maximum(1, -np.log(np.maximum(largest, 1e-30)))
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
    size = len(content)
    head = bytes([number << 3 | 2])
    while size > 127:
        head = head + bytes([size & 127 | 128])
        size = size >> 7
    return head + bytes([size]) + content


METADATA, GRAPH, TENSOR, OUTPUT, STRINGS = 14, 7, 5, 12, 8  # numbers of fields, and a type


def texts_of(graph: bytes) -> dict[str, dict[str, Any]]:
    """Return the metadata of an ONNX file, its tensors of strings, and its outputs' names."""
    found: dict[str, dict[str, Any]] = {"metadata": {}, "tensors": {}, "outputs": {}}
    for number, content in fields(memoryview(graph)):
        if number == METADATA:
            pair = dict(fields(content))
            found["metadata"][text(pair.get(1, b""))] = text(pair.get(2, b""))
        for kind, part in fields(content) if number == GRAPH else ():
            if kind == TENSOR:
                parts = [*fields(part)]
                about = dict(parts)
                if about.get(2) == STRINGS:
                    strings = [text(each) for place, each in parts if place == 6]
                    found["tensors"][text(about.get(8, b""))] = strings
            elif kind == OUTPUT:
                found["outputs"][text(dict(fields(part)).get(1, b""))] = ""
    return found


def text(content: Any) -> str:
    """Return the text of a field, whatever its bytes."""
    return bytes(content).decode("utf-8", "backslashreplace")


def fields(content: Any) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a protocol buffer."""
    place = 0
    while place < len(content):
        head, place = varint(content, place)
        if head & 7 == 0:
            value, place = varint(content, place)
        else:
            size = {1: 8, 5: 4}.get(head & 7)
            if size is None:
                size, place = varint(content, place)
            value = content[place : place + size]
            place += size
        yield head >> 3, value


def varint(content: Any, place: int) -> tuple[int, int]:
    """Return a number of a protocol buffer, and where it ends."""
    number = shift = 0
    while True:
        byte = content[place]
        number |= (byte & 127) << shift
        place += 1
        shift += 7
        if byte < 128:
            return number, place


def onnxruntime(graph: bytes, given: Numbers, names: list[str], setting: Setting) -> Numbers:
    """Run a graph by ONNX Runtime; a device is a provider, settings are of the session."""
    import onnxruntime

    there = onnxruntime.get_available_providers()
    short = {each.removesuffix("ExecutionProvider").upper(): each for each in there}
    device = (setting.device or "CPU").upper().removesuffix("EXECUTIONPROVIDER")
    if device not in short:
        raise RefusalError(f"no device {setting.device!r} here: --device {', '.join(short)}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    for key, value in setting.values.items():
        known = [f"session.{each}" for each in SESSION]
        if key not in known and not key.startswith(OTHERS):
            raise RefusalError(f"unknown --set {key}: {suggest(key, known)}")
        options.add_session_config_entry(key, value)
    session = onnxruntime.InferenceSession(graph, options, [short[device]])
    taken = session.get_providers()[0]
    if taken != short[device]:
        raise RefusalError(f"{short[device]} cannot be started: it fell back to {taken}")
    setting.device = device
    return dict(zip(names, session.run(names, given), strict=True))


def openvino(graph: bytes, given: Numbers, names: list[str], setting: Setting) -> Numbers:
    """Run a graph by OpenVINO, by default on the device that it chooses."""
    import openvino

    core = openvino.Core()
    asked = setting.device.partition(" ")[0].upper() or "AUTO"
    there = ["AUTO", *core.available_devices]
    if asked.partition(":")[0].partition(".")[0] not in [*there, "MULTI", "HETERO", "BATCH"]:
        raise RefusalError(f"no device {setting.device!r} here: --device {', '.join(there)}")
    known = {name for each in there for name in core.get_property(each, "SUPPORTED_PROPERTIES")}
    for key in setting.values:
        if key not in known:
            raise RefusalError(f"unknown --set {key}: {suggest(key, known)}")
    compiled = core.compile_model(core.read_model(graph), asked, setting.values)
    took = compiled.get_property("EXECUTION_DEVICES")
    took = took if isinstance(took, str) else ", ".join(took)
    setting.device = asked if asked == took else f"{asked} ({took})"
    found = compiled(given)
    return {name: found[compiled.output(name)] for name in names}


def suggest(key: str, known: Iterable[str]) -> str:
    """Return what a wrong key may have meant."""
    close = difflib.get_close_matches(key, known, 3, 0.5)
    return f"did you mean {', '.join(close)}?" if close else "the runtime has no such setting"


RUNTIMES = {"onnxruntime": onnxruntime, "openvino": openvino}

if __name__ == "__main__":
    sys.exit(main())
