"""The figures and the notes that every run ends with, whatever it learned."""

from typing import Any

from vitlab import device as devices
from vitlab.models.cost import cost
from vitlab.models.model import Model
from vitlab.training.session import Session
from vitlab.training.setup.preparation import Task


def figures_of_run(session: Session, model: Model) -> dict[str, Any]:
    """Return what a run cost and what went wrong in it, by the keys of the command's JSON."""
    tally, price, device = session.state.tally, cost(model), session.trainer.device
    return {
        "model": model.config.name,
        "params": price.params,
        "macs": price.macs,
        "images_per_second": tally.means["images_per_second"],
        "peak_memory": devices.peak_memory(device),
        "seconds": tally.seconds,
        "device": devices.described(device),
        "damaged": len(tally.bad),
        "skipped_steps": tally.skipped,
        "rollbacks": len(session.decisions.rollbacks),
    }


def notes_of_run(task: Task, session: Session) -> list[str]:
    """Return remarks on the data, damaged images and steps that were passed over."""
    tally = session.state.tally
    notes = [*task.splits.notes, *(f"skipped: {message}" for message in tally.bad)]
    if tally.skipped:
        notes.append(
            f"{tally.skipped:,} of {session.state.step:,} steps passed over, because losses or "
            f"gradients were not finite, or exploded; rollbacks to earlier weights: "
            f"{len(session.decisions.rollbacks)}"
        )
    return notes
