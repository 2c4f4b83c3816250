"""What stochastic depth saves: a training step at rate 0 and at rate 0.4, ViT-S/16's blocks.

`python benchmarks/drop_path.py --batch 16`

Dropped samples take no part in a branch, so a step at rate 0.4 should come near 60% of the blocks'
time. Figures are medians of interleaved rounds. Needs torch alone.
"""

import argparse
import statistics
import time

import torch

import vitlab


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
    times: dict[float, list[float]] = {rate: [] for rate in models}
    for number in range(args.rounds + 1):
        for rate, model in models.items():
            start = time.perf_counter()
            model(images).sum().backward()
            if args.device.startswith("cuda"):
                torch.cuda.synchronize()
            if number:  # the first round warms up
                times[rate].append(time.perf_counter() - start)
    print(f"{args.model}, batch {args.batch}, {args.device}, torch {torch.__version__}\n")
    print("| rate | forward and backward | of rate 0 |\n| --- | --- | --- |")
    whole = statistics.median(times[args.rates[0]])
    for rate, each in times.items():
        middle = statistics.median(each)
        print(f"| {rate} | {1000 * middle:.0f} ms | {middle / whole:.2f} |")


if __name__ == "__main__":
    main()
