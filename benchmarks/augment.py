"""What augmentation costs: images/s of A2's and DeiT III's whole augmentation and mixing, at 224.

`python benchmarks/augment.py --batches 64 128 256 --device cuda --precision bf16`

Ours works on uint8 batches on the training device. Beside it: timm's transforms on Pillow images in
one process (so images/s of one core) with its Mixup, and kornia's RandAugment, where they are
installed. The last column is our share of the time of a ViT-S/16 training step (forward, backward,
AdamW). With --recipes, the policies are those of all recipes, each once, instead of the three here.
Figures are medians of interleaved rounds. Needs torch alone.
"""

import argparse
import importlib
import random
import statistics
from collections.abc import Callable
from typing import Any

import torch
from measuring import interleaved, machine, peer

import vitlab
from vitlab.data.augment import mix
from vitlab.data.augment.augment import augment
from vitlab.data.augment.draws import draws_needed
from vitlab.data.settings import Augment
from vitlab.images import ImageSpec
from vitlab.recipes.named import RECIPES

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RAND: dict[str, Any] = {
    "flip": True,
    "rand_ops": 2,
    "rand_magnitude": 7.0,
    "augment_interpolation": "bicubic",
    "mixup": 0.1,
    "cutmix": 1.0,
}
POLICIES = {
    "A2": Augment(**RAND),
    "A2 + erasing": Augment(**RAND, erase=0.25),
    "DeiT III": Augment(flip=True, three_augment=True, color_jitter=0.3, mixup=0.8, cutmix=1.0),
}


def of_recipes() -> dict[str, Augment]:
    """Return the augmentation of every recipe that has any, each once, by the recipes' names."""
    found: dict[Augment, list[str]] = {}
    for name, make in RECIPES.items():
        options = make().augment
        if options != Augment():
            found.setdefault(options, []).append(name)
    return {", ".join(names): options for options, names in found.items()}


Work = Callable[[int], object]  # a round; its argument is the step


def pictures(batch: int, size: int) -> torch.Tensor:
    """Smooth noise, uint8 (B, size, size, 3)."""
    coarse = torch.rand(batch, 3, 14, 14, generator=torch.Generator().manual_seed(0))
    fine = torch.nn.functional.interpolate(coarse, (size, size), mode="bicubic")
    return (fine.clamp(0, 1) * 255).byte().permute(0, 2, 3, 1).contiguous()


def ours(options: Augment, images: torch.Tensor) -> Work:
    """Augment and mix one batch."""
    batch, size = len(images), (images.shape[1], images.shape[2])
    labels = torch.arange(batch, device=images.device) % 1000

    def run(step: int) -> object:
        numbers = torch.Generator().manual_seed(step)
        draws = torch.rand(batch, draws_needed(options), generator=numbers)
        pixels = augment(images, draws, options, ImageSpec(mean=MEAN, std=STD))
        mixed = mix.draw(options, step, size)
        return pixels if mixed is None else mixed(pixels, labels, 1000)

    return run


def timms(options: Augment, images: torch.Tensor) -> Work | None:
    """Do the same with timm's and torchvision's transforms, on Pillow images."""
    if peer("timm") is None:
        return None
    from PIL import Image, ImageFilter, ImageOps
    from timm.data import Mixup, rand_augment_transform
    from timm.data.random_erasing import RandomErasing
    from torchvision import transforms as tv

    fill = tuple(round(255 * each) for each in MEAN)
    hints = {"img_mean": fill, "interpolation": Image.Resampling.BICUBIC}
    steps: list[Any] = [tv.RandomHorizontalFlip()]
    if options.rand_ops:
        steps.append(rand_augment_transform("rand-m7-mstd0.5-inc1", hints))
    if options.three_augment:
        blur = tv.Lambda(lambda i: i.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0))))
        steps.append(tv.RandomChoice([tv.Grayscale(3), tv.Lambda(ImageOps.solarize), blur]))
    if options.color_jitter:
        steps.append(tv.ColorJitter(*(3 * (options.color_jitter,))))
    steps += [tv.PILToTensor(), tv.ConvertImageDtype(torch.float32), tv.Normalize(MEAN, STD)]
    if options.erase:
        steps.append(RandomErasing(options.erase, mode="pixel", device="cpu"))
    whole, blend = tv.Compose(steps), Mixup(options.mixup, options.cutmix, num_classes=1000)
    pillow = [Image.fromarray(each) for each in images.cpu().numpy()]
    labels = torch.arange(len(pillow)) % 1000
    return lambda step: blend(torch.stack([whole(each) for each in pillow]), labels)


def kornias(options: Augment, images: torch.Tensor) -> Work | None:
    """Apply kornia's flip, RandAugment and normalization: of A2 only, without mixing."""
    if options is not POLICIES["A2"] or peer("kornia") is None:
        return None
    auto: Any = importlib.import_module("kornia.augmentation.auto")
    kinds: Any = importlib.import_module("kornia.augmentation")
    flip, normalize = kinds.RandomHorizontalFlip(p=0.5), kinds.Normalize(MEAN, STD)
    policy = auto.RandAugment(n=2, m=7)
    return lambda step: normalize(policy(flip(images.permute(0, 3, 1, 2).float() / 255)))


def training_step(model: str, batch: int, device: str, precision: str) -> Work:
    """Take a step of plain training on noise."""
    net = vitlab.create(model, classes=1000).to(device).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    pixels = torch.randn(batch, 3, 224, 224, device=device)
    labels = torch.arange(batch, device=device) % 1000

    def run(step: int) -> object:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=precision == "bf16"):
            loss = torch.nn.functional.cross_entropy(net(pixels), labels)
        loss.backward()
        optimizer.step()
        return loss

    return run


def medians(works: dict[str, Work], rounds: int, device: str) -> dict[str, float]:
    """Return the seconds of each, with another step in every round."""
    steps = {name: iter(range(rounds + 1)) for name in works}
    calls: dict[str, Any] = {
        name: lambda work=work, step=steps[name]: work(next(step)) for name, work in works.items()
    }
    times = interleaved(calls, rounds, device)
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", nargs="+", type=int, default=[64, 128, 256])
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"])
    parser.add_argument("--model", default="ViT-S/16")
    parser.add_argument(
        "--step-batch", type=int, help="batch of the training step (default: 8, on a GPU the batch)"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--recipes", action="store_true", help="measure those of all recipes")
    parser.add_argument("--alone", action="store_true", help="leave out timm and kornia")
    args = parser.parse_args()
    print(f"{machine(args.device)}\n")
    policies = of_recipes() if args.recipes else {name: POLICIES[name] for name in args.policies}
    print("| policy | batch | ours ms | images/s | timm images/s | kornia images/s | step share |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for batch in args.batches:
        images = pictures(batch, 224).to(args.device)
        at_once = args.step_batch or (batch if args.device.startswith("cuda") else 8)
        step = training_step(args.model, at_once, args.device, args.precision)
        for policy, options in policies.items():
            works = {"ours": ours(options, images), "step": step}
            peers = {} if args.alone else {"timm": timms, "kornia": kornias}
            works |= {k: work for k, make in peers.items() if (work := make(options, images))}
            found = medians(works, args.rounds, args.device)
            share = found["ours"] / batch / (found["step"] / at_once)
            speeds = [f"{batch / found[k]:,.0f}" if k in found else "" for k in ("timm", "kornia")]
            own = f"{1000 * found['ours']:.1f} | {batch / found['ours']:,.0f}"
            print(f"| {policy} | {batch} | {own} | {' | '.join(speeds)} | {share:.1%} |")


if __name__ == "__main__":
    main()
