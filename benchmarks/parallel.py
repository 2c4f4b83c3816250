"""Parallel branches against a sequence of as many blocks (Three things, Table 4).

`python benchmarks/parallel.py --models S B --batches 1 2 4 8 16 --device cuda --precision bf16`

For each model and batch: a sequence of 36 blocks, 18 blocks of two branches that run one after the
other, the same as one wide computation (`vitlab.fuse`), the fused sequence, and timm's two models
if timm is installed. All have the same multiply-adds. Figures are medians of interleaved rounds;
ratios are over the plain sequence. With --graphs each is captured once as a CUDA graph and
replayed, so that launching from Python costs nothing. Needs torch alone.
"""

import argparse
import statistics
from functools import partial
from typing import Any

import torch
from measuring import captured, interleaved, machine, peer
from torch import nn

import vitlab

FORMS = ("36x1", "18x2 apart", "18x2 wide", "36x1 fused", "timm 36x1", "timm 18x2")


def ours(size: str, depth: int) -> dict[str, nn.Module]:
    """Return our forms of one size; a fused form has the weights of its model."""
    sequence = vitlab.create(f"ViT-{size}{depth}/16").eval()
    parallel = vitlab.create(f"ViT-{size}{depth // 2}x2/16").eval()
    return {
        "36x1": sequence,
        "18x2 apart": parallel,
        "18x2 wide": vitlab.fuse(parallel),
        "36x1 fused": vitlab.fuse(sequence),
    }


def theirs(size: str, depth: int) -> dict[str, nn.Module]:
    """Return timm's sequence and parallel model, if timm can be imported."""
    timm = peer("timm")
    if timm is None:
        return {}
    name = {"S": "small", "B": "base"}[size]
    sequence, parallel = f"vit_{name}_patch16_224", f"vit_{name}_patch16_18x2_224"
    return {
        "timm 36x1": timm.create_model(sequence, depth=depth).eval(),
        "timm 18x2": timm.create_model(parallel, depth=depth // 2).eval(),
    }


@torch.inference_mode()
def compare(
    forms: dict[str, nn.Module], batch: int, dtype: torch.dtype, args: argparse.Namespace
) -> dict[str, float]:
    """Return images per second of every form."""
    images = torch.randn(batch, 3, 224, 224, device=args.device, dtype=dtype)
    works: dict[str, Any] = {name: partial(model, images) for name, model in forms.items()}
    if args.graphs:
        works = {name: captured(work, args.device) for name, work in works.items()}
    times = interleaved(works, args.rounds, args.device, warmup=3, repeats=args.repeats)
    return {name: batch / statistics.median(each) for name, each in times.items()}


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["S", "B"], choices=["S", "B"])
    parser.add_argument("--depth", type=int, default=36, help="blocks of a sequence, for a trial")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--graphs", action="store_true", help="replay CUDA graphs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[args.precision]
    print(f"{machine(args.device)}, {args.precision}{', CUDA graphs' * args.graphs}; images/s\n")
    names: list[str] = []
    for size in args.models:
        forms = {**ours(size, args.depth), **theirs(size, args.depth)}
        forms = {name: model.to(args.device, dtype) for name, model in forms.items()}
        if args.compile:
            forms = {
                n: torch.compile(m, mode="max-autotune-no-cudagraphs") for n, m in forms.items()
            }
        if not names:
            names = [name for name in FORMS if name in forms]
            print("| model | batch | " + " | ".join(names) + " |")
            print("| --- " * (len(names) + 2) + "|")
        for batch in args.batches:
            speeds = compare(forms, batch, dtype, args)
            cells = [f"{speeds[n]:.1f} ({speeds[n] / speeds['36x1']:.2f})" for n in names]
            print(f"| {size} | {batch} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
