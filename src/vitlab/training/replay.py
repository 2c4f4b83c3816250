"""Replay of a step that was not finite: which layer first gives values that are not finite.

The first such step of a session leaves `fault/` in the run's folder: its number, seed and learning
rate, the indices and random numbers of its images, and the weights before it, which the guard has
left as they were. (On a GPU the figures of a step are read while the next one runs: there the
weights may be those one step later.) `vitlab replay RUN` computes the step again and looks at each
layer's output and gradient.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitlab.data.loading.batches import Batch
from vitlab.device import choose
from vitlab.distributed.shares import counted
from vitlab.distributed.world import ALONE
from vitlab.errors import RunError
from vitlab.files import staged_folder
from vitlab.optim.sliced import full
from vitlab.recipes.recipe import Host
from vitlab.runs.run_folder import RunFolder
from vitlab.training.first_state import first_state
from vitlab.training.guard import Figures
from vitlab.training.leaks import applied
from vitlab.training.plan import batches_of
from vitlab.training.resolve import prepare
from vitlab.training.state import State, flatten, pick
from vitlab.training.step import Trainer

ABOUT, TENSORS = "fault.json", "state.safetensors"
NAMED = 10  # images that are named at the most

Tensors = dict[str, Tensor]


def keep_fault(
    folder: RunFolder, trainer: Trainer, state: State, figures: Figures, drawn: Tensors, seed: int
) -> None:
    """Keep a step that was not finite; all processes call this, the first one writes.

    Args:
        folder: the run's
        trainer: took the step, or not
        state: weights as they are now
        figures: of the step
        drawn: `indices` and `draws` of its images; of this process's share
        seed: of the step

    Raises:
        DiskError: it cannot be written.
    """
    tensors = flatten("model", state.model.state_dict())
    if state.task is not None:
        tensors |= flatten("task", state.task.state_dict())
    whole = {name: full(each.detach()).cpu().contiguous() for name, each in tensors.items()}
    if not trainer.world.first:
        return
    about = {
        "step": figures.step,
        "fault": figures.fault,
        "seed": seed,
        "processes": trainer.world.size,
        "micro_batch": trainer.micro_batch,
        "weights_after": state.step - (state.step == figures.step),  # else a later one was taken
    }
    with staged_folder(folder.fault) as draft:
        save_file(whole | flatten("batch", drawn), draft / TENSORS)
        (draft / ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")


@dataclass
class FirstFault:
    """Where values first are not finite.

    Attributes:
        what: `images`, `weights`, `output`, `loss`, `gradient`; empty if all values are finite
        layer: name of the layer, or of the weight
        largest: the largest absolute value that went into the layer
        rows: places in the pass of the images that have such values, where that can be told
        size: images of the pass
    """

    what: str = ""
    layer: str = ""
    largest: float = 0.0
    rows: list[int] = field(default_factory=list)
    size: int = 0


@contextmanager
def watched(network: nn.Module) -> Iterator[FirstFault]:
    """Within the context, find the first layer with an output, or gradient, that is not finite."""
    found = FirstFault()

    def look(what: str, layer: str, value: Tensor, inputs: Any = ()) -> None:
        if found.what or value.isfinite().all():
            return
        given = [each for each in inputs if isinstance(each, Tensor) and each.is_floating_point()]
        found.what, found.layer, found.size = what, layer, len(value) if value.ndim else 0
        found.largest = max((float(each.detach().abs().max()) for each in given), default=0.0)
        if value.ndim > 1:
            found.rows = (~value.detach().flatten(1).isfinite().all(1)).nonzero()[:, 0].tolist()

    def after(layer: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not isinstance(output, Tensor) or not output.is_floating_point():
                return
            look("output", layer, output, inputs)
            if output.requires_grad:
                output.register_hook(lambda gradient: look("gradient", layer, gradient))

        return hook

    hooks = [
        module.register_forward_hook(after(name))
        for name, module in network.named_modules()
        if name
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def replay(place: str | Path, host: Host) -> dict[str, Any]:
    """Compute the kept step of a run again.

    Args:
        place: the run's folder
        host: where to compute, and how many processes decode

    Returns:
        `run`, `step`, `fault` (as the run saw it), `what` and `layer` (as `FirstFault`), `largest`,
        `images`: names of those with such values, `notes`.

    Raises:
        RunError: the run has no such step, or its data or weights have changed.
    """
    folder = RunFolder(place)
    if not folder.started:
        raise RunError(f"{folder.path} contains no run: name the folder of a run")
    if not (folder.fault / ABOUT).is_file():
        raise RunError(f"every step of {folder.path} that its folder tells of was finite")
    try:
        about = json.loads((folder.fault / ABOUT).read_text(encoding="utf-8"))
        kept = load_file(folder.fault / TENSORS)
    except (OSError, ValueError, SafetensorError) as error:
        raise RunError(f"{folder.fault} is damaged and cannot be replayed: {error}") from error
    task = prepare(folder.recipe, host, folder, True, ALONE)
    task = replace(task, splits=applied(task.splits, folder.duplicates))
    device = choose(host.device)
    state = first_state(task, device, ALONE)
    state.model.load_state_dict(pick("model", kept))
    if state.task is not None:
        state.task.load_state_dict(pick("task", kept))
    trainer = Trainer(state.model, task.recipe, objective=state.task or task.objective)
    trainer.micro_batch = about["micro_batch"]
    batch = batches_of(task.recipe, task.splits.train, task.config, ALONE)[about["step"] - 1]
    batch = counted(batch, ALONE)
    found = _computed(trainer, batch, about["seed"])
    names = [task.splits.train.name(i) for i in batch.indices[found.rows][:NAMED].tolist()]
    shown = {key: value for key, value in asdict(found).items() if key not in ("rows", "size")}
    result = {"run": str(folder.path), **{key: about[key] for key in ("step", "fault")}, **shown}
    return result | {"images": names, "notes": _notes(about, kept, batch, found)}


def _computed(trainer: Trainer, batch: Batch, seed: int) -> FirstFault:
    """Compute forward and backward pass; return where values first are not finite."""
    for name, weight in trainer.learner.named_parameters():
        if not weight.isfinite().all():
            return FirstFault("weights", name)
    with watched(trainer.engine.plain) as found:
        sums = trainer.accumulate(batch, seed)
    if not found.what and not sums.isfinite().all():
        return FirstFault("loss")
    for name, weight in trainer.learner.named_parameters():
        if not found.what and weight.grad is not None and not weight.grad.isfinite().all():
            return FirstFault("gradient", name)
    if found.size != len(batch):  # of a pass with a part of the images, or of other rows
        found.rows = []
    return found


def _notes(about: dict[str, Any], kept: Tensors, batch: Batch, found: FirstFault) -> list[str]:
    """Return what may differ from the step as the run took it."""
    notes = []
    if about["processes"] > 1:
        notes.append(f"{about['processes']} processes took the step: dropout differs here")
    elif any(
        not torch.equal(each.cpu(), kept[f"batch.{name}"])
        for name, each in (("indices", batch.indices), ("draws", batch.draws))
    ):
        notes.append("the images of the step are not those of the run")
    if about["weights_after"] != about["step"] - 1:
        notes.append(f"the weights are those after step {about['weights_after']:,}")
    if not found.what:
        notes.append("every value is finite here: another device or kernel gave the fault")
    return notes
