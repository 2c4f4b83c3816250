"""What the user is told before the first step."""

from vitlab.data.summary import class_lines
from vitlab.models.cost import cost
from vitlab.optim.schedule import warmup_steps
from vitlab.training.session import Session
from vitlab.training.setup.preparation import Task
from vitlab.units import counted, epochs, si


def announce(task: Task, session: Session) -> None:
    """Tell the user what will be trained, on what, for how long."""
    config, price = task.config, cost(task.config)
    rows, columns = config.size
    what = f"{rows}x{columns}x{config.channels}"
    what += f" and {config.classes} classes" if config.classes else ", without labels"
    lines = [
        f"{config.name} for {what}: "
        f"{si(price.params, 2)} parameters, {si(price.macs, 2)} multiply-adds per image"
    ]
    if task.base is not None:
        free = sum(w.numel() for w in session.state.model.parameters() if w.requires_grad)
        start = task.recipe.start
        lines.append(
            f"starting from {start.weights or 'the given model'} (fingerprint "
            f"{task.base_fingerprint[:12]}); tune={start.tune} trains {free:,} parameters"
        )
    if own := session.state.task:
        count = sum(weight.numel() for weight in own.parameters())
        what = f"task {task.recipe.pretext.task}"
        if teacher := task.recipe.distill.teacher:
            what = f"learning from {teacher} ({task.recipe.distill.distill})"
        lines.append(f"{what}: {si(count, 2)} parameters of its own")
    about = class_lines(task.splits) if config.classes else []
    lines += [_images(task), *task.told, *task.splits.notes, *about, *_plan(task, session)]
    if session.state.step:
        lines.append(f"continuing after step {session.state.step:,}")
    for line in lines:
        session.world.say(line)


def _images(task: Task) -> str:
    """Return how many images each split has."""
    held_out = "held-out" if task.recipe.pretext.unlabeled else "test"
    names = {"train": "training", "validation": "validation", "test": held_out}
    parts = [f"{len(images):,} {names[part]}" for part, images in task.splits.parts.items()]
    return f"{task.recipe.data.data}: {', '.join(parts[:-1])} and {parts[-1]} images"


def _plan(task: Task, session: Session) -> list[str]:
    """Return how long the run is, where it happens, and what is odd about it."""
    plan, recipe, world = session.plan, session.plan.recipe, session.world
    planned = f"{counted(plan.total, 'step')} of {counted(recipe.batch, 'image')}"
    planned += f" ({epochs(plan.total / plan.epoch)})"
    if task.recipe.budget and not session.decisions.plan:
        planned = f"as many steps as fit into {task.recipe.budget}"
    processes = f"{world.size} processes, " if world.size > 1 else ""
    where = f"{processes}{session.trainer.device} in {recipe.precision}"
    lines = [f"{planned} on {where}; run folder {task.folder.path}"]
    every = max(1.0, plan.evaluate_every)
    held_out = f"the {len(session.observer.held_out):,} {session.observer.on} images"
    if every < plan.total:
        between = epochs(every / plan.epoch)
        often = "every epoch" if between == "1 epoch" else f"every {between}"
        lines.append(f"evaluated on {held_out} {often}")
        if every > max(1.0, recipe.test_every * plan.epoch):
            lines[-1] += f", not every {recipe.test_every:g}: more would slow the run down"
    else:
        lines.append(f"evaluated on {held_out} at the end")
    if warmup_steps(plan.epoch, recipe.schedule) >= plan.total:
        lines.append("the warm-up is as long as the run: the learning rate never reaches its peak")
    return lines
