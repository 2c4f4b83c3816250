"""A batch of several tasks: one pass of `vitlab.MultiTask` against the separate models.

`python benchmarks/multitask.py --models B/16:224 --tasks 8 --images 1 4 --cpu-time`

A model is SIZE/PATCH:PIXELS. Every task has attention weights and a classifier of its own on one
base. The forms: MultiTask; each task's whole model on its own rows, one after the other; the base
alone on all rows, which is what no form of several tasks can be faster than. Figures are medians
of interleaved rounds, ratios medians over pairs with MultiTask. Needs torch alone.
"""

import argparse
import copy
import statistics
import time
from datetime import date
from typing import Any

import torch
from measuring import interleaved, machine

import vitlab


def tuned(base: Any, seed: int) -> Any:
    """Return a copy with other attention weights, as fine-tuning would leave it."""
    model, generator = copy.deepcopy(base), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".qkv." in name or ".project." in name or name.startswith("head."):
                weight.add_(
                    (0.01 * torch.randn(weight.shape, generator=generator, device="cpu")).to(weight)
                )
    return model


def compare(spec: str, count: int, images: int, args: argparse.Namespace) -> None:
    """Measure one model with one number of images per task, and print its row."""
    kind, pixels = spec.split(":")
    base = vitlab.create(f"ViT-{kind}", classes=100, image_size=int(pixels)).eval()
    models = {f"task {n}": tuned(base, n) for n in range(count)}
    multi = vitlab.MultiTask(base)
    for name, model in models.items():
        multi.add(name, vitlab.delta(model, base))
    whole = count * sum(tensor.nbytes for tensor in base.state_dict().values())
    tasks = [name for _ in range(images) for name in models]  # all tasks in turns
    batch = torch.randn(len(tasks), 3, int(pixels), int(pixels))
    rows = {name: batch[[t == name for t in tasks]] for name in models}
    got, want = multi(batch, tasks), {n: list(m(rows[n])) for n, m in models.items()}
    error = max((g - want[t].pop(0)).abs().max().item() for g, t in zip(got, tasks, strict=True))
    works: dict[str, Any] = {
        "together": lambda: multi(batch, tasks),
        "apart": lambda: [model(rows[name]) for name, model in models.items()],
        "base alone": lambda: base(batch),
    }
    now = time.process_time if args.cpu_time else time.perf_counter
    times = interleaved(works, args.rounds, args.device, now=now)
    cells = [f"{kind} at {pixels}", str(count), str(images)]
    for name, each in times.items():
        pairs = zip(each, times["together"], strict=True)
        cells.append(f"{1000 * statistics.median(each):,.0f}")
        cells += [f"{statistics.median(a / b for a, b in pairs):.2f}"] * (name != "together")
    cells += [f"{multi.bytes / 1e6:,.0f}", f"{whole / 1e6:,.0f}", f"{error:.0e}"]
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["S/16:224", "B/16:224"])
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--images", nargs="+", type=int, default=[1, 4], help="per task")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--cpu-time", action="store_true", help="of the process: for a busy machine"
    )
    args = parser.parse_args()
    torch.set_default_device(args.device)
    print(f"{date.today()}, {machine(args.device)}\n")
    head = "model | tasks | images each | together, ms | apart, ms | ratio | base alone, ms | ratio"
    print(f"| {head} | MB together | MB apart | largest difference |\n" + "| --- " * 11 + "|")
    with torch.inference_mode():
        for spec in args.models:
            for images in args.images:
                compare(spec, args.tasks, images, args)


if __name__ == "__main__":
    main()
