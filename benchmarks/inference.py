"""Inference of plain ViTs on a CPU: ours against timm, transformers, ONNX Runtime and OpenVINO.

`python benchmarks/inference.py`
`python benchmarks/inference.py --models B/16:224 --batches 1 --rounds 31 --threads 2`
`python benchmarks/inference.py --models Ti/16:32 --batches 2 --rounds 1`: seconds, to try it out

A model is SIZE/PATCH:PIXELS. All forms have the same weights and see the same images, from float32
images to logits. Ours is `vitlab.accelerate` at its defaults, and with its precision stated, beside
the plain model; a line says which engine it has chosen. timm is as it is made, in bf16 weights, and
each of them in `torch.compile`'s default mode; transformers has its default attention; ONNX Runtime
and OpenVINO read our bare ONNX file, OpenVINO with a fixed batch and its hint for latency. Times
are medians of interleaved rounds, with a pause and a call that is not timed between the forms;
ratios are medians over pairs of one round. The difference is the largest of a logit to timm's in
fp32. The share is of the rate measured at the start for matrix products of the form's precision,
counting 2 operations per multiply-add. Peers that are not installed are left out.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import torch
from measuring import interleaved, machine, peer, seconds
from torch import Tensor, nn
from train import build_ours, build_timm, build_transformers

import vitlab

Form = Callable[[], Tensor]
BF16 = ("bf16", "bf16 compiled")  # endings of the forms that compute in bf16
TIMM = ("timm", "timm compiled", "timm bf16", "timm bf16 compiled")
GRAPHS = ("ONNX Runtime", "OpenVINO", "OpenVINO bf16")
OURS = ("plain", "ours", "ours fp32", "ours bf16")
FORMS = (*OURS, *TIMM, "transformers", *GRAPHS)


def running(network: Callable[[Tensor], Tensor], images: Tensor) -> Form:
    """Return the work of one form in PyTorch."""

    def run() -> Tensor:
        with torch.inference_mode():
            return network(images)

    return run


def of_timm(model: Any, images: Tensor, names: Collection[str]) -> dict[str, Form]:
    """Return timm's forms: eager and compiled, in fp32 and with bf16 weights."""
    made, half = build_timm(model), build_timm(model)
    if made is None or half is None:
        return {}
    single, lower = made.eval(), half.eval().bfloat16()

    def cast(x: Tensor) -> Tensor:
        return lower(x.bfloat16())

    forms: dict[str, Form] = {"timm": running(single, images), "timm bf16": running(cast, images)}
    for name, network in (("timm compiled", single), ("timm bf16 compiled", cast)):
        if name in names:
            torch._dynamo.reset()  # each shape is compiled by itself
            forms[name] = running(torch.compile(network, dynamic=False), images)
    return forms


def of_transformers(model: Any, images: Tensor) -> dict[str, Form]:
    """Return the form of transformers."""
    made: nn.Module | None = build_transformers(model)
    return {} if made is None else {"transformers": running(made.eval(), images)}


