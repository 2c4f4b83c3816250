"""Inference on a GPU in bf16: ours, timm's and transformers', eager, compiled and as CUDA graphs.

`python benchmarks/gpu_inference.py --models B/16 --batches 64 256 512 --compiled-batches 256`
`python benchmarks/gpu_inference.py --models B/16 --batches 1 --compiled-batches 1 --graphs`

All have the same weights, cast to bf16 (`timm/benchmark.py --precision bfloat16` does so too), and
the same images. Compiled is `torch.compile` for one batch size; with --graphs each form is captured
once and replayed. `accelerated` is `vitlab.accelerate`, which takes fp32 images and, compiled,
brings its own CUDA graphs. Each batch takes turns: figures are medians over rounds, ratios those of
pairs over the first form. The share is of the bf16 matrix-product rate measured at the start, at
two operations per multiply-add. The last column is the largest difference of a logit to that of our
model in fp32, over the largest logit. With torchao, a form in fp8 is measured as well.
Needs torch; peers that are not installed are left out.
"""

import argparse
import copy
import importlib
import statistics
import sys
from collections.abc import Callable
from datetime import date
from functools import partial
from typing import Any

import torch
from measuring import captured, interleaved, machine, seconds
from torch import Tensor, nn
from train import build_ours, build_timm, build_transformers, product_rate

import vitlab
from vitlab.models.model import Model

ACCELERATED, REPLAYED = "ours accelerated", "ours accelerated, compiled"
Forms = dict[str, Callable[[Tensor], Tensor]]


def eager_forms(size: str, patch: int, args: argparse.Namespace) -> dict[str, nn.Module]:
    """Return our model, its fused form and the peers' in bf16; and ours in fp32, as `exact`."""
    model = build_ours(size, patch, args.pixels).eval()
    forms: dict[str, nn.Module | None] = {
        "ours": copy.deepcopy(model),
        "ours fused": vitlab.fuse(model),
        ACCELERATED: vitlab.accelerate(
            model, device=args.device, precision="bf16", engine="packed"
        ),
        "timm": build_timm(model),
        "transformers": build_transformers(model),
    }
    there = {name: form for name, form in forms.items() if form is not None}
    low = {
        name: form.eval() if name == ACCELERATED else form.to(args.device, torch.bfloat16).eval()
        for name, form in there.items()
    }
    return low | {"exact": model.to(args.device)}


def compiled_forms(eager: dict[str, nn.Module], exact: Model, args: argparse.Namespace) -> Forms:
    """Return compiled forms, which are compiled at their first call."""
    names = {"ours compiled": "ours fused", "timm compiled": "timm"}
    forms: Forms = {
        name: torch.compile(eager[own], dynamic=False)
        for name, own in names.items()
        if own in eager
    }
    if args.device.startswith("cuda"):
        forms[REPLAYED] = vitlab.accelerate(
            exact, device=args.device, precision="bf16", engine="compiled"
        )
    if (small := in_fp8(eager["ours fused"], args.device)) is not None:
        forms["ours compiled, fp8"] = torch.compile(small, dynamic=False)
    return forms


def in_fp8(model: nn.Module, device: str) -> nn.Module | None:
    """Return a copy whose dense layers multiply in fp8, if torchao and the GPU can."""
    if not device.startswith("cuda") or torch.cuda.get_device_capability() < (8, 9):
        return None
    small = copy.deepcopy(model)
    try:
        tools: Any = importlib.import_module("torchao.quantization")
        way = tools.Float8DynamicActivationFloat8WeightConfig(granularity=tools.PerRow())
        tools.quantize_(small, way)
    except (ImportError, AttributeError, AssertionError, RuntimeError) as error:
        print(f"fp8 is left out: {error}", file=sys.stderr)
        return None
    return small


def compare(
    forms: Forms, images: Tensor, exact: Tensor, args: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Return seconds, the ratio of time to the first form's, and the error of each form."""
    low = images.to(torch.bfloat16)
    works: dict[str, Callable[[], object]] = {}
    errors: dict[str, float] = {}
    for name, form in forms.items():
        try:
            work = partial(form, images if "accelerated" in name else low)
            errors[name] = float((work().float() - exact).abs().max() / exact.abs().max())
            capture = args.graphs and name != REPLAYED
            works[name] = captured(work, args.device) if capture else work
        except (
            RuntimeError,
            AssertionError,
        ) as error:  # of memory, or what the compiler or a graph cannot take
            print(f"{name} is left out: {str(error).splitlines()[0]}", file=sys.stderr)
    once = min(seconds(work, args.device) for work in works.values())
    repeats = 1 if once > 0.02 else 5
    times = interleaved(works, args.rounds, args.device, warmup=3, repeats=repeats)
    first = next(iter(times.values()))
    return {
        name: {
            "seconds": statistics.median(each),
            "ratio": statistics.median(a / b for a, b in zip(each, first, strict=True)),
            "error": errors[name],
        }
        for name, each in times.items()
    }


def report(
    size: str, batch: int, found: dict[str, dict[str, float]], rate: float, macs: int
) -> None:
    """Print the rows of one batch size."""
    for name, one in found.items():
        cells = [
            size,
            str(batch),
            name,
            f"{1000 * one['seconds']:.3f}",
            f"{batch / one['seconds']:,.1f}",
            f"{one['ratio']:.2f}",
            f"{2 * macs * batch / one['seconds'] / rate:.1%}",
            f"{one['error']:.1e}",
        ]
        print("| " + " | ".join(cells) + " |", flush=True)


@torch.inference_mode()
def measure(name: str, rate: float, args: argparse.Namespace) -> None:
    """Measure one model at every batch size."""
    size, patch = name.split("/")
    torch.manual_seed(0)
    eager = eager_forms(size, int(patch), args)
    exact = eager.pop("exact")
    whole = vitlab.create(f"ViT-{name}", classes=1000, image_size=args.pixels)
    macs = vitlab.measure.cost(whole).macs
    for batch in sorted({*args.batches, *args.compiled_batches}):
        images = torch.randn(batch, 3, args.pixels, args.pixels, device=args.device)
        forms: Forms = dict(eager) if batch in args.batches else {}
        forms |= compiled_forms(eager, exact, args) if batch in args.compiled_batches else {}
        report(name, batch, compare(forms, images, exact(images), args), rate, macs)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["B/16"], help="SIZE/PATCH")
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--batches", nargs="+", type=int, default=[64, 256, 512])
    parser.add_argument("--compiled-batches", nargs="*", type=int, default=[256])
    parser.add_argument("--graphs", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    print(f"{date.today()}, {machine(args.device)}, bf16{', CUDA graphs' * args.graphs}")
    rate = product_rate(args.device, "bf16")
    print(f"{rate / 1e12:.3f} TFLOP/s in matrix products\n")
    head = "model | batch | form | ms | images/s | time over the first | share | error"
    print(f"| {head} |\n" + "| --- " * 8 + "|")
    for name in args.models:
        measure(name, rate, args)


if __name__ == "__main__":
    main()
