"""One training step of a plain ViT, ours against timm's and transformers', on the same weights.

`python benchmarks/train.py --models Ti/16:224:8 Ti/4:32:64 --precisions fp32 bf16`
`python benchmarks/train.py --models B/16:224:256 --precisions bf16 --compile --device cuda`

A model is SIZE/PATCH:PIXELS:BATCH. A step is forward, softmax cross-entropy, backward and AdamW,
each side as its own training does it: ours with fused AdamW, clipping at norm 1 and the check that
loss and gradient are finite; timm's train script with `--opt adamw` and `--amp`, which neither
clips nor fuses; the Trainer of transformers with fused AdamW and clipping at 1. Precision bf16 is
autocast; bf16-pure (ours alone) has weights in bf16 beside fp32 masters. Figures are medians of
interleaved rounds; ratios are over ours, above 1 where ours is faster or smaller. On a CPU each
side steps in a process of its own, since ours tells the C library to keep freed memory. Memory is
measured one form at a time: the GPU's peak, or the growth of a process of its own. The share is of
the matrix-product rate measured at the start, counting 6 operations per multiply-add and image.
Needs torch; peers that are not installed are left out.
"""

import argparse
import copy
import gc
import importlib
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from measuring import machine, peer, seconds
from torch import nn
from torch.nn import functional as F

import vitlab

Step = Callable[[], float]  # takes a step and returns its loss
Timed = Callable[[], tuple[float, float]]  # takes a step and returns its loss and its seconds


class Logits(nn.Module):
    """A model of transformers that returns its class scores."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) to (B, classes)."""
        return self.model(images).logits


def build_ours(size: str, patch: int, pixels: int) -> Any:
    """Return our model, with a head that is not zero."""
    model = vitlab.create(f"ViT-{size}/{patch}", classes=1000, image_size=pixels)
    torch.nn.init.normal_(model.head.classify.weight, std=0.02)
    return model


def build_timm(model: Any) -> nn.Module | None:
    """Return timm's model with the weights of ours."""
    timm = peer("timm")
    if timm is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        vitlab.save(model, folder, to="timm")
        return timm.create_model(f"local-dir:{folder}", pretrained=True)


