"""Attention by each back-end of PyTorch: forward, and forward with backward, shape by shape.

`python benchmarks/gpu_attention.py --shapes 256x12x197x64 1x6x197x64`

A shape is BATCH x HEADS x TOKENS x CHANNELS of a head; `as laid out` means queries, keys and values
cut from one product without a copy, as the model has them. Beside each time is its ratio to
PyTorch's own choice in the same round. Needs torch alone.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from datetime import date

import torch
from measuring import interleaved, machine
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
SHAPES = ["256x12x197x64", "256x6x197x64", "64x16x197x64", "1x12x197x64", "1x24x197x64"]
SHAPES += ["256x12x200x64", "32x12x577x64", "8x12x1025x64"]
Work = Callable[[], object]


def work(shape: list[int], form: str, backward: bool, device: str, dtype: torch.dtype) -> Work:
    """Return attention over tokens of a shape, by one back-end, `default` or `plain` products."""
    batch, heads, tokens, channels = shape
    made = torch.randn(batch, tokens, 3 * heads * channels, device=device, dtype=dtype)
    made.requires_grad_(backward)

    def call() -> Tensor:
        q, k, v = made.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        if form == "plain":
            return ((q * channels**-0.5) @ k.transpose(-2, -1)).softmax(-1) @ v
        if form == "default":
            return F.scaled_dot_product_attention(q, k, v)
        with sdpa_kernel(BACKENDS[form]):
            return F.scaled_dot_product_attention(q, k, v)

    def step() -> None:
        made.grad = None
        found = call()
        if backward:
            found.backward(found.detach())

    return step


def able(name: str, one: Work) -> bool:
    """Return whether a back-end takes such tensors."""
    try:
        one()
    except RuntimeError as error:
        print(f"{name} is left out: {str(error).splitlines()[0]}", file=sys.stderr)
        return False
    return True


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    print(f"{date.today()}, {machine(args.device)}, {args.precision}\n")
    forms = ["default", *BACKENDS, "plain"]
    print("| shape | | " + " | ".join(forms) + " |\n" + "| --- " * (2 + len(forms)) + "|")
    for text in args.shapes:
        shape = [int(each) for each in text.split("x")]
        for backward in (False, True):
            works = {n: work(shape, n, backward, args.device, dtype) for n in forms}
            works = {n: one for n, one in works.items() if able(n, one)}
            times = interleaved(works, args.rounds, args.device, warmup=2, repeats=3)
            middle = {name: statistics.median(each) for name, each in times.items()}
            cells = [
                f"{1e6 * middle[n]:,.0f} µs ({middle[n] / middle['default']:.2f})"
                if n in middle
                else ""
                for n in forms
            ]
            title = "with backward" if backward else "forward"
            print(f"| {text} | {title} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
