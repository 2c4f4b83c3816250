"""What augmentation costs: images/s of A2's and DeiT III's whole variation and mixing, at 224.

`python benchmarks/augment.py --batches 64 128 256 --device cuda --precision bf16`

Ours works on uint8 batches on the device that trains; beside it timm's on Pillow images (in one
process, so an image/s of one core) with its Mixup, and kornia's RandAugment, where they are
installed. The last column is our share of a ViT-S/16 training step (forward, backward, AdamW).
Figures are medians of interleaved rounds. Needs torch alone.
"""

import argparse
import importlib
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import vitlab
from vitlab.data.augment import mix
from vitlab.data.augment.augment import augment
from vitlab.data.augment.policy import draws_needed

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NOTHING = {
    "flip": True, "rotate": 0.0, "shift": 0.0, "zoom": 0.0, "shear": 0.0, "rand_ops": 0,
    "rand_magnitude": 7.0, "rand_std": 0.5, "rand_limit": 10.0, "rand_probability": 0.5,
    "rand_increasing": True, "three_augment": False, "color_jitter": 0.0, "hue_jitter": 0.0,
    "erase": 0.0, "mixup": 0.0, "cutmix": 1.0, "mix_switch": 0.5,
    "augment_interpolation": "bicubic",
}  # fmt: skip
POLICIES: dict[str, Any] = {  # as plain values: the recipes' own class needs the command line's
    "A2": SimpleNamespace(**NOTHING | {"rand_ops": 2, "mixup": 0.1}),
    "A2 + erasing": SimpleNamespace(**NOTHING | {"rand_ops": 2, "mixup": 0.1, "erase": 0.25}),
    "DeiT III": SimpleNamespace(
        **NOTHING | {"three_augment": True, "color_jitter": 0.3, "mixup": 0.8}
    ),
}


def pictures(batch: int, size: int) -> torch.Tensor:
    """Smooth noise, uint8 (B, size, size, 3)."""
    coarse = torch.rand(batch, 3, 14, 14, generator=torch.Generator().manual_seed(0))
    fine = torch.nn.functional.interpolate(coarse, (size, size), mode="bicubic")
    return (fine.clamp(0, 1) * 255).byte().permute(0, 2, 3, 1).contiguous()


def ours(how: Any, images: torch.Tensor) -> Callable[[int], object]:
    """One batch augmented and mixed; the argument is the step."""
    batch, size = len(images), (images.shape[1], images.shape[2])
    labels = torch.arange(batch, device=images.device) % 1000

    def run(step: int) -> object:
        numbers = torch.Generator().manual_seed(step)
        draws = torch.rand(batch, draws_needed(how), generator=numbers)
        pixels = augment(images, draws, how, MEAN, STD)
        mixed = mix.draw(how, step, size)
        assert mixed is not None
        return mixed(pixels, labels, 1000)

    return run


def peer(name: str) -> Any:
    """Another library, or None with a word why."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    try:  # published torchvision does not import beside every build of torch; timm needs it
        importlib.import_module("oracles.peers").prepare_torchvision()
    except ImportError:
        pass
    finally:
        sys.path.pop(0)
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:
        print(f"{name} is left out: {error}")
        return None


def timms(how: Any, images: torch.Tensor) -> Callable[[int], object] | None:
    """The same with timm's and torchvision's transforms, on Pillow images."""
    if peer("timm") is None:
        return None
    from PIL import Image, ImageFilter, ImageOps
    from timm.data import Mixup, rand_augment_transform
    from timm.data.random_erasing import RandomErasing
    from torchvision import transforms as tv

    fill = tuple(round(255 * each) for each in MEAN)
    hints = {"img_mean": fill, "interpolation": Image.Resampling.BICUBIC}
    steps: list[Any] = [tv.RandomHorizontalFlip()]
    if how.rand_ops:
        steps.append(rand_augment_transform("rand-m7-mstd0.5-inc1", hints))
    if how.three_augment:
        blur = tv.Lambda(lambda i: i.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0))))
        steps.append(tv.RandomChoice([tv.Grayscale(3), tv.Lambda(ImageOps.solarize), blur]))
    if how.color_jitter:
        steps.append(tv.ColorJitter(*(3 * (how.color_jitter,))))
    steps += [tv.PILToTensor(), tv.ConvertImageDtype(torch.float32), tv.Normalize(MEAN, STD)]
    if how.erase:
        steps.append(RandomErasing(how.erase, mode="pixel", device="cpu"))
    whole, blend = tv.Compose(steps), Mixup(how.mixup, how.cutmix, num_classes=1000)
    pillow = [Image.fromarray(each) for each in images.cpu().numpy()]
    labels = torch.arange(len(pillow)) % 1000
    return lambda step: blend(torch.stack([whole(each) for each in pillow]), labels)


def kornias(how: Any, images: torch.Tensor) -> Callable[[int], object] | None:
    """Kornia's flip, RandAugment and normalization: of A2 only, without mixing."""
    if how is not POLICIES["A2"] or peer("kornia") is None:
        return None
    auto: Any = importlib.import_module("kornia.augmentation.auto")
    kinds: Any = importlib.import_module("kornia.augmentation")
    flip, normalize = kinds.RandomHorizontalFlip(p=0.5), kinds.Normalize(MEAN, STD)
    policy = auto.RandAugment(n=2, m=7)
    return lambda step: normalize(policy(flip(images.permute(0, 3, 1, 2).float() / 255)))


def training_step(model: str, batch: int, device: str, precision: str) -> Callable[[int], object]:
    """A step of plain training on noise."""
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


def medians(runs: dict[str, Callable[[int], object]], rounds: int, device: str) -> dict[str, float]:
    """Seconds of each, interleaved; the first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for step in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run(step)
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            if step:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", nargs="+", type=int, default=[64, 128, 256])
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"])
    parser.add_argument("--model", default="ViT-S/16")
    parser.add_argument("--step-batch", type=int, help="of the training step (GPU: the batch)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--alone", action="store_true", help="leave timm and kornia out")
    args = parser.parse_args()
    device = torch.cuda.get_device_name() if args.device.startswith("cuda") else platform.machine()
    print(f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    print("| policy | batch | ours ms | images/s | timm images/s | kornia images/s | step share |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for batch in args.batches:
        images = pictures(batch, 224).to(args.device)
        at_once = args.step_batch or (batch if args.device.startswith("cuda") else 8)
        step = training_step(args.model, at_once, args.device, args.precision)
        for policy in args.policies:
            how = POLICIES[policy]
            runs = {"ours": ours(how, images), "step": step}
            peers = {} if args.alone else {"timm": timms, "kornia": kornias}
            runs |= {k: run for k, make in peers.items() if (run := make(how, images))}
            found = medians(runs, args.rounds, args.device)
            share = found["ours"] / batch / (found["step"] / at_once)
            speeds = [f"{batch / found[k]:,.0f}" if k in found else "" for k in ("timm", "kornia")]
            own = f"{1000 * found['ours']:.1f} | {batch / found['ours']:,.0f}"
            print(f"| {policy} | {batch} | {own} | {' | '.join(speeds)} | {share:.1%} |")


if __name__ == "__main__":
    main()