def build_transformers(model: Any) -> nn.Module | None:
    """Return the model of transformers with the weights of ours."""
    transformers = peer("transformers")
    if transformers is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        vitlab.save(model, folder, to="transformers")
        return Logits(transformers.AutoModelForImageClassification.from_pretrained(folder))


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return the parameters in two groups: kernels are decayed, the rest is not."""
    weights = list(model.parameters())
    return [
        {"params": [w for w in weights if w.ndim > 1], "weight_decay": 0.05},
        {"params": [w for w in weights if w.ndim <= 1], "weight_decay": 0.0},
    ]


def our_step(model: nn.Module, batch: Any, args: argparse.Namespace, precision: str) -> Step:
    """Step as `vitlab train` does."""
    from vitlab.device import keep_freed_memory
    from vitlab.training.guard import Figures, can_skip, take_step
    from vitlab.training.precision import TrainingEngine

    if not batch[0].is_cuda:
        keep_freed_memory()
    optimizer = torch.optim.AdamW(groups(model), lr=1e-4, fused=True)
    engine = TrainingEngine(model, precision, args.compile)
    late = batch[0].is_cuda and can_skip(optimizer)
    figures = Figures(0, len(batch[1]), torch.zeros(3, dtype=torch.float64))

    def step() -> float:
        nonlocal figures
        before = figures
        optimizer.zero_grad(set_to_none=True)
        engine.begin()
        with engine.computing():
            scores = engine.network(engine.images(batch[0]))
        loss = F.cross_entropy(scores.float(), batch[1])
        loss.backward()
        engine.collect()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        numbers = torch.stack([loss.detach().double(), loss.detach().double(), norm.double()])
        take_step(optimizer, numbers, late)
        figures = Figures(1, len(batch[1]), numbers, late)
        return before.loss if late else figures.loss

    return step


def timm_step(model: nn.Module, batch: Any, args: argparse.Namespace, precision: str) -> Step:
    """Step as timm's train.py with `--opt adamw --weight-decay 0.05 --amp --amp-dtype bfloat16`."""
    create = importlib.import_module("timm.optim").create_optimizer_v2
    optimizer = create(model, opt="adamw", lr=1e-4, weight_decay=0.05)
    network: Any = torch.compile(model) if args.compile else model
    device = batch[0].device.type

    def step() -> float:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            loss = F.cross_entropy(network(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item() if device == "cpu" else 0.0

    return step


def transformers_step(
    model: nn.Module, batch: Any, args: argparse.Namespace, precision: str
) -> Step:
    """Step as the Trainer does: fused AdamW, clipping at 1."""
    optimizer = torch.optim.AdamW(groups(model), lr=1e-4, fused=True)
    network: Any = torch.compile(model) if args.compile else model
    device = batch[0].device.type

    def step() -> float:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            loss = F.cross_entropy(network(batch[0]), batch[1])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item() if device == "cpu" else 0.0

    return step


FORMS = ("ours", "ours bf16-pure", "timm", "transformers")


def form(name: str, spec: str, precision: str, args: argparse.Namespace) -> Step | None:
    """Return the step of one side, on the same weights and batch as the others'."""
    kind, pixels, batch = spec.split(":")
    size, patch = kind.split("/")
    torch.manual_seed(0)
    model = build_ours(size, int(patch), int(pixels))
    images = torch.randn(int(batch), 3, int(pixels), int(pixels))
    data = images.to(args.device), torch.randint(1000, (int(batch),)).to(args.device)
    if name.startswith("ours"):
        precision = "bf16-pure" if name.endswith("pure") else precision
        return our_step(copy.deepcopy(model).to(args.device).train(), data, args, precision)
    build, take = {
        "timm": (build_timm, timm_step),
        "transformers": (build_transformers, transformers_step),
    }[name]
    other = build(model)
    return other and take(other.to(args.device).train(), data, args, precision)


def memory(name: str, spec: str, precision: str, args: argparse.Namespace) -> int:
    """Return the peak bytes of one form by itself."""
    if args.device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        base = torch.cuda.memory_allocated()
        step = form(name, spec, precision, args)
        assert step is not None
        for _ in range(3):
            step()
        return torch.cuda.max_memory_allocated() - base
    words = [sys.executable, __file__, "--memory-of", name, "--models", spec]
    words += ["--precisions", precision]
    return int(json.loads(subprocess.run(words, capture_output=True, check=True).stdout)["bytes"])


def memory_here(name: str, spec: str, precision: str, args: argparse.Namespace) -> None:
    """Print by how many bytes this process grows in three steps, libraries not counted."""
    warm = form(name, "Ti/16:32:2", precision, args)
    assert warm is not None
    warm()
    del warm
    base = memory_from_here()
    step = form(name, spec, precision, args)
    assert step is not None
    for _ in range(3):
        step()
    print(json.dumps({"bytes": peak_since(base)}))


def memory_from_here() -> int:
    """Return this process's memory, in KiB, and count its peak from now on (Linux)."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return _kib("VmRSS")


def peak_since(base: int) -> int:
    """Return by how many bytes this process grew at most."""
    return 1024 * (_kib("VmHWM") - base)


def _kib(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))


def product_rate(device: str, precision: str) -> float:
    """Return operations per second of a large square matrix product, the median of several."""
    side = 8192 if device == "cuda" else 1536
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    a = torch.randn(side, side, device=device, dtype=dtype)
    b = torch.randn(side, side, device=device, dtype=dtype)
    for _ in range(3):
        a @ b
    times = [seconds(lambda: a @ b, device) for _ in range(20 if device == "cuda" else 7)]
    return 2 * side**3 / statistics.median(times)


def timed(name: str, spec: str, precision: str, args: argparse.Namespace) -> Timed | None:
    """Return the step of one side and what it takes, on a CPU in a process of its own."""
    if args.device != "cpu":
        step = form(name, spec, precision, args)
        return step and (lambda: with_seconds(step, args))
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    words = there, name, spec, precision, args
    context.Process(target=stepping, args=words, daemon=True).start()
    there.close()

    def ask() -> tuple[float, float]:
        here.send("step")
        answer: tuple[float, float] = here.recv()
        return answer

    return ask if here.recv() else None


def stepping(
    line: Connection, name: str, spec: str, precision: str, args: argparse.Namespace
) -> None:
    """Take a step whenever asked to, until the other end is closed."""
    step = form(name, spec, precision, args)
    line.send(step is not None)
    with suppress(EOFError):
        while step is not None:
            line.recv()
            line.send(with_seconds(step, args))


def with_seconds(step: Step, args: argparse.Namespace) -> tuple[float, float]:
    """Take a step; return its loss and its seconds."""
    loss: list[float] = []
    now = time.process_time if args.cpu_time else time.perf_counter
    took = seconds(lambda: loss.append(step()), args.device, now)
    return loss[0], took


def in_turns(forms: dict[str, Timed], args: argparse.Namespace) -> dict[str, list[float]]:
    """Return the seconds of each form, one a round, the best of `repeats`; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in forms}
    for turn in range(-2, args.rounds):
        for name in list(forms) if turn % 2 else list(reversed(forms)):
            took = min(forms[name]()[1] for _ in range(args.repeats))
            times[name] += [took] if turn >= 0 else []
    return times


def compare(spec: str, precision: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return times and memory of all forms of one model."""
    names = [n for n in args.forms if precision == "bf16" or n != "ours bf16-pure"]
    steps = {name: timed(name, spec, precision, args) for name in names}
    forms = {name: step for name, step in steps.items() if step is not None}
    first = {name: step()[0] for name, step in forms.items()}  # the loss before any update
    times = in_turns(forms, args)
    medians = {name: statistics.median(each) for name, each in times.items()}
    pairs = {
        name: statistics.median(a / b for a, b in zip(times[name], times["ours"], strict=True))
        for name in forms
    }
    del steps, forms
    gc.collect()  # closes the lines to the processes, which then end
    held = {} if args.no_memory else {n: memory(n, spec, precision, args) for n in medians}
    return {"loss": first, "seconds": medians, "ratios": pairs, "bytes": held}


def report(spec: str, precision: str, seen: dict[str, Any], rate: float) -> None:
    """Print the rows of the table."""
    kind, pixels, batch = spec.split(":")
    macs = vitlab.measure.cost(
        vitlab.create(f"ViT-{kind}", classes=1000, image_size=int(pixels))
    ).macs
    work = 6 * macs * int(batch)
    own = seen["bytes"].get("ours", 0)
    for name, middle in seen["seconds"].items():
        held = seen["bytes"].get(name, 0)
        cells = [
            f"{kind} at {pixels}, batch {batch}",
            precision,
            name,
            f"{1000 * middle:.1f}",
            f"{int(batch) / middle:,.1f}",
            f"{seen['ratios'][name]:.2f}",
            f"{held / 1e6:,.0f}" if held else "",
            f"{held / own:.2f}" if own else "",
            f"{work / middle / rate:.0%}",
        ]
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["Ti/16:224:8", "Ti/4:32:64"])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="measure the CPU time of the process: for a busy machine",
    )
    parser.add_argument("--memory-of", choices=FORMS)
    args = parser.parse_args()
    if "ours" not in args.forms:
        parser.error("--forms must include ours: the others are compared with it")
    if args.memory_of:
        return memory_here(args.memory_of, args.models[0], args.precisions[0], args)
    if args.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
    print(f"{date.today()}, {machine(args.device)}")
    rates = {each: product_rate(args.device, each) for each in args.precisions}
    print({each: f"{rate / 1e12:.3f} TFLOP/s in matrix products" for each, rate in rates.items()})
    head = "model | precision | form | ms per step | images/s | time over ours | MB | MB over ours"
    print(f"\n| {head} | share |\n" + "| --- " * 9 + "|")
    losses = {}
    for spec in args.models:
        for precision in args.precisions:
            seen = compare(spec, precision, args)
            losses[spec, precision] = seen["loss"]
            report(spec, precision, seen, rates[precision])
    print("\nloss before the first update:", losses)
    return None


if __name__ == "__main__":
    main()
