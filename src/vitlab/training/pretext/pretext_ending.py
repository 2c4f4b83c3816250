"""The end of a run that learns without labels: its model, its held-out loss, its report."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.data.augment.augment import normalize
from vitlab.data.loading.batches import EvaluationBatches
from vitlab.data.sources.protocol import Source, Subset
from vitlab.distributed.parallel import plain
from vitlab.distributed.world import World
from vitlab.models.model import Model
from vitlab.models.packed import Packed
from vitlab.objectives.pretext_task import PretextTask
from vitlab.progress import named_if_slow
from vitlab.training.session import Session
from vitlab.training.setup.preparation import Task
from vitlab.training.shown.figures_of_run import figures_of_run, notes_of_run
from vitlab.weights.save import save

PICTURED = 8  # images in the report
POSITION = ("kind", "step", "epoch", "seconds")  # keys of a line that are no figures


def conclude_pretext(task: Task, session: Session, world: World) -> tuple[dict[str, Any], Model]:
    """Save the model, measure it, write the report, and finish the journal.

    Returns:
        The run's figures, in every process, and its model.

    Raises:
        RunError: the run folder was removed, or a data-loading worker died.
        Interrupted: a stop was asked for before the measurement was done.
    """
    model, metrics = session.state.evaluated.eval(), dict[str, Any]()
    with world.agreed():
        if world.first:
            task.folder.check()
            model.provenance = session.state.model.provenance
            save(model, task.folder.model)
    point = _last_point(task, session, world)
    if point is None:
        with session.stop.at_once(), named_if_slow("measuring the held-out images", world.first):
            point = session.observer.measure()
    with world.agreed():
        if world.first:
            metrics = _result(task, session, model, point)
            task.folder.check()
            task.folder.journal.write({"kind": "result"} | metrics)
            task.folder.journal.sync()
    return world.broadcast(metrics), model


def _last_point(task: Task, session: Session, world: World) -> dict[str, float] | None:
    """Return what was measured after the last step; None if earlier weights are kept."""
    if task.recipe.patience:
        return None
    lines = task.folder.journal.read() if world.first else []
    found = [
        {key: value for key, value in line.items() if key not in POSITION}
        for line in lines
        if line["kind"] == session.observer.on and line["step"] == session.state.step
    ]
    point: dict[str, float] | None = world.broadcast(found[-1] if found else None)
    return point


def _result(task: Task, session: Session, model: Model, point: dict[str, float]) -> dict[str, Any]:
    """Return the run's figures, once they are in its report, if it is to have one."""
    own, notes = session.state.task, notes_of_run(task, session)
    assert isinstance(own, PretextTask)
    if set(own.figures) <= set(point):
        notes += own.warnings(point)
    metrics = point | {
        "task": task.recipe.pretext.task,
        "images": len(task.splits.train),
        "held_out": len(session.observer.held_out),
        **figures_of_run(session, model),
        "notes": notes,
        **task.folder.places,
    }
    if task.host.report == "yes":
        from vitlab.report.pretext.pretext_report import write_pretext_report  # slow to import

        shown = _pictures(plain(session.state.model), own, session.observer.held_out)
        task.folder.check()
        write_pretext_report(task.folder, model, metrics, shown, notes)
    return metrics | task.folder.places


def _pictures(model: Model, own: PretextTask, source: Source) -> dict[str, NDArray[np.uint8]]:
    """Return what the task shows of a few held-out images, uint8 (B, H, W, 3) by column."""
    places = np.unique(np.linspace(0, len(source) - 1, num=PICTURED, dtype=np.int64))
    batch = EvaluationBatches(Subset(source, places), model.config, PICTURED)[0]
    if isinstance(batch.images, Packed) or not len(batch):
        return {}
    device = next(model.parameters()).device
    images = normalize(batch.images.to(device), model.config.mean, model.config.std)
    generator = torch.Generator(device).manual_seed(0)
    own.eval()
    with torch.no_grad():
        shown = own.pictures(model.eval(), images, generator)
    return {name: pixels.cpu().numpy() for name, pixels in shown.items()}
