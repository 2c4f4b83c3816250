"""Train the same Vision Transformer with every optimizer: same start, same batches."""

import copy
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from vitlab.optim.moments import size
from vitlab.optim.optimizers import build
from vitlab.optim.table import OPTIMIZERS
from vitlab.options import check_known
from vitlab.packages import check_installed
from vitlab.recipes.choices import Optimization
from vitlab.recipes.recipe import Host, Recipe
from vitlab.report.table_page import Table, TablePage, write_tables
from vitlab.runs.naming import folder_name, newest
from vitlab.runs.run_folder import RunFolder
from vitlab.training.ending import Run
from vitlab.transfer.campaign_folder import CampaignFolder
from vitlab.transfer.trials import Outcome, Trial, begin, campaign_place
from vitlab.units import percent

UPDATES = 20  # timed; twice the steps between two roots of Shampoo


@dataclass(frozen=True)
class Entry:
    """A row of the study.

    Attributes:
        lr: its learning rate divided by the recipe's, which is AdamW's
        choices: further options of the recipe
        floats: state in floats per parameter, as the article has it
        claim: the article's verdict
    """

    lr: float = 1.0
    choices: dict[str, Any] = field(default_factory=dict)
    floats: str = ""
    claim: str = ""


# The learning rates are starting points for the digits (docs/results.md). L2 decay is as strong as
# AdamW's decoupled decay once learning rate and momentum have multiplied it. The claims
# are those of the Weights & Biases article on dos and don'ts of training Vision Transformers.
ENTRIES: dict[str, Entry] = {
    "sgd": Entry(25.0, {"optimizer": "sgd", "weight_decay": 2e-4}, "", "converges poorly"),
    "adam": Entry(1.0, {"optimizer": "adam", "weight_decay": 1e-4}, "2", "3M in all"),
    "adamw": Entry(1.0, {"optimizer": "adamw"}, "2", "the best at usual scale"),
    "adamw+sam": Entry(1.0, {"optimizer": "adamw", "rho": 0.05}),
    "adafactor": Entry(10.0, {"optimizer": "adafactor"}, "O(1)", "does not really work"),
    "lamb": Entry(5.0, {"optimizer": "lamb", "eps": 1e-6, "weight_decay": 0.02}),
    "lars": Entry(
        500.0, {"optimizer": "lars", "weight_decay": 1e-4}, "", "the best at usual scale"
    ),
    "shampoo": Entry(1.0, {"optimizer": "shampoo"}, "", "for the largest scale"),
    "soap": Entry(1.0, {"optimizer": "soap", "betas": (0.95, 0.95)}),
    "muon": Entry(1.0, {"optimizer": "muon", "momentum": 0.95}),
    "schedule-free": Entry(
        2.0, {"optimizer": "schedule-free", "schedule": "constant", "cooldown": 0.0, "ema": 0.0}
    ),
}


def study(
    recipe: Recipe,
    out: str | Path | None = None,
    host: Host | None = None,
    only: tuple[str, ...] = (),
    lr_grid: tuple[float, ...] = (),
    command: str = "",
) -> dict[str, Any]:
    """Train with each optimizer in turn; what is already finished is not trained again.

    Args:
        recipe: data, model, length and seed; its learning rate is AdamW's
        out: folder that gets one run folder per training; None for `runs/study-optimizers-DATA`,
            the newest of that name if it is of the same study, else a new one
        host: where to train
        only: names of rows in `ENTRIES` (empty: all)
        lr_grid: factors of each learning rate to try; the lowest training loss at the end decides,
            so that the test images have no influence
        command: what the user typed

    Returns:
        The JSON of `vitlab study optimizers`, one row per optimizer.

    Raises:
        OptionError: an unknown row.
        UserError: anything that `train` raises, except that a run diverged.
    """
    check_known(only, ENTRIES, "row")
    _check_packages(only or tuple(ENTRIES))
    settings, name = {"study": "optimizers"}, folder_name("study-optimizers", recipe.data.data)
    last = newest(name)
    same = last is not None and CampaignFolder(last).holds("study", settings, recipe)
    folder = CampaignFolder(campaign_place(out, name, resume=same, host=host))
    campaign = begin("study", folder, settings, recipe, resume=True, host=host, command=command)
    names = only or tuple(ENTRIES)
    tried = [(name, factor) for name in names for factor in sorted(set(lr_grid or (1.0,)))]
    outcomes = campaign.outcomes([_trial(recipe, name, factor) for name, factor in tried])
    found = [_row(name, each) for (name, _), each in zip(tried, outcomes, strict=True)]
    rows = [min((row for row in found if row["optimizer"] == name), key=_loss) for name in names]
    result = {
        "study": "optimizers",
        "data": recipe.data.data,
        "epochs": recipe.epochs,
        "seed": recipe.seed,
        "rows": rows,
    }
    if campaign.first:
        folder.finish(result)
        page = Table("Optimizers", HEAD, table(result))
        lead = f"The same model and batches; seed {recipe.seed}."
        title = f"Optimizers on {recipe.data.data}"
        write_tables(folder.report, TablePage(title, lead, [page], command=command))
    return result