def exported(model: Any) -> bytes | None:
    """Return the model as a bare ONNX file; None without the packages that write it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        try:
            vitlab.export(model, file, bare=True)
        except vitlab.errors.PackageError as error:
            print(f"ONNX Runtime and OpenVINO are left out: {error}", file=sys.stderr)
            return None
        return file.read_bytes()


def of_onnxruntime(graph: bytes, images: Tensor, threads: int) -> dict[str, Form]:
    """Return the form of ONNX Runtime, at its defaults but for the threads."""
    runtime = peer("onnxruntime")
    if runtime is None:
        return {}
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    # threads that spin while they wait make the form after this one seem twice as slow
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    name, array = session.get_inputs()[0].name, images.numpy()
    return {"ONNX Runtime": lambda: torch.from_numpy(session.run(None, {name: array})[0])}


def of_openvino(graph: bytes, images: Tensor, threads: int) -> dict[str, Form]:
    """Return the forms of OpenVINO, in fp32 and bf16."""
    openvino = peer("openvino")
    if openvino is None:
        return {}
    core, array = openvino.Core(), images.numpy()

    def form(precision: str) -> Form:
        network = core.read_model(graph, b"")
        network.reshape(list(images.shape))
        settings = {
            "INFERENCE_PRECISION_HINT": precision,
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        request = core.compile_model(network, "CPU", settings).create_infer_request()
        return lambda: torch.from_numpy(request.infer([array])[0].copy())

    forms = {}
    for name, precision in (("OpenVINO", "f32"), ("OpenVINO bf16", "bf16")):
        with suppress(RuntimeError):  # bf16 where the processor has no instructions for it
            forms[name] = form(precision)
    return forms


def of_ours(model: Any, images: Tensor, names: Collection[str]) -> dict[str, Form]:
    """Return our forms: the model as it is, `accelerate` at defaults, and at each precision."""
    forms: dict[str, Form] = {"plain": running(model, images)}
    for name, precision in (("ours", "auto"), ("ours fp32", "fp32"), ("ours bf16", "bf16")):
        if name in names:
            fast = vitlab.accelerate(model, precision=precision, batch=len(images))
            forms[name] = running(fast, images)
            print(f"{name}: {fast.engine}, {fast.computes}", flush=True)
    return forms


def formed(model: Any, images: Tensor, args: argparse.Namespace) -> dict[str, Form]:
    """Return the forms that are asked for and can be had, on the same weights and images."""
    forms: dict[str, Form] = {}
    if {*OURS} & {*args.forms}:
        forms |= of_ours(model, images, args.forms)
    if {*TIMM} & {*args.forms}:
        forms |= of_timm(model, images, args.forms)
    if "transformers" in args.forms:
        forms |= of_transformers(model, images)
    if {*GRAPHS} & {*args.forms} and (graph := exported(model)) is not None:
        forms |= of_onnxruntime(graph, images, args.threads)
        forms |= of_openvino(graph, images, args.threads)
    return {name: form for name, form in forms.items() if name in args.forms}


def compare(spec: str, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return times, ratios and differences of all forms of one model at one batch size."""
    kind, pixels = spec.split(":")
    size, patch = kind.split("/")
    torch.manual_seed(0)
    model = build_ours(size, int(patch), int(pixels)).eval()
    images = torch.randn(batch, 3, int(pixels), int(pixels))
    forms = formed(model, images, args)
    with torch.inference_mode():
        reference = forms.get("timm", running(model, images))().float()
    difference = {n: (form().float() - reference).abs().max().item() for n, form in forms.items()}
    now = time.process_time if args.cpu_time else time.perf_counter
    works: dict[str, Callable[[], object]] = dict(forms)
    how = {"warmup": 2, "warm": True, "now": now, "pause": args.pause}
    times = interleaved(works, args.rounds, "cpu", **how)
    return {
        "seconds": {name: statistics.median(each) for name, each in times.items()},
        "times": times,
        "difference": difference,
        "macs": vitlab.measure.cost(model).macs * batch,
    }


def product_rate(dtype: torch.dtype, now: Callable[[], float]) -> float:
    """Return operations per second of a square matrix product, on the clock of the forms."""
    side = 1536
    a, b = (torch.randn(side, side).to(dtype) for _ in range(2))
    times = [seconds(lambda: a @ b, "cpu", now) for _ in range(9)]
    return 2 * side**3 / statistics.median(times[2:])


def over(times: dict[str, list[float]], name: str, base: str) -> str:
    """Return the median over rounds of one form's time over another's."""
    if base not in times:
        return ""
    pairs = zip(times[name], times[base], strict=True)
    return f"{statistics.median(a / b for a, b in pairs):.2f}"


def report(spec: str, batch: int, seen: dict[str, Any], rates: dict[str, float]) -> None:
    """Print the rows of the table."""
    times = seen["times"]
    for name, middle in seen["seconds"].items():
        half = name.endswith(BF16)
        own = "" if name == "ours" else ("bf16" if half else "fp32")
        share = 2 * seen["macs"] / middle / rates[own] if own else None
        cells = [
            f"{spec.replace(':', ' at ')}, batch {batch}",
            name,
            f"{1000 * middle:.2f}",
            f"{batch / middle:,.1f}",
            over(times, "timm", name) if "timm" in times else "",
            over(times, name, "ours"),
            f"{seen['difference'][name]:.1e}",
            f"{share:.0%}" if share else "",
        ]
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["Ti/16:224", "S/16:224", "B/16:224"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--pause", type=float, default=0.05, help="seconds between two forms")
    parser.add_argument(
        "--cpu-time", action="store_true", help="of the process: for a busy machine"
    )
    parser.add_argument("--json", type=Path, help="file for every single time")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    load = os.getloadavg()[0]
    print(f"{date.today()}, {machine('cpu')}, Python {platform.python_version()}, load {load:.1f}")
    now = time.process_time if args.cpu_time else time.perf_counter
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16}
    rates = {name: product_rate(dtype, now) for name, dtype in kinds.items()}
    print({each: f"{rate / 1e12:.3f} TFLOP/s in matrix products" for each, rate in rates.items()})
    head = "model | form | ms | images/s | timm's time over it | time over ours | difference"
    print(f"| {head} | share of product rate |")
    print("| --- | --- | --: | --: | --: | --: | --: | --: |")
    everything = []
    for spec in args.models:
        for batch in args.batches:
            seen = compare(spec, batch, args)
            report(spec, batch, seen, rates)
            everything.append({"model": spec, "batch": batch, "rates": rates} | seen)
    if args.json:
        args.json.write_text(json.dumps(everything))


if __name__ == "__main__":
    main()
