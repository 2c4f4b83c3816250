"""What limits a pass: its kernels by time, how long the GPU idles, and a trace to look at.

`python benchmarks/gpu_profile.py --works inference train --traces runs/traces`

Each work is profiled over a few calls after some to warm up. Busy is the time during which some
kernel ran, over the time from the first kernel's start to the last one's end; a low share means
that Python launches too slowly. The traces, gzipped JSON, open in https://ui.perfetto.dev.
On a CPU the same is printed of operations. Needs torch alone.
"""

import argparse
import gzip
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import Any

import torch
from augment import POLICIES, pictures
from augment import ours as augmentation
from measuring import machine
from torch.profiler import ProfilerActivity, profile
from train import build_ours, our_step

import vitlab

Work = Callable[[], object]
Spans = list[tuple[float, float]]
LONGEST = 72  # letters of a kernel's name


def inference(args: argparse.Namespace) -> Work:
    """Return a forward pass of the fused ViT-B/16 in bf16."""
    size, pixels, batch = ("Ti1", 32, 2) if args.tiny else ("B", 224, 256)
    model = vitlab.fuse(build_ours(size, 16, pixels)).to(args.device, torch.bfloat16)
    images = torch.randn(batch, 3, pixels, pixels, device=args.device, dtype=torch.bfloat16)

    def call() -> None:
        with torch.inference_mode():
            model(images)

    return call


def _step(size: str, batch: int, args: argparse.Namespace, precision: str, rate: float) -> Work:
    size, pixels, batch = ("Ti1", 32, 2) if args.tiny else (size, 224, batch)
    model = vitlab.create(f"ViT-{size}/16", classes=1000, image_size=pixels, drop_path=rate)
    images = torch.randn(batch, 3, pixels, pixels, device=args.device)
    labels = torch.randint(1000, (batch,), device=args.device)
    ways = argparse.Namespace(device=args.device, compile=False)
    return our_step(model.to(args.device).train(), (images, labels), ways, precision)


def train(args: argparse.Namespace) -> Work:
    """Return a training step of ViT-B/16 under autocast."""
    return _step("B", 256, args, "bf16", 0.0)


def train_pure(args: argparse.Namespace) -> Work:
    """Return a training step of ViT-B/16 with weights in bf16 beside fp32 masters."""
    return _step("B", 256, args, "bf16-pure", 0.0)


def drop_path(args: argparse.Namespace) -> Work:
    """Return a training step of ViT-L/16 with stochastic depth."""
    return _step("L", 64, args, "bf16", 0.4)


def augment(args: argparse.Namespace) -> Work:
    """Return A2's augmentation of a batch."""
    images = pictures(*((2, 32) if args.tiny else (256, 224))).to(args.device)
    work, steps = augmentation(POLICIES["A2"], images), iter(range(10**6))
    return lambda: work(next(steps))


WORKS = {
    "inference": inference,
    "train": train,
    "train-pure": train_pure,
    "drop-path": drop_path,
    "augment": augment,
}


def joined(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of some spans of time."""
    total, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


def kernels(events: Iterable[Any], device: str) -> tuple[dict[str, Spans], Spans]:
    """Return the spans of each kernel (on a CPU: operation), in microseconds, and all of them."""
    by_name: dict[str, Spans] = defaultdict(list)
    kind = "CUDA" if device.startswith("cuda") else "CPU"
    for event in events:
        marks = getattr(event, "is_user_annotation", False)  # spans around kernels
        within = kind == "CPU" and event.cpu_parent is not None
        if event.device_type.name == kind and not (marks or within):
            by_name[event.name].append((event.time_range.start, event.time_range.end))
    return by_name, [span for spans in by_name.values() for span in spans]


def report(name: str, seen: Any, calls: int, device: str) -> None:
    """Print the kernels that take longest."""
    by_name, spans = kernels(seen.events(), device)
    if not spans:
        print(f"\n{name}: the profiler saw no kernel")
        return
    length = max(last for _, last in spans) - min(first for first, _ in spans)
    total = sum(last - first for first, last in spans)
    print(f"\n{name}: {length / calls / 1000:.2f} ms per call, busy {joined(spans) / length:.0%}, ")
    print(f"{len(spans) / calls:.0f} kernels per call\n")
    print("| kernel | ms per call | share | launches |\n| --- | --- | --- | --- |")
    order = sorted(by_name.items(), key=lambda each: -sum(b - a for a, b in each[1]))
    for title, own in order[:10]:
        taken = sum(last - first for first, last in own)
        title = title.replace("|", "/")[:LONGEST]
        cells = [f"`{title}`", f"{taken / calls / 1000:.3f}", f"{taken / total:.1%}"]
        print("| " + " | ".join([*cells, f"{len(own) / calls:.0f}"]) + " |", flush=True)


def record(name: str, args: argparse.Namespace) -> None:
    """Profile one work, print its table and keep its trace."""
    torch.manual_seed(0)
    work, on_gpu = WORKS[name](args), args.device.startswith("cuda")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    for _ in range(3):
        work()
    with profile(activities=activities) as seen:
        for _ in range(args.calls):
            work()
        if on_gpu:
            torch.cuda.synchronize()
    report(name, seen, args.calls, args.device)
    if args.traces:
        args.traces.mkdir(parents=True, exist_ok=True)
        plain = args.traces / f"{name}.json"
        seen.export_chrome_trace(str(plain))
        plain.with_suffix(".json.gz").write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()


def main() -> None:
    """Profile and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--works", nargs="+", default=list(WORKS), choices=list(WORKS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    print(f"{date.today()}, {machine(args.device)}")
    for name in args.works:
        record(name, args)


if __name__ == "__main__":
    main()
