"""What native aspect ratios cost: packed images against squares of the same number of tokens.

`OMP_NUM_THREADS=1 python benchmarks/naflex.py --cpu-time --rounds 7`

Images of random aspect ratios, log-uniform from 1/RATIO to RATIO, are resized to at most `--tokens`
patches and packed; beside them, as many squares. Forward pass and training step (forward, backward,
AdamW) take turns, and the ratio is that of each pair of neighboring rounds: images/s of packed
batches over those of squares, and the same per token, as packed images have a few patches less.
`--sizes N` keeps the first N sizes, for data whose images come in few. Needs torch alone.
"""

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from measuring import interleaved, machine

import vitlab
from vitlab.images import native_size
from vitlab.models.packed import Packed


def sizes(count: int, patch: int, tokens: int, ratio: float, kinds: int) -> list[tuple[int, int]]:
    """Draw rows and columns in pixels of so many images."""
    draw = random.Random(0)
    drawn = [
        native_size(500 * ratio ** draw.uniform(-1, 1), 500, patch, tokens) for _ in range(count)
    ]
    few = list(dict.fromkeys(drawn))[: kinds or None]
    return [size if size in few else draw.choice(few) for size in drawn]


def works(model: Any, inputs: Any, train: bool, precision: str) -> Callable[[], object]:
    """Return a forward pass, or a training step."""
    device = next(model.parameters()).device.type
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    context = torch.autocast(device, torch.bfloat16, enabled=precision == "bf16")

    def forward() -> None:
        model.eval()
        with torch.inference_mode(), context:
            model(inputs)

    def step() -> None:
        model.train()
        optimizer.zero_grad()
        with context:
            loss = model(inputs).float().square().mean()
        loss.backward()
        optimizer.step()

    return step if train else forward


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ViT-Ti/16")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=196)
    parser.add_argument("--ratio", type=float, default=2.0)
    parser.add_argument("--sizes", type=int, default=0)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true", help="time of this process, not clock")
    args = parser.parse_args()
    model: Any = vitlab.create(args.model, 1000, 16 * math.isqrt(args.tokens)).to(args.device)
    patch, side = model.config.patch, model.config.image_size
    shapes = sizes(args.batch, patch, args.tokens, args.ratio, args.sizes)
    images = [torch.randn(3, *shape) for shape in shapes]
    packed = Packed.of(images, patch).to(torch.device(args.device))
    squares = torch.randn(args.batch, 3, side, side, device=args.device)
    share = len(packed.patches) / (args.batch * (side // patch) ** 2)
    print(f"{args.model}, {args.precision}, batch {args.batch}, {machine(args.device)}")
    print(f"{len(set(shapes))} sizes; packed images have {share:.1%} of the squares' patches\n")
    print("| | squares | packed | ratio of images/s | ratio of tokens/s |\n|" + " --- |" * 5)
    for name, train in (("forward", False), ("training step", True)):
        both = {
            "squares": works(model, squares, train, args.precision),
            "packed": works(model, packed, train, args.precision),
        }
        now = time.process_time if args.cpu_time else time.perf_counter
        times = interleaved(both, args.rounds, args.device, now=now)
        pairs = zip(times["squares"], times["packed"], strict=True)
        ratio = statistics.median(square / own for square, own in pairs)
        speed = [f"{args.batch / statistics.median(each):.1f}/s" for each in times.values()]
        print(
            f"| {name} | {speed[0]} | {speed[1]} | {ratio:.2f} | {ratio * share:.2f} |", flush=True
        )


if __name__ == "__main__":
    main()
