"""How time grows with the number of tokens, and training memory with depth.

`python benchmarks/growth.py --model Ti/16 --precision bf16 --sizes 128 224 256 320 384 448 512`
`python benchmarks/growth.py --model B/16 --precision bf16 --steps none --depths`

Time: the same model at several image sizes, each with about as many tokens per pass, interleaved.
A row has the time for one image, that per token over the first row's, and the same of the
multiply-adds: attention's products grow with the square of the tokens, so that even a model that
takes the same time for every multiply-add is not linear in them. The last column is time per
multiply-add over the first row's. Memory: the peak of a training step, and what each image of the
batch adds to it, with and without computing blocks again for the backward pass; counted on a CPU,
the allocator's on a GPU. Needs torch alone.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
from measuring import interleaved, machine

import vitlab
from vitlab.measure.modes import Passes
from vitlab.measure.subject import peak
from vitlab.training.benchmark_step import PracticeSteps

Work = Callable[[], object]


def build(name: str, pixels: int, **choices: Any) -> Any:
    """Return a model of 1,000 classes."""
    return vitlab.create(f"ViT-{name}", classes=1000, image_size=pixels, **choices)


def subject(step: str, model: Any, args: argparse.Namespace, recompute: bool = False) -> Any:
    """Return what takes forward passes or training steps of any batch size."""
    where = torch.device(args.device)
    if step == "training":
        return PracticeSteps(
            model, args.precision, where, compiled=args.mode == "compiled", recompute=recompute
        )
    return Passes(model, args.mode, args.precision, where)


def quadratic_share(config: Any) -> float:
    """Return the share of a model's multiply-adds that grows with the square of its tokens."""
    products = 2 * config.length**2 * config.width * config.depth * config.branches
    return float(products / vitlab.measure.cost(config).macs)


def time_by_tokens(step: str, args: argparse.Namespace) -> list[dict[str, float]]:
    """Return a row for each image size: tokens, batch, milliseconds per image, multiply-adds."""
    works: dict[str, Work] = {}
    rows = []
    for pixels in args.sizes:
        model = build(args.model, pixels)
        tokens = model.config.length
        batch = max(1, round(args.tokens / tokens))
        works[str(pixels)] = subject(step, model, args).passes(batch)
        macs = vitlab.measure.cost(model).macs
        share = quadratic_share(model.config)
        rows.append({"tokens": tokens, "batch": batch, "macs": macs, "share": share})
    times = interleaved(works, args.rounds, args.device, warmup=2, now=args.now)
    for row, each in zip(rows, times.values(), strict=True):
        row["seconds"] = statistics.median(each) / row["batch"]
    return rows


def print_time(step: str, rows: list[dict[str, float]], args: argparse.Namespace) -> None:
    """Print one table of times."""
    how = f"{args.precision}, {args.mode}" if step == "inference" else args.precision
    print(f"\nViT-{args.model}, {step}, {how}\n")
    heads = ("tokens", "batch", "ms per image", "per token", "MACs per token", "quadratic share")
    print_row([*heads, "per MAC"])
    print_row(["---"] * 7)
    first = rows[0]
    for row in rows:
        slower, work = (
            row[key] / row["tokens"] / (first[key] / first["tokens"]) for key in ("seconds", "macs")
        )
        cells = [
            f"{row['tokens']:,.0f}", f"{row['batch']:.0f}", f"{1000 * row['seconds']:,.1f}",
            f"{slower:.2f}", f"{work:.2f}", f"{row['share']:.0%}", f"{slower / work:.2f}",
        ]  # fmt: skip
        print_row(cells)


def print_row(cells: list[str]) -> None:
    """Print a row of a Markdown table."""
    print("| " + " | ".join(cells) + " |", flush=True)


def memory(depth: int, recompute: bool, args: argparse.Namespace) -> tuple[int, float]:
    """Return the peak bytes of a step, and those that each image adds."""
    steps = subject("training", build(args.model, 224, depth=depth), args, recompute)
    few, many = (taken(steps, batch) for batch in (args.batch, 2 * args.batch))
    return few, (many - few) / args.batch


def taken(steps: Any, batch: int) -> int:
    """Return the peak bytes of a step: counted, or the allocator's."""
    if steps.where.type == "cpu":
        return int(steps.counted(batch))
    work = steps.passes(batch)
    work()
    return int(peak(steps, work, batch))


def print_memory(args: argparse.Namespace) -> None:
    """Print the table of training memory."""
    print(f"\nViT-{args.model} at 224, one training step, {args.precision}, batch {args.batch}\n")
    heads = ("all", "each image", "growth of that")
    print_row(["blocks", *(f"{kind}: {head}" for kind in ("kept", "again") for head in heads)])
    print_row(["---"] * 7)
    first: dict[bool, float] = {}
    for depth in args.depths:
        cells = [str(depth)]
        for recompute in (False, True):
            whole, each = memory(depth, recompute, args)
            first.setdefault(recompute, each)
            cells += [f"{whole / 1e6:,.0f} MB", f"{each / 1e6:,.1f} MB"]
            cells.append(f"{each / first[recompute]:.2f}")
        print_row(cells)


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="Ti/16")
    parser.add_argument("--sizes", nargs="+", type=int, default=[128, 192, 224, 256, 384, 448, 512])
    parser.add_argument("--steps", nargs="*", default=["inference", "training"])
    parser.add_argument("--depths", nargs="*", type=int, default=[6, 12, 24, 48])
    parser.add_argument("--batch", type=int, default=8, help="of the table of memory")
    parser.add_argument("--tokens", type=int, default=1025, help="about so many in each pass")
    parser.add_argument("--mode", default="fused")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true", help="for a busy machine")
    args = parser.parse_args()
    args.now = time.process_time if args.cpu_time else time.perf_counter
    print(f"{date.today()}, {machine(args.device)}, load {load()}")
    for step in args.steps:
        print_time(step, time_by_tokens(step, args), args)
    if args.depths:
        print_memory(args)


def load() -> str:
    """Return how many processes wanted a core, over the last minute (Linux)."""
    file = Path("/proc/loadavg")
    return file.read_text(encoding="ascii").split()[0] if file.exists() else "unknown"


if __name__ == "__main__":
    main()