def _check_packages(names: tuple[str, ...]) -> None:
    """Refuse rows whose packages are not installed, before any other has been run.

    Raises:
        PackageError: it says how to install one, and which rows need none.
    """
    needed = {name: OPTIMIZERS[ENTRIES[name].choices["optimizer"]].package for name in ENTRIES}
    for name in names:
        if package := needed[name]:
            free = " ".join(each for each in ENTRIES if not needed[each])
            check_installed(package, f"the row {name}", f"name other rows: --only {free}")


def _trial(recipe: Recipe, name: str, factor: float) -> Trial:
    """Return the run of one optimizer with one learning rate."""
    entry = ENTRIES[name]
    lr = recipe.optimizer.lr * entry.lr * factor
    mine = recipe.changed(lr=lr, **entry.choices)
    return Trial(f"{name}-{factor:g}", mine, f"{name} with lr {lr:g}")


def _row(name: str, outcome: Outcome) -> dict[str, Any]:
    """Return a row in JSON."""
    entry, recipe = ENTRIES[name], outcome.trial.recipe
    row: dict[str, Any] = {
        "optimizer": name,
        "lr": recipe.optimizer.lr,
        "accuracy": None,
        "nll": None,
    }
    row |= {"train_loss": None, "claimed": entry.floats, "article": entry.claim}
    if outcome.run is None:
        return row | {"note": "diverged"}
    return row | _figures(outcome.run, recipe) | {"run": str(outcome.folder.path)}


def _loss(row: dict[str, Any]) -> tuple[bool, float]:
    """Return what decides between learning rates: the training loss, a divergence being last."""
    return row["train_loss"] is None, row["train_loss"] or 0.0


def final_loss(lines: list[dict[str, Any]]) -> float:
    """Return the mean training loss over the last tenth of a run; one batch says little.

    Args:
        lines: of the journal, of the kind `train`; each has the mean since the one before
    """
    last = lines[-1]["step"]
    ends = [0, *(line["step"] for line in lines)]
    spans = [end - start for start, end in pairwise(ends)]
    chosen = [
        (span, line["loss"])
        for span, line in zip(spans, lines, strict=True)
        if line["step"] > 0.9 * last
    ]
    return sum(span * loss for span, loss in chosen) / sum(span for span, _ in chosen)


def _figures(run: Run, recipe: Recipe) -> dict[str, Any]:
    lines = [line for line in RunFolder(run.folder).journal.read() if line["kind"] == "train"]
    params = sum(weight.numel() for weight in run.model.parameters())
    update, held = cost(run.model, recipe.optimizer)
    return {
        "accuracy": run.metrics["accuracy"],
        "nll": run.metrics["nll"],
        "train_loss": final_loss(lines),
        "step_ms": 1000 * recipe.batch / run.metrics["images_per_second"],
        "update_ms": update,
        "state_bytes": held,
        "floats": held / 4 / params,
    }


def cost(model: torch.nn.Module, options: Optimization) -> tuple[float, int]:
    """Return the mean time of one optimizer update in ms, and its state in bytes.

    The gradients are noise, which takes as long as real gradients of the same shapes.
    """
    model = copy.deepcopy(model).requires_grad_(True)
    optimizer = build(model, options)
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        noise = torch.randn(weight.shape, generator=generator) * 1e-3
        weight.grad = noise.to(weight.device)
    for _ in range(2):  # the first builds the state
        optimizer.step()
    start = time.perf_counter()
    for _ in range(UPDATES):
        optimizer.step()
    if next(model.parameters()).is_cuda:
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start) / UPDATES, size(optimizer)


HEAD = (
    "optimizer", "lr", "test accuracy", "NLL", "training loss", "ms per step", "ms per update",
    "floats per parameter", "article", "article's verdict",
)  # fmt: skip


def table(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the rows as text, in the columns of `HEAD`."""
    return [_line(row) for row in result["rows"]]


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    first = (row["optimizer"], f"{row['lr']:.2g}")
    last = (row["claimed"], row["article"])
    if row["accuracy"] is None:
        return (*first, row["note"], "", "", "", "", "", *last)
    figures = (percent(row["accuracy"]), f"{row['nll']:.3f}", f"{row['train_loss']:.3f}")
    times = (f"{row['step_ms']:.1f}", f"{row['update_ms']:.1f}", f"{row['floats']:.2f}")
    return (*first, *figures, *times, *last)
