"""What stochastic depth saves: forward and backward of a model at several rates.

`python benchmarks/drop_path.py --batch 16`

A sample that is dropped takes no part in a branch (the number of those that do is rounded up, to
keep shapes the same in every step), so at rate 0.4 the time should come near 60% of
that at rate 0. Figures are medians of interleaved rounds. Needs torch alone.
"""

import argparse
import statistics
from functools import partial
from typing import Any

import torch
from measuring import interleaved, machine

import vitlab


def step(model: Any, images: torch.Tensor) -> None:
    """Go forward and backward."""
    model(images).sum().backward()


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ViT-S/16")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rates", nargs="+", type=float, default=[0.0, 0.2, 0.4])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    images = torch.randn(args.batch, 3, 224, 224, device=args.device)
    models = {r: vitlab.create(args.model, drop_path=r).to(args.device).train() for r in args.rates}
    works: dict[str, Any] = {str(r): partial(step, model, images) for r, model in models.items()}
    times = interleaved(works, args.rounds, args.device)
    print(f"{args.model}, batch {args.batch}, {machine(args.device)}\n")
    print("| rate | forward and backward | share of the first |\n| --- | --- | --- |")
    medians = {rate: statistics.median(each) for rate, each in times.items()}
    whole = next(iter(medians.values()))
    for rate, middle in medians.items():
        print(f"| {rate} | {1000 * middle:.0f} ms | {middle / whole:.2f} |")


if __name__ == "__main__":
    main()
