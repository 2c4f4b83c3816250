"""What stochastic depth saves: forward and backward of a model at several rates.

`python benchmarks/drop_path.py --batch 16`
`python benchmarks/drop_path.py --model ViT-L/16 --batch 64 --rates 0 0.4 --precision bf16 --peer`

A sample that is dropped takes no part in a branch (the number of those that do is rounded up, to
keep shapes the same in every step), so at rate 0.4 the time should come near 60% of
that at rate 0. With --peer, timm's model of the same shape takes turns; it computes every branch
for every sample. Weights are fp32, precision bf16 is autocast. Figures are medians of interleaved
rounds. Needs torch alone; timm is left out if it is not installed.
"""

import argparse
import statistics
from functools import partial
from typing import Any

import torch
from measuring import interleaved, machine, peer
from torch import nn

import vitlab


def step(model: nn.Module, images: torch.Tensor, precision: str) -> None:
    """Go forward and backward, and drop the gradient."""
    model.zero_grad(set_to_none=True)
    with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "bf16"):
        loss = model(images).float().sum()
    loss.backward()


def timms(model: Any, rate: float) -> nn.Module | None:
    """Return timm's model of the same shape with random weights, if timm can be imported."""
    timm, config = peer("timm"), model.config
    if timm is None:
        return None
    return timm.models.VisionTransformer(
        img_size=config.image_size,
        patch_size=config.patch,
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.heads,
        mlp_ratio=config.mlp / config.width,
        num_classes=config.classes,
        drop_path_rate=rate,
    )


def forms(args: argparse.Namespace) -> dict[tuple[str, str], nn.Module]:
    """Return the models by rate and library."""
    found: dict[tuple[str, str], nn.Module | None] = {}
    for rate in args.rates:
        own = vitlab.create(args.model, 1000, args.pixels, drop_path=rate)
        found[str(rate), "ours"] = own
        found[str(rate), "timm"] = timms(own, rate) if args.peer else None
    there = {key: model for key, model in found.items() if model is not None}
    return {key: model.to(args.device).train() for key, model in there.items()}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ViT-S/16")
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rates", nargs="+", type=float, default=[0.0, 0.2, 0.4])
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--peer", action="store_true", help="measure timm's model, too")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    images = torch.randn(args.batch, 3, args.pixels, args.pixels, device=args.device)
    works: dict[str, Any] = {
        f"{rate} | {name}": partial(
            step, torch.compile(model) if args.compile else model, images, args.precision
        )
        for (rate, name), model in forms(args).items()
    }
    times = interleaved(works, args.rounds, args.device, warmup=2)
    print(f"{args.model}, {args.precision}, batch {args.batch}, {machine(args.device)}\n")
    print("| rate | form | ms | images/s | share of the first |\n" + "| --- " * 5 + "|")
    medians = {title: statistics.median(each) for title, each in times.items()}
    whole = next(iter(medians.values()))
    for title, middle in medians.items():
        speed = f"{1000 * middle:.1f} | {args.batch / middle:,.1f}"
        print(f"| {title} | {speed} | {middle / whole:.2f} |")


if __name__ == "__main__":
    main()
