"""One training step of each pretext task against a supervised step of the same Vision Transformer.

`python benchmarks/pretext_steps.py --models S/16:224:8 Ti/4:32:64`
`python benchmarks/pretext_steps.py --models B/16:224:256 --precision bf16 --device cuda`

A model is SIZE/PATCH:PIXELS:BATCH. A step is loss, backward, clipping at norm 1 and fused AdamW,
masks and targets included, and DINO's momentum teacher, on images that are already there. BEiT's
tokenizer has random weights, which take as long as trained ones; by default the small one of the
recipe, with codes of half a patch. Steps take turns within a round. Figures are medians over
rounds: on a CPU of the process's own time, so that other work on the machine counts little. A ratio
is a row's time over that of the supervised step in the same round, and its median over rounds.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from measuring import interleaved, machine
from torch import Tensor, nn

import vitlab
from vitlab.data.loading.batch import Batch
from vitlab.data.settings import Augment
from vitlab.models.model import Model
from vitlab.models.vit import VisionTransformer
from vitlab.objectives.classify import Classify
from vitlab.objectives.pretext_task import Learner, PretextTask
from vitlab.objectives.pretext_tasks import TASKS
from vitlab.recipes.pretext import Pretext

CLASSES = 1000


def _decoder(width: int) -> dict[str, int]:
    """Return the options of MAE's recipe for encoders narrower than ViT-B."""
    return {"decoder_width": width, "decoder_depth": 4, "decoder_heads": width // 32}


# Options by row; the first word of a row's name is its task.
ROWS: dict[str, dict[str, Any]] = {
    "mae": {"mask_ratio": 0.75},  # with the paper's decoder, 512 wide, 8 blocks
    "masked-patch mean-color": {},
    "masked-patch downsized": {"target": "downsized"},
    "masked-patch pixels": {"target": "pixels"},
    "beit": {"mask_ratio": 75 / 196},
    "dino": {},
    "mae 512x4": {"mask_ratio": 0.75, "decoder_depth": 4},  # width and blocks of the decoder
    "mae 192x4": {"mask_ratio": 0.75} | _decoder(192),  # the recipe's for ViT-S
    "mae 96x4": {"mask_ratio": 0.75} | _decoder(96),  # for ViT-Ti
}
Work = Callable[[], object]


class Supervised(nn.Module):
    """A classifier with its loss, as one module."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, self.objective = model, Classify()

    def forward(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean cross-entropy, and how many images are right."""
        return self.objective.loss(self.model, batch, generator)


def main() -> None:
    """Measure and print one table for each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["S/16:224:8"], help="SIZE/PATCH:PIXELS:N")
    parser.add_argument("--stem", default="linear")
    parser.add_argument("--tokenizer", default="", help="such as DALL-E/8 or dVAE/8")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{machine(args.device)}, load {os.getloadavg()[0]:.1f}; {args.precision}\n")
    now = time.perf_counter if args.device.startswith("cuda") else time.process_time
    for each in args.models:
        name, pixels, batch = each.split(":")
        works = {"supervised": work_of("", name, int(pixels), int(batch), args)}
        works |= {row: work_of(row, name, int(pixels), int(batch), args) for row in args.rows}
        times = interleaved(works, args.rounds, args.device, now=now)
        print(f"ViT-{name}, {pixels} pixels, batch {batch}, stem={args.stem}\n")
        print("| step | images/s | time over supervised |\n| --- | --- | --- |")
        for row, taken in times.items():
            pairs = zip(taken, times["supervised"], strict=True)
            ratio = statistics.median(mine / first for mine, first in pairs)
            speed = int(batch) / statistics.median(taken)
            print(f"| {row} | {speed:,.1f} | {ratio:.2f} |", flush=True)
        print()


def work_of(row: str, name: str, pixels: int, count: int, args: argparse.Namespace) -> Work:
    """Return a step of a row, or of supervised training where it has no name."""
    torch.manual_seed(0)
    model = vitlab.create(
        f"ViT-{name}", stem=args.stem, image_size=pixels, classes=0 if row else CLASSES
    )
    assert isinstance(model, VisionTransformer)
    learner = learner_of(row, model, args) if row else Supervised(model)
    learner.to(args.device).train()
    images = torch.randn(count, model.config.channels, pixels, pixels, device=args.device)
    labels = torch.randint(CLASSES, (count,), device=args.device)
    batch = Batch(images, labels, torch.empty(count, 0), torch.arange(count))
    batch = with_views(learner.task, batch) if isinstance(learner, Learner) else batch
    optimizer = torch.optim.AdamW(learner.parameters(), 1e-4, fused=True)
    generator = torch.Generator(args.device).manual_seed(0)

    def step() -> None:
        with torch.autocast(args.device, torch.bfloat16, enabled=args.precision == "bf16"):
            loss, _ = learner(batch, generator)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
        if isinstance(learner, Learner):
            learner.task.stepped(model, lambda sums: None)
            learner.task.drop()

    return step


def with_views(task: PretextTask, batch: Batch) -> Batch:
    """Return a batch with the crops that a task learns from, which are random numbers too."""
    views = task.views(task.options, task.config, Augment())
    shape = batch.images.shape[:2]
    crops = [torch.randn(*shape, *view.size, device=batch.labels.device) for view in views[1:]]
    return replace(batch, views=tuple(replace(batch, images=each) for each in crops))


def learner_of(row: str, model: VisionTransformer, args: argparse.Namespace) -> Learner:
    """Return a model with the task of a row."""
    name = row.split()[0]
    task, guide = TASKS[name], None
    options = Pretext.of(task=name, **ROWS[row])
    if name == "beit":
        guide = vitlab.create(args.tokenizer or f"dVAE/{model.config.patch // 2}")
        guide.eval().requires_grad_(False).to(args.device)
    task.check(options, model.config, guide)
    learner = Learner(model, task(options, model.config, guide))
    learner.task.reset_parameters()
    return learner


if __name__ == "__main__":
    main()
