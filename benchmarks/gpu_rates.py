"""What a device computes and moves: matrix products in each precision, copies, and the launch.

`python benchmarks/gpu_rates.py`

A product is one of two square matrices of normal numbers; a figure is the median of rounds of
several products, and the same over one second without a pause, when the clock has come down. fp8
has one scale a matrix (`torch._scaled_mm`) and fast accumulation. A copy is counted twice, read and
written. Launch is the time from Python of one small operation among many. Needs torch alone.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date

import torch
from measuring import machine, seconds
from torch import Tensor

AT_ONCE = 10  # products, copies or launches timed together
Work = Callable[[], object]


def fp8(a: Tensor, b: Tensor) -> Work:
    """Return the product of two matrices in 8 bits."""
    small = torch.float8_e4m3fn
    left, right = a.to(small), b.to(small).t().contiguous().t()
    scale = torch.ones((), device=a.device)
    return lambda: torch._scaled_mm(
        left, right, scale, scale, out_dtype=torch.bfloat16, use_fast_accum=a.is_cuda
    )


def product(precision: str, side: int, device: str) -> Work:
    """Return the product of two matrices in a precision: bf16, fp16, tf32, fp32 or fp8."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
    kind = kinds.get(precision, torch.float32)
    a, b = (torch.randn(side, side, device=device, dtype=kind) for _ in range(2))
    return fp8(a, b) if precision == "fp8" else lambda: a @ b


def several(work: Work) -> Work:
    """Return some calls of a work as one."""

    def call() -> None:
        for _ in range(AT_ONCE):
            work()

    return call


def median(work: Work, rounds: int, device: str) -> float:
    """Return the seconds of one call: the median over rounds of several."""
    together = several(work)
    together()
    return statistics.median(seconds(together, device) for _ in range(rounds)) / AT_ONCE


def sustained(work: Work, device: str, length: float) -> float:
    """Return the seconds of one call, over a longer time without a pause."""
    calls, together = 0, several(work)
    end = time.perf_counter() + length
    start = time.perf_counter()
    while time.perf_counter() < end:
        seconds(together, device)
        calls += AT_ONCE
    return (time.perf_counter() - start) / calls


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp16", "tf32", "fp32", "fp8"])
    parser.add_argument("--side", type=int, default=8192)
    parser.add_argument("--megabytes", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    print(f"{date.today()}, {machine(args.device)}\n")
    print("| matrix product | side | TFLOP/s | over one second |\n| --- | --- | --- | --- |")
    length = 1.0 if args.device.startswith("cuda") else 0.01
    for precision in args.precisions:
        try:
            work = product(precision, args.side, args.device)
            taken = median(work, args.rounds, args.device)
            long = sustained(work, args.device, length)
        except (RuntimeError, NotImplementedError) as error:
            print(f"{precision} is left out: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        rates = [f"{2 * args.side**3 / each / 1e12:.3g}" for each in (taken, long)]
        print(f"| {precision} | {args.side} | {rates[0]} | {rates[1]} |", flush=True)
    count = args.megabytes * 1_000_000
    source = torch.ones(count, dtype=torch.uint8, device=args.device)
    target = torch.empty_like(source)
    moved = median(lambda: target.copy_(source), args.rounds, args.device)
    small = torch.ones(8, device=args.device)
    launch = median(lambda: small.add_(0), args.rounds, args.device)
    print("\n| other | |\n| --- | --- |")
    print(f"| copy within the device, read and written | {2 * count / moved / 1e9:,.0f} GB/s |")
    print(f"| a small operation, from Python | {1e6 * launch:.1f} µs |")


if __name__ == "__main__":
    main()
